"""Agents whose turns wait for a human, and go on when the human has answered, here or elsewhere."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from aiforge import Action, ChatAgent, FileStore, MemoryStore, ProviderError, SQLiteStore, current_request
from aiforge.core.events import Event, Message, RequiresAction, Token, ToolResult
from aiforge.modules.chat.stores.protocol import Store
from aiforge.testing import FakeProvider, Reply, ScriptedModel, ToolCall, check_messages
from aiforge.tools.human import ask_human
from tests.aiforge.chat.support import DuckTool, run, until
from tests.support.waiting import wait_until


@pytest.fixture(params=["none", "memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store | None:
    return {"none": None, "memory": MemoryStore(), "file": FileStore(tmp_path)}[request.param]


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(strict=True) as server:
        yield server


class Refund(DuckTool):
    approval = True

    def __init__(self) -> None:
        super().__init__("refund", self._refund)
        self.paid: list[Any] = []

    def _refund(self, arguments: dict[str, Any]) -> str:
        request = current_request()
        request.act("receipt", {"for": request.metadata.get("user")})
        self.paid.append(arguments["amount"])
        return "refunded"


def asking(*amounts: int, answer: Any = "Done.", first: Any = ()) -> ScriptedModel:
    return ScriptedModel(
        replies=[[*first, *(ToolCall("refund", {"amount": amount}) for amount in amounts)], answer, "Bye."]
    )


def roles(agent: ChatAgent) -> list[str]:
    return [message["role"] for message in agent.history()]


def test_a_call_waits_for_approval_and_then_runs_once(store: Store | None) -> None:
    tool = Refund()
    agent = ChatAgent(tools=[tool], llm=asking(5), store=store)
    response = agent.chat("Money back!", metadata={"user": "u1"})
    assert (response.status, response.message, response.tool_calls) == ("requires_action", "", [])
    question = response.question
    assert question is not None
    assert question == agent.question
    assert (question.kind, question.tool, question.input) == ("approval", "refund", {"amount": 5})
    assert len(question.question_id) == 16
    assert agent.history() == []
    assert tool.paid == []
    done = agent.resume(question.question_id, "approved")
    assert (done.status, done.message, done.iterations) == ("completed", "Done.", 1)
    assert [record.output for record in done.tool_calls] == ["refunded"]
    assert done.trace_id == response.trace_id
    assert tool.paid == [5]
    assert roles(agent) == ["user", "assistant", "tool", "assistant"]
    assert agent.question is None
    assert [action.payload for action in agent.pending_actions] == [{"for": "u1"}]
    assert agent.chat("Thanks.").message == "Bye."
    assert roles(agent)[-2:] == ["user", "assistant"]


def test_a_refusal_is_told_to_the_model() -> None:
    tool = Refund()
    model = asking(5, answer="Sorry.")
    agent = ChatAgent(tools=[tool], llm=model)
    question = agent.chat("Money back!").question
    assert question is not None
    assert agent.resume(question.question_id, "Not without a receipt.").message == "Sorry."
    assert tool.paid == []
    assert "Not without a receipt." in model.requests[-1]["messages"][-1]["content"]


def test_several_calls_are_asked_for_one_after_the_other(store: Store | None) -> None:
    tool = Refund()
    agent = ChatAgent(tools=[tool], llm=asking(1, 2), store=store)
    first = agent.chat("Twice!").question
    assert first is not None
    second = agent.resume(first.question_id, "yes").question
    assert second is not None
    assert second.input == {"amount": 2}
    assert agent.resume(second.question_id, "yes").message == "Done."
    assert tool.paid == [1, 2]


def test_a_langchain_tool_asks_through_its_metadata() -> None:
    def wipe(path: str) -> str:
        """Wipes."""
        return "wiped"

    tool = StructuredTool.from_function(wipe, metadata={"approval": True})
    agent = ChatAgent(tools=[tool], llm=ScriptedModel(replies=[[ToolCall("wipe", {"path": "/"})], "Ok."]))
    question = agent.chat("Wipe.").question
    assert question is not None
    assert agent.resume(question.question_id, "yes").tool_calls[0].output == "wiped"


def test_streams_pause_and_resume() -> None:
    tool = Refund()
    agent = ChatAgent(
        tools=[tool], llm=asking(5, answer=["Do", "ne."], first=["Wait. "]), store=MemoryStore()
    )
    assert list(agent.run_stream("Money back!")) == ["Wait. "]
    waiting = agent.last_response
    assert waiting is not None
    assert waiting.question is not None
    question_id = waiting.question.question_id

    async def scenario() -> list[str]:
        return [text async for text in agent.resume_stream(question_id, "yes")]

    assert run(scenario()) == ["Do", "ne."]
    assert agent.last_response is not None
    assert agent.last_response.message == "Done."
    kinds = [type(event) for event in agent.replay(waiting.trace_id)]
    assert kinds.index(RequiresAction) < kinds.index(ToolResult) < kinds.index(Message)
    assert kinds.count(Token) == 3


def test_events_end_with_the_question() -> None:
    agent = ChatAgent(tools=[Refund()], llm=asking(5))
    heard: list[Event] = []

    async def scenario() -> None:
        async for event in agent.astream_events("Money back!"):
            heard.append(event)  # noqa: PERF401  # two streams into one list
        assert isinstance(heard[-1], RequiresAction)
        async for event in agent.resume_events(heard[-1].question_id, "yes"):
            heard.append(event)  # noqa: PERF401

    run(scenario())
    assert heard[-1] == Message("Done.")


def test_actions_go_out_once_and_only_at_the_end() -> None:
    sent: list[Action] = []

    def act(arguments: dict[str, Any]) -> str:
        return current_request().act("mail").id

    replies = [[ToolCall("act"), ToolCall("refund", {"amount": 1})], "Done."]
    agent = ChatAgent(
        tools=[DuckTool("act", act), Refund()],
        llm=ScriptedModel(replies=replies),
        actions=sent.append,
        store=MemoryStore(),
    )
    question = agent.chat("Go.").question
    assert question is not None
    assert sent == agent.pending_actions == []
    agent.resume(question.question_id, "yes")
    assert [action.name for action in sent] == ["mail", "receipt"]
    assert len({action.id for action in sent}) == 2


def test_only_the_open_question_can_be_answered(store: Store | None) -> None:
    model = asking(5)
    agent = ChatAgent(tools=[Refund()], llm=model, store=store)
    with pytest.raises(ValueError, match="no question 'abc'"):
        agent.resume("abc", "yes")
    question = agent.chat("Money back!").question
    assert question is not None
    for wrong in ("abc", ""):
        with pytest.raises(ValueError, match="no question"):
            agent.resume(wrong, "yes")
    with pytest.raises(ValueError, match="answer"):
        agent.resume(question.question_id, None)  # type: ignore[arg-type]
    agent.resume(question.question_id, "yes")
    with pytest.raises(ValueError, match="no question"):
        agent.resume(question.question_id, "yes")
    assert len(model.requests) == 2


def test_a_new_message_gives_the_waiting_turn_up(store: Store | None) -> None:
    model = asking(5, answer="Hello.")
    agent = ChatAgent("s", tools=[Refund()], llm=model, store=store)
    question = agent.chat("Money back!").question
    assert question is not None
    agent.chat("Never mind, hello!")
    assert [message["content"] for message in model.requests[-1]["messages"]] == ["s", "Never mind, hello!"]
    with pytest.raises(ValueError, match="no question"):
        agent.resume(question.question_id, "yes")
    assert roles(agent) == ["user", "assistant"]


def test_an_answer_whose_turn_fails_can_be_given_again(store: Store | None) -> None:
    tool = Refund()
    model = ScriptedModel(replies=[[ToolCall("refund", {"amount": 1})], ProviderError("no"), "Done."])
    agent = ChatAgent(tools=[tool], llm=model, store=store)
    question = agent.chat("Money back!").question
    assert question is not None
    with pytest.raises(ProviderError):
        agent.resume(question.question_id, "yes")
    assert agent.question == question
    assert agent.resume(question.question_id, "yes").message == "Done."


@pytest.mark.parametrize("again", ["yes", "no"])
def test_an_allowed_call_runs_once_however_often_the_turn_fails(store: Store | None, again: str) -> None:
    tool = Refund()
    failures = [ProviderError("no"), ProviderError("no")]
    model = ScriptedModel(replies=[[ToolCall("refund", {"amount": 1})], *failures, "Done."])
    agent = ChatAgent(tools=[tool], llm=model, store=store)
    question = agent.chat("Money back!").question
    assert question is not None
    for answer in ("yes", again):
        with pytest.raises(ProviderError):
            agent.resume(question.question_id, answer)
        assert agent.question == question
    response = agent.resume(question.question_id, again)
    assert tool.paid == [1]
    assert [record.output for record in response.tool_calls] == ["refunded"]
    for request in model.requests[1:]:
        assert request["messages"][-1]["content"] == "refunded"
    assert roles(agent) == ["user", "assistant", "tool", "assistant"]
    assert [action.name for action in agent.pending_actions] == ["receipt"]
    if store is not None:
        results = [event for event in agent.replay(response.trace_id) if isinstance(event, ToolResult)]
        assert [result.output for result in results] == ["refunded"]


def test_a_call_that_is_cancelled_after_it_ran_has_run(store: Store | None, provider: FakeProvider) -> None:
    tool = Refund()
    provider.push(Reply(tool_calls=[ToolCall("refund", {"amount": 1})]), Reply(instead="silence"), "Done.")
    agent = ChatAgent(tools=[tool], store=store, OPENAI_BASE_URL=provider.url, OPENAI_API_KEY="key")
    question = agent.chat("Money back!").question
    assert question is not None

    async def scenario() -> None:
        task = asyncio.create_task(agent.aresume(question.question_id, "approved"))
        await until(lambda: len(provider.calls) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario())
    agent.resume(question.question_id, "no")
    assert tool.paid == [1]
    assert provider.calls[2].messages[-1]["content"] == "refunded"


@pytest.mark.parametrize("again", ["yes", "no"])
def test_a_call_that_was_cut_off_is_not_made_again_unheard(store: Store | None, again: str) -> None:
    begun = threading.Event()
    end = threading.Event()

    class Slow(Refund):
        def _refund(self, arguments: dict[str, Any]) -> str:
            begun.set()
            end.wait(10)
            return super()._refund(arguments)

    tool = Slow()
    model = asking(1)
    agent = ChatAgent(tools=[tool], llm=model, store=store)
    question = agent.chat("Money back!").question
    assert question is not None

    async def scenario() -> None:
        task = asyncio.create_task(agent.aresume(question.question_id, "yes"))
        await until(begun.is_set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario())
    end.set()
    agent.resume(question.question_id, again)
    assert "may have completed" in model.requests[-1]["messages"][-1]["content"]
    wait_until(lambda: tool.paid == [1])


def test_only_one_of_two_processes_lets_a_call_run(tmp_path: Path) -> None:
    tools = [Refund(), Refund()]
    first = ChatAgent(tools=[tools[0]], llm=asking(1), store=FileStore(tmp_path), conversation_id="c")
    question = first.chat("Money back!").question
    assert question is not None
    model = ScriptedModel(replies=["Done.", "Done."])
    other = ChatAgent(tools=[tools[1]], llm=model, store=FileStore(tmp_path), conversation_id="c")

    async def both() -> list[Any]:
        waiting = [agent.aresume(question.question_id, "yes") for agent in (first, other)]
        return await asyncio.gather(*waiting, return_exceptions=True)

    run(both())
    assert len(tools[0].paid) + len(tools[1].paid) == 1


def test_an_answer_to_the_model_s_question_can_be_another_the_next_time(store: Store | None) -> None:
    replies = [[ToolCall("ask_human", {"question": "Which?"})], ProviderError("no"), "Done."]
    model = ScriptedModel(replies=replies)
    agent = ChatAgent(tools=[ask_human], llm=model, store=store)
    question = agent.chat("Paint it.").question
    assert question is not None
    with pytest.raises(ProviderError):
        agent.resume(question.question_id, "blue")
    agent.resume(question.question_id, "red")
    assert [request["messages"][-1]["content"] for request in model.requests[1:]] == ["blue", "red"]


def test_a_resumed_stream_that_is_left_keeps_what_was_paid_and_seen(store: Store | None) -> None:
    tool = Refund()
    model = asking(5, answer=["Do", "ne."])
    agent = ChatAgent(tools=[tool], llm=model, store=store)
    question = agent.chat("Money back!").question
    assert question is not None

    async def scenario() -> None:
        async with aclosing(agent.resume_stream(question.question_id, "yes")) as stream:
            assert await anext(stream) == "Do"

    run(scenario())
    assert agent.question is None
    assert tool.paid == [5]
    assert [action.name for action in agent.pending_actions] == ["receipt"]
    assert [(message["role"], message["content"]) for message in agent.history()] == [
        ("user", "Money back!"),
        ("assistant", None),
        ("tool", "refunded"),
        ("assistant", "Do"),
    ]
    agent.chat("Thanks.")
    check_messages(model.requests[-1]["messages"], "anthropic")


def test_a_version_where_a_turn_waits_is_not_folded_up() -> None:
    agent = ChatAgent(tools=[Refund()], llm=asking(5), store=MemoryStore())
    question = agent.chat("Money back!").question
    assert question is not None
    with pytest.raises(ValueError, match="waits for an answer"):
        agent.compact()
    agent.checkout(0)
    assert agent.question is None
    agent.checkout(1)
    agent.resume(question.question_id, "yes")
    agent.compact()
    assert roles(agent) == ["user", "assistant", "tool", "assistant"]


def test_another_process_asks_and_this_one_answers(provider: FakeProvider, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from aiforge import ChatAgent, SQLiteStore\n"
        "class Refund:\n"
        "    name, description, approval = 'refund', 'Refunds.', True\n"
        "    def invoke(self, arguments): return 'never here'\n"
        "agent = ChatAgent('Be kind.', [Refund()], store=SQLiteStore(sys.argv[1]), conversation_id='c',\n"
        "    OPENAI_BASE_URL=sys.argv[2], OPENAI_API_KEY='key')\n"
        "print(agent.chat('Money back!', system_prompt='Be strict.').question.question_id)\n"
    )
    place = tmp_path / "x.db"
    provider.push(Reply(tool_calls=[ToolCall("refund", {"amount": 7}, id="call_a")]), "Done.")
    ended = subprocess.run(
        [sys.executable, "-c", script, str(place), provider.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    tool = Refund()
    agent = ChatAgent(
        "Be kind.",
        [tool],
        store=SQLiteStore(place),
        conversation_id="c",
        OPENAI_BASE_URL=provider.url,
        OPENAI_API_KEY="key",
    )
    assert agent.resume(ended.stdout.strip(), "approved").message == "Done."
    assert tool.paid == [7]
    sent = provider.calls[1].messages
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool"]
    assert sent[0]["content"] == "Be strict."
    assert sent[3] == {"role": "tool", "tool_call_id": "call_a", "content": "refunded"}
