"""What hooks and tools learn of a turn, and the actions that they leave behind."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from aiforge import (
    Action,
    ChatAgent,
    ChatRequest,
    ConversationMovedError,
    MemoryStore,
    ProviderError,
    current_request,
)
from aiforge.core.events import Error, Event, Message, Token, UsageReport
from aiforge.testing import ScriptedModel, ToolCall
from tests.aiforge.chat.support import DuckTool, run


def acting(name: str = "mail") -> DuckTool:
    """A tool that leaves an action with the tenant of its turn."""

    def act(arguments: dict[str, Any]) -> str:
        request = current_request()
        return request.act(name, {"tenant": request.metadata.get("tenant"), **arguments}).id

    return DuckTool("act", act)


def model_that_acts(times: int = 1, answer: Any = "Done.") -> ScriptedModel:
    return ScriptedModel(replies=[[ToolCall("act", {"to": "x"}) for _ in range(times)], answer] * 5)


class TestRequests:
    def test_tools_and_hooks_see_the_metadata(self) -> None:
        seen: list[Any] = []

        def plain(arguments: dict[str, Any]) -> str:
            seen.append(current_request())
            return "plain"

        async def awaited() -> str:
            """Waits."""
            seen.append(current_request())
            return "awaited"

        tools = [DuckTool("plain", plain), StructuredTool.from_function(coroutine=awaited, name="awaited")]
        replies = [[ToolCall("plain"), ToolCall("awaited")], "Done."]
        agent = ChatAgent(
            tools=tools,
            llm=ScriptedModel(replies=replies * 3),
            on_event=lambda event, request: seen.append(request),
        )
        response = agent.chat("Go.", metadata={"tenant": "acme"})
        assert all(isinstance(request, ChatRequest) for request in seen)
        assert {request.metadata["tenant"] for request in seen} == {"acme"}
        assert {request.turn_id for request in seen} == {response.trace_id}
        assert {request.conversation_id for request in seen} == {agent.conversation_id}
        assert {request.message for request in seen} == {"Go."}
        seen.clear()
        list(agent.run_stream("Go.", metadata={"tenant": "other"}))
        assert {request.metadata["tenant"] for request in seen} == {"other"}
        seen.clear()
        agent.run("Go.")
        assert {tuple(request.metadata) for request in seen} == {()}

    def test_there_is_none_outside_of_a_turn(self) -> None:
        with pytest.raises(LookupError, match="no turn"):
            current_request()
        agent = ChatAgent(llm=ScriptedModel(replies=["ok", ProviderError("no")]))

        async def scenario() -> None:
            await agent.achat("a")
            with pytest.raises(ProviderError):
                await agent.achat("b")
            with pytest.raises(LookupError):
                current_request()

        run(scenario())

    @pytest.mark.parametrize("metadata", [["a"], {"a": 1}, {1: "a"}, "a", {"a": "\ud800"}])
    def test_bad_metadata_is_refused_before_any_request(self, metadata: Any) -> None:
        model = ScriptedModel()
        with pytest.raises(ValueError, match="metadata"):
            ChatAgent(llm=model).chat("Hello", metadata=metadata)
        assert model.requests == []


class TestOnEvent:
    def test_it_is_told_of_everything_however_the_turn_is_run(self) -> None:
        events: list[Event] = []
        agent = ChatAgent(
            llm=ScriptedModel(replies=["one", ["two", "!"], "three", "four"]), on_event=events.append
        )
        agent.chat("a")
        assert [type(event) for event in events] == [UsageReport, Message]
        events.clear()

        async def scenario() -> list[Event]:
            return [event async for event in agent.astream_events("b")]

        assert run(scenario()) == events
        assert [event.text for event in events if isinstance(event, Token)] == ["two", "!"]
        events.clear()
        agent.run_batch(["c", "d"], concurrency=1)
        assert [event.text for event in events if isinstance(event, Message)] == ["three", "four"]

    def test_a_hook_that_would_have_to_be_awaited_is_refused(self) -> None:
        class Hook:
            async def __call__(self, event: Event) -> None: ...

        hook = Hook()
        for wrong in (hook, hook.__call__, functools.partial(Hook.__call__, hook)):
            with pytest.raises(TypeError, match="on_event must be a plain function"):
                ChatAgent(llm=ScriptedModel(), on_event=wrong)
        late = ChatAgent(llm=ScriptedModel(replies=["ok"]), on_event=lambda *event: hook(event[0]))
        with pytest.raises(TypeError, match="on_event must be a plain function"):
            late.chat("Hello")

    def test_a_failure_is_an_event(self) -> None:
        events: list[Event] = []
        agent = ChatAgent(llm=ScriptedModel(replies=[ProviderError("no")]), on_event=events.append)
        with pytest.raises(ProviderError):
            agent.chat("a")
        assert events[-1] == Error("provider_error", "no", False)

    def test_what_it_raises_ends_the_turn(self) -> None:
        def hook(event: Event) -> None:
            if isinstance(event, UsageReport):
                raise RuntimeError("too expensive")

        model = ScriptedModel(replies=["a", "b"])
        agent = ChatAgent("s", llm=model, on_event=hook)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="too expensive"):
                agent.chat("Hello")
        assert len(model.requests[-1]["messages"]) == 2

    def test_what_is_no_hook(self) -> None:
        async def waiting(event: Event) -> None:
            """Events do not wait."""

        for hook in (5, waiting):
            with pytest.raises(TypeError, match="on_event"):
                ChatAgent(llm=ScriptedModel(), on_event=hook)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="actions"):
            ChatAgent(llm=ScriptedModel(), actions=5)  # type: ignore[arg-type]


class TestActions:
    @pytest.mark.parametrize("store", [None, MemoryStore()])
    def test_they_are_dispatched_once_after_the_commit(self, store: MemoryStore | None) -> None:
        sent: list[Action] = []
        order: list[str] = []

        async def send(action: Action) -> None:
            await asyncio.sleep(0)
            order.append("action")
            sent.append(action)

        agent = ChatAgent(
            tools=[acting()],
            llm=model_that_acts(2),
            actions=send,
            store=store,
            on_event=lambda event: order.append(type(event).__name__),
        )
        agent.chat("Go.", metadata={"tenant": "acme"})
        assert [(action.name, action.payload) for action in sent] == [
            ("mail", {"tenant": "acme", "to": "x"})
        ] * 2
        assert len({action.id for action in sent}) == 2
        assert order[-3:] == ["Message", "action", "action"]
        agent.chat("Again.")
        assert len(sent) == 4
        assert agent.pending_actions == []
        assert agent.deliver() == 0

    def test_a_failed_turn_has_none(self) -> None:
        sent: list[Action] = []
        model = model_that_acts(answer=ProviderError("no"))
        agent = ChatAgent(tools=[acting()], llm=model, actions=sent.append, store=MemoryStore())
        with pytest.raises(ProviderError):
            agent.chat("Go.")
        assert sent == agent.pending_actions == []

    def test_nor_has_a_turn_that_somebody_forestalled(self) -> None:
        sent: list[Action] = []
        store = MemoryStore()
        other = ChatAgent(llm=ScriptedModel(replies=["first"]), store=store, conversation_id="c")

        async def forestall(arguments: dict[str, Any]) -> str:
            current_request().act("mail")
            return (await other.achat("Me first.")).message

        agent = ChatAgent(
            tools=[DuckTool("act", forestall)],
            llm=model_that_acts(),
            actions=sent.append,
            store=store,
            conversation_id="c",
        )
        with pytest.raises(ConversationMovedError):
            agent.chat("Go.")
        assert sent == []

    def test_one_that_fails_stays_pending_until_it_is_delivered(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        sent: list[str] = []
        broken = True

        def send(action: Action) -> None:
            if broken:
                raise OSError("no network")
            sent.append(action.id)

        store = MemoryStore()
        agent = ChatAgent(tools=[acting()], llm=model_that_acts(), actions=send, store=store)
        with caplog.at_level(logging.WARNING, logger="aiforge"):
            assert agent.chat("Go.").message == "Done."
        assert "still pending" in caplog.text
        (pending,) = agent.pending_actions
        broken = False
        again = ChatAgent(
            llm=ScriptedModel(), actions=send, store=store, conversation_id=agent.conversation_id
        )
        assert again.deliver() == 1
        assert sent == [pending.id]
        assert agent.deliver() == again.deliver() == 0
        assert len(sent) == 1

    def test_without_a_dispatcher_they_wait(self) -> None:
        agent = ChatAgent(tools=[acting()], llm=model_that_acts(), store=MemoryStore())
        agent.chat("Go.")
        assert len(agent.pending_actions) == 1
        assert agent.deliver() == 0
        agent.compact()
        kept = ChatAgent(
            llm=ScriptedModel(),
            actions=lambda action: None,
            store=agent._conversation.store,
            conversation_id=agent.conversation_id,
        )
        assert kept.deliver() == 1
        assert agent.branch().pending_actions == []

    def test_a_payload_that_is_no_json_is_an_error_of_the_tool(self) -> None:
        tool = DuckTool("act", lambda arguments: current_request().act("mail", {"x": object()}).id)
        agent = ChatAgent(tools=[tool], llm=model_that_acts())
        assert "TypeError" in str(agent.chat("Go.").tool_calls[0].output)
        assert agent.pending_actions == []
