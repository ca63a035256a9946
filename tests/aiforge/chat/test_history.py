"""A conversation in a store: it goes on elsewhere, and its past can be looked at, left and folded up."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiforge import (
    ChatAgent,
    ConfigError,
    ConversationMovedError,
    FileStore,
    MemoryStore,
    ProviderError,
    SQLiteStore,
)
from aiforge.core.events import Event, Message, Token, ToolCall, ToolResult, UsageReport
from aiforge.core.types import StoreError
from aiforge.modules.chat.stores.protocol import Store
from aiforge.testing import FakeProvider, Gate, Reply, Script, ScriptedModel
from aiforge.testing import ToolCall as Call
from tests.aiforge.chat.support import DuckTool, run, until


@pytest.fixture(params=["memory", "file", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    places: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "file": lambda: FileStore(tmp_path / "folder"),
        "sqlite": lambda: SQLiteStore(tmp_path / "file.db"),
    }
    return places[request.param]()


def echo(messages: list[Any]) -> str:
    return f"re {messages[-1].content}"


def agent_of(store: Store, conversation_id: str | None = "user-42", **options: Any) -> ChatAgent:
    model = ScriptedModel(replies=[echo], repeat_last=True)
    given = {"system_prompt": "s", "llm": model, "store": store, "conversation_id": conversation_id}
    return ChatAgent(**{**given, **options})


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


def asked(agent: ChatAgent) -> list[str]:
    model = agent._model
    assert isinstance(model, ScriptedModel)
    return texts(model.requests[-1]["messages"])


class TestGoingOn:
    def test_another_agent_goes_on_with_the_conversation(self, store: Store) -> None:
        first = agent_of(store)
        first.chat("one")
        first.chat("two")
        second = agent_of(store)
        assert second.conversation_id == "user-42"
        assert second.chat("three").conversation_id == "user-42"
        assert asked(second) == ["s", "one", "re one", "two", "re two", "three"]
        first.chat("four")
        assert asked(first)[-3:] == ["three", "re three", "four"]
        assert texts(second.history())[-2:] == ["four", "re four"]
        assert (first.version, second.version) == (4, 3)

    def test_only_the_window_is_sent_and_all_is_kept(self, store: Store) -> None:
        agent = agent_of(store, memory_k=2)
        for number in range(5):
            agent.chat(str(number))
        assert asked(agent) == ["s", "3", "re 3", "4"]
        assert len(agent.history()) == 10
        again = agent_of(store, memory_k=4)
        again.chat("5")
        assert asked(again) == ["s", "3", "re 3", "4", "re 4", "5"]

    def test_streams_and_tool_rounds_are_kept(self, store: Store) -> None:
        tool = DuckTool("look", lambda arguments: "found")
        model = ScriptedModel(replies=[["Wait. ", Call("look")], ["Fo", "und."], "Yes."])
        agent = agent_of(store, llm=model, tools=[tool])
        assert "".join(agent.run_stream("Look.")) == "Wait. Found."
        kept = agent.history()
        assert [message["role"] for message in kept] == ["user", "assistant", "tool", "assistant"]
        again = agent_of(store, llm=model, tools=[tool])
        again.chat("Sure?")
        assert model.requests[-1]["messages"][1:5] == kept

    def test_what_fails_is_not_kept(self, store: Store) -> None:
        model = ScriptedModel(replies=[ProviderError("no"), ["a", ProviderError("cut")], "ok"])
        agent = agent_of(store, llm=model)
        with pytest.raises(ProviderError):
            agent.chat("lost")
        with pytest.raises(ProviderError):
            list(agent.run_stream("lost, too"))
        assert agent.history() == []
        agent.chat("kept")
        assert texts(agent.history()) == ["kept", "ok"]
        assert [info.turn for info in agent.versions()] == [1]

    def test_what_was_seen_of_a_stream_that_is_left_is_kept(self, store: Store) -> None:
        model = ScriptedModel(replies=[["a", "b", "c"], "ok"])
        agent = agent_of(store, llm=model)
        stream = agent.run_stream("left")
        assert (next(stream), next(stream)) == ("a", "b")
        stream.close()  # type: ignore[attr-defined]
        left = {"role": "assistant", "content": "ab", "stopped": True}
        assert agent.history() == [{"role": "user", "content": "left"}, left]
        (version,) = agent.versions()
        assert version.turn == 1
        assert version.turn_id is not None
        assert agent.replay(version.turn_id)[-1] == Message("ab", stopped=True)
        again = agent_of(store, llm=model)
        again.chat("Go on.")
        assert model.requests[-1]["messages"][-2:] == [
            {"role": "assistant", "content": "ab"},
            {"role": "user", "content": "Go on."},
        ]
        assert again.history()[1] == left

    @pytest.mark.parametrize("lost", [1, 2])
    def test_a_conversation_with_a_hole_is_a_store_error(self, lost: int) -> None:
        whole, store = MemoryStore(), MemoryStore()
        agent = agent_of(whole, llm=ScriptedModel(replies=["ok"], repeat_last=True))
        for message in ("a", "b", "c"):
            agent.chat(message)
        entries = run(whole.read(agent.conversation_id))
        store._logs[agent.conversation_id] = {n: entry for n, entry in entries if n != lost}
        model = ScriptedModel()
        broken = agent_of(store, llm=model, conversation_id=agent.conversation_id)
        for act in (broken.history, broken.versions, lambda: broken.chat("d"), lambda: broken.branch(3)):
            with pytest.raises(StoreError, match=f"lacks entry {lost} before entry {lost + 1}"):
                act()
        assert model.requests == []

    def test_a_summary_goes_along(self, store: Store) -> None:
        def reply(messages: list[Any]) -> str:
            return "SUMMARY" if "at most 500 words" in str(messages[0].content) else "ok"

        model = ScriptedModel(replies=[reply], repeat_last=True)
        agent = agent_of(store, llm=model, memory="summary", memory_k=2)
        for number in range(4):
            agent.chat(str(number))
        sent = texts(model.requests[-1]["messages"])
        assert "SUMMARY" in sent[1]
        again = agent_of(store, llm=model, memory="summary", memory_k=2)
        again.chat("4")
        assert texts(model.requests[-1]["messages"]) == [*sent[:-1], "3", "ok", "4"]
        buffered = agent_of(store, llm=model, memory_k=20)
        buffered.chat("5")
        assert len(model.requests[-1]["messages"]) == 1 + 10 + 1

    def test_a_reset_begins_another_conversation_and_keeps_the_old(self, store: Store) -> None:
        agent = agent_of(store)
        agent.chat("one")
        agent.reset()
        agent.chat("two")
        assert asked(agent) == ["s", "two"]
        assert sorted(run(store.conversations())) == sorted(["user-42", agent.conversation_id])
        assert texts(agent_of(store).history()) == ["one", "re one"]

    def test_batch_items_are_not_kept(self, store: Store) -> None:
        agent = agent_of(store)
        assert len(agent.run_batch(["a", "b"]).results) == 2
        assert run(store.conversations()) == []

    def test_of_two_turns_at_once_one_is_refused_and_can_be_repeated(self, store: Store) -> None:
        with FakeProvider() as provider:
            provider.extend(Script(default=Reply(chunks=["x", Gate("both")])))
            connection = {"llm": None, "OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": "key"}
            agents = [agent_of(store, **connection) for _ in range(2)]

            async def scenario() -> None:
                turns = [asyncio.create_task(agent.achat("hi")) for agent in agents]
                await until(lambda: provider.calls.running == 2)
                provider.open("both")
                outcomes = await asyncio.gather(*turns, return_exceptions=True)
                lost = [outcome for outcome in outcomes if isinstance(outcome, ConversationMovedError)]
                assert len(lost) == 1
                assert lost[0].retryable
                loser = agents[0 if isinstance(outcomes[0], Exception) else 1]
                await loser.achat("again")
                assert texts(await loser.ahistory()) == ["hi", "x", "again", "x"]

            run(scenario())

    def test_a_turn_cancelled_while_it_is_written_is_either_there_or_not(self) -> None:
        class SlowStore(MemoryStore):
            """Writes when it is told to, whatever has become of the writer."""

            def __init__(self) -> None:
                super().__init__()
                self.writing = asyncio.Event()
                self.go = asyncio.Event()

            async def append(self, conversation_id: str, number: int, entry: bytes) -> None:
                self.writing.set()
                await self.go.wait()
                await super().append(conversation_id, number, entry)

        async def scenario() -> None:
            store = SlowStore()
            agent = agent_of(store)
            turn = asyncio.create_task(agent.achat("one"))
            await store.writing.wait()
            turn.cancel()
            following = asyncio.create_task(agent.achat("two"))
            await asyncio.sleep(0)
            store.go.set()
            with pytest.raises(asyncio.CancelledError):
                await turn
            await following
            assert asked(agent) == ["s", "one", "re one", "two"]
            assert texts(await agent.ahistory()) == ["one", "re one", "two", "re two"]

        run(scenario())

    def test_another_process_goes_on(self, tmp_path: Path) -> None:
        script = (
            "import sys\n"
            "from aiforge import ChatAgent, SQLiteStore\n"
            "agent = ChatAgent(provider='offline', store=SQLiteStore(sys.argv[1]), conversation_id='c')\n"
            "agent.chat(sys.argv[2])\n"
            "print(len(agent.history()))\n"
        )
        for number, text in enumerate(("one", "two"), start=1):
            ended = subprocess.run(
                [sys.executable, "-c", script, str(tmp_path / "x.db"), text],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (ended.stdout, ended.stderr) == (f"{2 * number}\n", "")


class TestVersions:
    def test_checkout_goes_back_and_loses_nothing(self, store: Store) -> None:
        agent = agent_of(store)
        for text in ("one", "two", "three"):
            agent.chat(text)
        assert agent.checkout(1) == 4
        assert texts(agent.history()) == ["one", "re one"]
        agent.chat("other")
        assert asked(agent) == ["s", "one", "re one", "other"]
        assert [info.turn for info in agent.versions()] == [1, 2, 3, None, 4]
        agent.checkout(3)
        assert texts(agent_of(store).history())[-2:] == ["three", "re three"]
        agent.checkout(0)
        assert agent.history() == []
        agent.chat("new")
        assert asked(agent) == ["s", "new"]

    @pytest.mark.parametrize("version", [-1, 2, True, "1", None])
    def test_there_is_no_such_version(self, version: Any) -> None:
        agent = agent_of(MemoryStore())
        agent.chat("one")
        with pytest.raises(ValueError, match="there is no version"):
            agent.checkout(version)
        assert agent.version == 1

    def test_diff(self, store: Store) -> None:
        agent = agent_of(store)
        agent.chat("one")
        agent.chat("two")
        agent.checkout(1)
        agent.chat("three")
        assert texts(agent.diff(1, 2).added) == ["two", "re two"]
        difference = agent.diff(2, 4)
        assert texts(difference.removed) == ["two", "re two"]
        assert texts(difference.added) == ["three", "re three"]
        assert agent.diff(4, 4).added == agent.diff(1, 3).removed == []

    def test_a_branch_goes_its_own_way(self, store: Store) -> None:
        agent = agent_of(store)
        agent.chat("one")
        agent.chat("two")
        branch = agent.branch()
        early = agent.branch(1)
        branch.chat("left")
        assert asked(branch) == ["s", "one", "re one", "two", "re two", "left"]
        agent.chat("right")
        early.chat("else")
        assert asked(early) == ["s", "one", "re one", "else"]
        assert texts(agent.history())[-2:] == ["right", "re right"]
        assert len({agent.conversation_id, branch.conversation_id, early.conversation_id}) == 3
        assert branch.cost_tracker.calls == 1
        assert [info.turn for info in branch.versions()] == [None, 3]
        assert texts(agent_of(store, branch.conversation_id).history())[-2:] == ["left", "re left"]

    def test_replay_has_every_event_as_it_happened(self, store: Store) -> None:
        tool = DuckTool("look", lambda arguments: "found")
        model = ScriptedModel(replies=[["Wait. ", Call("look")], ["Fo", "und."], "Yes."])
        agent = agent_of(store, llm=model, tools=[tool])

        async def scenario() -> list[Event]:
            return [event async for event in agent.astream_events("Look.")]

        events = run(scenario())
        assert {Token, ToolCall, ToolResult, UsageReport, Message} <= {type(event) for event in events}
        response = agent.last_response
        assert response is not None
        assert agent.replay(response.trace_id) == events
        assert agent_of(store).replay(response.trace_id) == events
        assert [info.turn_id for info in agent.versions()] == [response.trace_id]
        with pytest.raises(ValueError, match="no turn 'x'"):
            agent.replay("x")

    def test_compaction_has_a_baseline(self, store: Store) -> None:
        agent = agent_of(store, memory_k=4)
        ids = [agent.chat(str(number)).trace_id for number in range(5)]
        agent.compact(3)
        assert len(agent.history()) == 10
        for gone in (0, 1, 2):
            with pytest.raises(ValueError, match="compacted up to 3"):
                agent.checkout(gone)
        with pytest.raises(ValueError, match="no turn"):
            agent.replay(ids[0])
        assert agent.replay(ids[4])
        agent.checkout(3)
        assert len(agent.history()) == 6
        again = agent_of(store, memory_k=4)
        again.chat("next")
        assert asked(again) == ["s", "1", "re 1", "2", "re 2", "next"]
        assert [info.turn for info in again.versions()][-1] == 6
        again.compact()
        assert [info.kind for info in again.versions()] == ["snapshot"]
        again.compact()
        again.chat("last")
        assert [info.turn for info in again.versions()] == [None, 7]
        assert len(again.history()) == 10

    def test_compaction_keeps_the_summary(self) -> None:
        def reply(messages: list[Any]) -> str:
            return "SUMMARY" if "at most 500 words" in str(messages[0].content) else "ok"

        store, model = MemoryStore(), ScriptedModel(replies=[reply], repeat_last=True)
        options: dict[str, Any] = {"llm": model, "memory": "summary", "memory_k": 2}
        agent = agent_of(store, **options)
        for number in range(4):
            agent.chat(str(number))
        agent.compact()
        agent.chat("4")
        expected = model.requests[-1]["messages"]
        again = agent_of(store, **options)
        again.checkout(4)
        again.chat("4")
        assert model.requests[-1]["messages"] == expected

    def test_compaction_refuses_to_cut_what_newer_versions_stand_on(self) -> None:
        agent = agent_of(MemoryStore())
        agent.chat("one")
        agent.chat("two")
        agent.checkout(1)
        with pytest.raises(ValueError, match="version 3 goes back to version 1"):
            agent.compact(2)
        agent.compact(1)
        agent.compact(3)
        assert texts(agent.history()) == ["one", "re one"]

    def test_a_version_costs_what_it_changed(self) -> None:
        store = MemoryStore()
        agent = agent_of(store)
        sizes: list[int] = []
        for _ in range(30):
            agent.chat("x" * 100)
            sizes.append(len(run(store.read("user-42"))[-1][1]))
        agent.checkout(20)
        sizes.append(len(run(store.read("user-42"))[-1][1]))
        assert max(sizes) < 2 * sizes[0]
        assert sizes[-1] < 100

    def test_without_a_store_there_is_only_memory(self) -> None:
        agent = ChatAgent(llm=ScriptedModel(replies=["ok"]), conversation_id="mine")
        agent.chat("one")
        assert texts(agent.history()) == ["one", "ok"]
        assert agent.conversation_id == "mine"
        for use in (agent.versions, agent.branch, agent.compact, lambda: agent.checkout(0)):
            with pytest.raises(ConfigError, match="store="):
                use()


class TestBadInput:
    @pytest.mark.parametrize("name", ["", "a/b", "x" * 129, "ü", 5, "a\n"])
    def test_conversation_ids(self, name: Any) -> None:
        with pytest.raises(ValueError, match="conversation_id"):
            ChatAgent(llm=ScriptedModel(), conversation_id=name)

    def test_what_is_no_store(self) -> None:
        with pytest.raises(TypeError, match="store"):
            ChatAgent(llm=ScriptedModel(), store="sqlite:///x.db")  # type: ignore[arg-type]

    @pytest.mark.parametrize("data", [b"{}", b"no json", json.dumps({"kind": "other"}).encode()])
    def test_a_store_with_something_else_in_it(self, data: bytes) -> None:
        store = MemoryStore()
        run(store.append("user-42", 1, data))
        agent = agent_of(store)
        with pytest.raises(StoreError, match="no entry"):
            agent.chat("Hello")
        model = agent._model
        assert isinstance(model, ScriptedModel)
        assert model.requests == []
