"""`ChatAgent` as its document describes it, against a scripted model or a provider over HTTP."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from aiforge import (
    BatchResult,
    ChatAgent,
    ChatResponse,
    ConfigError,
    MemoryStore,
    ProviderError,
    RateLimitError,
    ToolCallRecord,
    current_request,
)
from aiforge.core.events import Error, Message, Token, ToolResult, UsageReport
from aiforge.core.events import ToolCall as ToolCallEvent
from aiforge.modules.chat.prompts import DEFAULT_SYSTEM_PROMPT
from aiforge.testing import FakeProvider, Gate, Reply, Script, ScriptedModel, ToolCall, failure
from aiforge.tools import registry
from tests.aiforge.chat.support import DuckTool, run, until

HEX16 = re.compile(r"[0-9a-f]{16}")


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(strict=True) as server:
        yield server


def agent_of(provider: FakeProvider, **options: Any) -> ChatAgent:
    return ChatAgent(OPENAI_BASE_URL=provider.url, OPENAI_API_KEY="key", **options)


def asked(model: ScriptedModel, call: int = -1) -> list[str]:
    return [message["content"] for message in model.requests[call]["messages"]]


class TestConstructor:
    def test_defaults(self) -> None:
        agent = ChatAgent()
        assert agent.system_prompt == DEFAULT_SYSTEM_PROMPT
        assert (agent.memory_mode, agent.memory_k, agent.max_tool_iterations, agent.tools) == (
            "buffer",
            20,
            5,
            [],
        )
        assert HEX16.fullmatch(agent.conversation_id)
        assert agent.settings.PROVIDER == "openai"
        assert agent.cost_tracker.session_total == 0.0
        assert agent.last_response is None

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"memory": "forever"}, "memory"),
            ({"memory_k": 0}, "memory_k"),
            ({"memory_k": True}, "memory_k"),
            ({"max_tool_iterations": 0}, "max_tool_iterations"),
            ({"system_prompt": 5}, "system_prompt"),
            ({"system_prompt": "\ud800"}, "system_prompt"),
            ({"quality": "best"}, "best"),
            ({"provider": "nobody"}, "unknown provider 'nobody'"),
            ({"TEMPERATUR": 1}, "TEMPERATUR"),
            ({"TEMPERATURE": 9}, "TEMPERATURE"),
            ({"provider": "openai", "PROVIDER": "offline"}, "contradict"),
        ],
    )
    def test_what_is_wrong_is_named(self, options: dict[str, Any], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            ChatAgent(**options)

    @pytest.mark.parametrize(
        "options",
        [
            {"hooks": []},
            {"mcp_servers": {}},
        ],
    )
    def test_what_this_version_lacks_is_refused_by_name(self, options: dict[str, Any]) -> None:
        name = next(iter(options))
        with pytest.raises(ConfigError, match=name):
            ChatAgent(**options)

    @pytest.mark.parametrize("tool", [len, "calculator", object(), DuckTool, {"name": "x"}])
    def test_what_is_no_tool_is_a_type_error(self, tool: Any) -> None:
        with pytest.raises(TypeError, match="is not a tool"):
            ChatAgent(tools=[tool])

    def test_two_tools_of_one_name_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="'twin'"):
            ChatAgent(tools=[DuckTool("twin", lambda arguments: ""), DuckTool("twin", lambda arguments: "")])

    def test_llm_is_the_model(self) -> None:
        agent = ChatAgent(llm=ScriptedModel(replies=["Yes."]))
        assert agent.chat("You?").model == "scripted"
        with pytest.raises(ConfigError, match="MODEL"):
            ChatAgent(llm=ScriptedModel(), MODEL="gpt-4o")
        with pytest.raises(TypeError, match="llm"):
            ChatAgent(llm="gpt-4o")  # type: ignore[arg-type]


class TestChat:
    def test_a_response_has_all_documented_fields(self, provider: FakeProvider) -> None:
        agent = agent_of(provider)
        response = agent.chat("What is the capital of France?")
        assert isinstance(response, ChatResponse)
        assert response.message == response.to_text() != ""
        assert response.conversation_id == agent.conversation_id
        assert (response.tool_calls, response.iterations, response.memory_mode) == ([], 0, "buffer")
        assert response.model == "gpt-4o-mini"
        assert response.input_tokens > 0
        assert response.output_tokens > 0
        assert response.cost == pytest.approx(
            (response.input_tokens * 0.15 + response.output_tokens * 0.6) / 1e6
        )
        assert response.priced
        assert response.latency_ms > 0
        assert HEX16.fullmatch(response.trace_id)
        assert agent.last_response is response
        assert agent.cost_tracker.session_total == response.cost
        assert len(response.calls) == 1
        assert ChatResponse.model_validate_json(response.model_dump_json()).message == response.message

    def test_context_is_kept_and_reset_forgets_it(self) -> None:
        model = ScriptedModel(replies=["Hello Alice.", "Alice.", "No idea."])
        agent = ChatAgent("Be kind.", llm=model)
        before = agent.conversation_id
        agent.chat("I am Alice.")
        agent.chat("Who am I?")
        assert asked(model) == ["Be kind.", "I am Alice.", "Hello Alice.", "Who am I?"]
        agent.reset()
        agent.chat("Who am I?")
        assert asked(model) == ["Be kind.", "Who am I?"]
        assert agent.conversation_id != before

    def test_a_system_prompt_per_call_holds_for_that_turn_only(self) -> None:
        model = ScriptedModel(replies=["ok"], repeat_last=True)
        agent = ChatAgent("Usual.", llm=model)
        agent.chat("a", system_prompt="Special.")
        agent.run("b", system_prompt="Special.")
        list(agent.run_stream("c", system_prompt="Special."))
        agent.chat("d")
        assert [request["messages"][0]["content"] for request in model.requests] == ["Special."] * 3 + [
            "Usual."
        ]

    def test_an_empty_system_prompt_sends_none(self) -> None:
        model = ScriptedModel(replies=["ok"])
        ChatAgent("", llm=model).chat("Hello")
        assert asked(model) == ["Hello"]

    @pytest.mark.parametrize("message", ["", "  \n", None, 5, ["x"], "\ud800", "x" * 300_000])
    def test_a_bad_message_is_refused_before_any_request(self, message: Any) -> None:
        model = ScriptedModel()
        agent = ChatAgent(llm=model)
        with pytest.raises(ValueError, match="message"):
            agent.chat(message)
        with pytest.raises(ValueError, match="message"):
            list(agent.run_stream(message))
        assert model.requests == []

    def test_a_failed_turn_leaves_no_trace(self) -> None:
        model = ScriptedModel(replies=["one", ProviderError("no"), ["tw", ProviderError("cut")], "two"])
        agent = ChatAgent("s", llm=model)
        agent.chat("first")
        with pytest.raises(ProviderError):
            agent.chat("lost")
        with pytest.raises(ProviderError):
            list(agent.run_stream("lost too"))
        agent.chat("second")
        assert asked(model) == ["s", "first", "one", "second"]

    def test_a_model_without_a_price_says_so(self) -> None:
        agent = ChatAgent(llm=ScriptedModel(replies=["ok"]))
        response = agent.chat("Hello")
        assert (response.cost, response.priced, response.unpriced_calls) == (0.0, False, 1)

    def test_costs_of_failed_calls_count(self, provider: FakeProvider) -> None:
        provider.push(failure(400), "fine")
        agent = agent_of(provider)
        with pytest.raises(ProviderError):
            agent.chat("one")
        assert agent.cost_tracker.calls == 1
        assert agent.chat("two").cost == agent.cost_tracker.session_total

    def test_no_key_is_an_error_of_the_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        agent = ChatAgent()
        with pytest.raises(ProviderError, match="OPENAI_API_KEY"):
            agent.chat("Hello")

    def test_settings_reach_the_provider(self, provider: FakeProvider) -> None:
        agent_of(provider, TEMPERATURE=0.3, MAX_TOKENS=7, MODEL="gpt-4o").chat("Hello")
        body = provider.calls[0].body
        assert (body["temperature"], body["max_tokens"], body["model"]) == (0.3, 7, "gpt-4o")


class TestTools:
    def test_the_documented_calculation(self, provider: FakeProvider) -> None:
        expression = {"expression": "249.99 * 0.85"}
        provider.push(Reply(tool_calls=[ToolCall("calculator", expression)]), "It is 212.4915.")
        response = agent_of(provider, tools=registry.resolve(["calculator"])).chat("15% off $249.99?")
        assert response.tool_calls == [ToolCallRecord(tool="calculator", input=expression, output="212.4915")]
        assert response.tool_calls[0].to_text() == "calculator({'expression': '249.99 * 0.85'}) → 212.4915"
        assert response.iterations == 1
        assert response.message == "It is 212.4915."

    def test_langchain_duck_typed_and_async_tools_work(self) -> None:
        def plain(city: str) -> str:
            """The weather."""
            return f"sunny in {city} ({threading.current_thread().name})"

        async def awaited(city: str) -> str:
            """The weather."""
            return f"cloudy in {city} ({threading.current_thread().name})"

        async def duck(arguments: dict[str, Any]) -> dict[str, Any]:
            return {"rain": arguments["city"]}

        tools = [
            StructuredTool.from_function(plain),
            StructuredTool.from_function(coroutine=awaited, name="awaited"),
            DuckTool("duck", duck),
        ]
        calls = [ToolCall(name, {"city": "NYC"}) for name in ("plain", "awaited", "duck")]
        model = ScriptedModel(replies=[calls, "Mixed."])
        agent = ChatAgent(tools=tools, llm=model)
        outputs = [record.output for record in agent.chat("Weather?").tool_calls]
        assert outputs[0] == "sunny in NYC (aiforge-tool-plain)"
        assert "bridge" in str(outputs[1])
        assert outputs[2] == '{"rain": "NYC"}'
        assert agent.tools == tools
        schemas = {tool["function"]["name"]: tool["function"] for tool in model.requests[0]["tools"]}
        assert schemas["plain"]["parameters"]["properties"]["city"] == {"type": "string"}
        assert schemas["duck"]["parameters"]["type"] == "object"

    def test_tools_in_words(self, provider: FakeProvider) -> None:
        provider.push('{"tool": "calculator", "input": {"expression": "6 * 7"}}', "42.")
        agent = agent_of(provider, native_tools=False, tools=registry.resolve(["calculator"]))
        assert agent.system_prompt.startswith(DEFAULT_SYSTEM_PROMPT)
        assert "calculator" in agent.system_prompt
        response = agent.chat("6 * 7?")
        assert (response.message, response.tool_calls[0].output) == ("42.", "42")
        assert "tools" not in provider.calls[0].body
        assert provider.calls[0].messages[0]["content"] == agent.system_prompt
        assert agent_of(provider, native_tools=False).system_prompt == DEFAULT_SYSTEM_PROMPT

    def test_a_minimal_endpoint_gets_tools_in_words_by_itself(self, provider: FakeProvider) -> None:
        agent = agent_of(provider, MINIMAL_ENDPOINT=True, tools=registry.resolve(["calculator"]))
        agent.chat("Hello")
        assert set(provider.calls[0].body) <= {
            "model",
            "messages",
            "temperature",
            "max_tokens",
            "stop",
            "stream",
        }
        with pytest.raises(ConfigError, match="native_tools"):
            agent_of(provider, MINIMAL_ENDPOINT=True, native_tools=True)

    def test_tools_must_be_a_list(self) -> None:
        with pytest.raises(TypeError, match="tools must be a list"):
            ChatAgent(tools="calculator")  # type: ignore[arg-type]

    def test_hanging_tools_do_not_use_up_the_threads(self) -> None:
        gate = threading.Event()

        def wait(arguments: dict[str, Any]) -> str:
            gate.wait(20)
            return "waited"

        async def scenario() -> None:
            agents = [
                ChatAgent(
                    tools=[DuckTool("wait", wait), DuckTool("quick", lambda arguments: "quick")],
                    llm=ScriptedModel(replies=[[ToolCall(name)], "Done."]),
                )
                for name in ["wait"] * 60 + ["quick"]
            ]
            slow = [asyncio.create_task(agent.achat("Go.")) for agent in agents[:-1]]
            await until(
                lambda: sum(thread.name == "aiforge-tool-wait" for thread in threading.enumerate()) == 60
            )
            assert (await agents[-1].achat("Go.")).message == "Done."
            gate.set()
            assert {response.message for response in await asyncio.gather(*slow)} == {"Done."}

        run(scenario())


class TestStreams:
    def test_every_stream_yields_the_text_and_leaves_the_response(self) -> None:
        model = ScriptedModel(replies=[["a", "b"]], repeat_last=True)
        agent = ChatAgent(llm=model)

        async def scenario() -> None:
            for stream in (agent.chat_stream, agent.achat_stream, agent.arun_stream):
                assert [text async for text in stream("Hello")] == ["a", "b"]
                assert agent.last_response is not None
                assert agent.last_response.message == "ab"
                assert agent.last_response.output_tokens > 0

        run(scenario())
        assert list(agent.run_stream("Hello")) == ["a", "b"]
        assert len(model.requests[-1]["messages"]) == 1 + 6 + 1

    def test_run_stream_is_lazy(self) -> None:
        model = ScriptedModel(replies=["Hello"])
        stream = ChatAgent(llm=model).run_stream("Hello")
        assert model.requests == []
        assert "".join(stream) == "Hello"

    def test_the_text_of_all_rounds_is_streamed_and_the_last_is_the_message(self) -> None:
        tool = DuckTool("look", lambda arguments: "found")
        model = ScriptedModel(replies=[["Wait. ", ToolCall("look")], "Found."])
        agent = ChatAgent(tools=[tool], llm=model)
        assert "".join(agent.run_stream("Look.")) == "Wait. Found."
        assert agent.last_response is not None
        assert agent.last_response.message == "Found."

    def test_events_end_with_the_message(self) -> None:
        tool = DuckTool("look", lambda arguments: "found")
        agent = ChatAgent(tools=[tool], llm=ScriptedModel(replies=[[ToolCall("look")], "Found."]))

        async def scenario() -> list[Any]:
            return [event async for event in agent.astream_events("Look.")]

        events = run(scenario())
        kinds = [type(event) for event in events]
        assert kinds == [UsageReport, ToolCallEvent, ToolResult, Token, UsageReport, Message]
        assert events[-1] == Message("Found.")

    def test_a_failure_is_an_event_and_an_exception(self) -> None:
        agent = ChatAgent(llm=ScriptedModel(replies=[["Hel", RateLimitError("slow down")]]))
        events: list[Any] = []

        async def scenario() -> None:
            async with aclosing(agent.astream_events("Hello")) as stream:
                async for event in stream:
                    events.append(event)  # noqa: PERF401  # the stream raises, and what came before counts

        with pytest.raises(RateLimitError):
            run(scenario())
        assert isinstance(events[-1], Error)
        assert (events[-1].code, events[-1].retryable) == ("rate_limited", True)

    def test_a_stream_that_is_left_closes_the_connection_and_keeps_what_was_seen(
        self, provider: FakeProvider
    ) -> None:
        provider.push(Reply(chunks=["one", " two", Gate("never")]), "fine")
        heard: list[Any] = []
        agent = agent_of(provider, on_event=heard.append)

        async def scenario() -> None:
            async for _ in agent.chat_stream("Tell me."):
                break
            gc.collect()
            assert (await agent.achat("Again.")).message == "fine"

        run(scenario())
        assert provider.calls[1].messages[1:] == [
            {"role": "user", "content": "Tell me."},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "Again."},
        ]
        assert agent.history()[1] == {"role": "assistant", "content": "one", "stopped": True}
        assert [event for event in heard if isinstance(event, Message)] == [
            Message("one", stopped=True),
            Message("fine"),
        ]
        assert agent.cost_tracker.calls == 2
        stream = agent.run_stream("Once more.")
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert agent.cost_tracker.calls == 3

    def test_a_cancelled_reader_has_seen_what_it_has_seen(self, provider: FakeProvider) -> None:
        provider.push(Reply(chunks=["one", " two", Gate("never")]), "fine")
        agent = agent_of(provider)
        seen: list[Any] = []

        async def read() -> None:
            async for event in agent.astream_events("Tell me."):
                seen.append(event)  # noqa: PERF401  # it is cancelled, and what came before counts

        async def scenario() -> None:
            task = asyncio.create_task(read())
            await until(lambda: len(seen) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: provider.calls.running == 0)

        run(scenario())
        assert seen == [Token("one"), Token(" two")]
        assert agent.history()[1:] == [{"role": "assistant", "content": "one two", "stopped": True}]

    @pytest.mark.parametrize("chunks", [[], [" "], ["\n", " "]])
    def test_a_stream_that_is_left_before_there_is_a_word_leaves_no_trace(
        self, provider: FakeProvider, chunks: list[str]
    ) -> None:
        provider.push(Reply(chunks=[*chunks, Gate("never")]))
        agent = agent_of(provider)

        async def scenario() -> None:
            async with aclosing(agent.chat_stream("Tell me.")) as stream:
                for _ in chunks:
                    await anext(stream)
                reading = asyncio.ensure_future(anext(stream))
                await until(lambda: len(provider.calls) == 1)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

        run(scenario())
        assert agent.history() == []

    def test_an_error_of_any_kind_is_an_event(self) -> None:
        def hook(event: Any) -> None:
            raise LookupError("mine")

        agent = ChatAgent(llm=ScriptedModel(replies=["ok"]), on_event=hook)
        seen: list[Any] = []

        async def scenario() -> None:
            async for event in agent.astream_events("Hello"):
                seen.append(event)  # noqa: PERF401  # the stream raises, and what came before counts

        with pytest.raises(LookupError):
            run(scenario())
        assert seen[-1] == Error("internal_error", "LookupError: mine")

    def test_cancelling_closes_the_connection(self, provider: FakeProvider) -> None:
        provider.push(Reply(instead="silence"), "fine")
        agent = agent_of(provider)

        async def scenario() -> None:
            task = asyncio.create_task(agent.achat("Hello"))
            await until(lambda: len(provider.calls) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: provider.calls.running == 0)
            assert (await agent.achat("Again.")).message == "fine"

        run(scenario())
        assert len(provider.calls[1].messages) == 2


class TestConcurrency:
    def test_turns_of_one_agent_run_in_the_order_in_which_they_came(self) -> None:
        model = ScriptedModel(replies=["ok"], repeat_last=True)
        agent = ChatAgent("s", llm=model)

        async def scenario() -> None:
            await asyncio.gather(*(agent.achat(f"m{n}") for n in range(8)))

        run(scenario())
        assert [text for text in asked(model) if text.startswith("m")] == [f"m{n}" for n in range(8)]

    def test_a_cancelled_waiter_leaves_the_line(self) -> None:
        model = ScriptedModel(replies=["ok"], repeat_last=True)
        agent = ChatAgent("s", llm=model)

        async def scenario() -> None:
            stream = agent.chat_stream("first")
            await anext(stream)
            second, third = (asyncio.create_task(agent.achat(text)) for text in ("second", "third"))
            await asyncio.sleep(0)
            second.cancel()
            assert [text async for text in stream] == []
            assert (await third).message == "ok"
            assert second.cancelled()

        run(scenario())
        assert asked(model) == ["s", "first", "ok", "third"]

    def test_many_agents_are_as_many_requests(self, provider: FakeProvider) -> None:
        count = 500
        provider.extend(Script(default=Reply(chunks=["x", Gate("all"), "y"])))

        async def scenario() -> None:
            agents = [agent_of(provider) for _ in range(count)]
            tasks = [asyncio.create_task(agent.achat("Go.")) for agent in agents]
            await until(lambda: provider.calls.peak_concurrency == count)
            provider.open("all")
            assert {response.message for response in await asyncio.gather(*tasks)} == {"xy"}

        run(scenario())

    def test_sync_methods_work_from_threads_and_inside_a_running_loop(self) -> None:
        model = ScriptedModel(replies=["ok"], repeat_last=True)
        agent = ChatAgent(llm=model)
        with ThreadPoolExecutor(8) as threads:
            assert {response.message for response in threads.map(agent.chat, "abcdefgh")} == {"ok"}

        async def scenario() -> None:
            assert agent.chat("inside").message == "ok"
            assert list(agent.run_stream("inside")) == ["ok"]

        run(scenario())
        assert len(model.requests[-1]["messages"]) == 1 + 18 + 1

    def test_several_event_loops_one_after_the_other(self, provider: FakeProvider) -> None:
        agent = agent_of(provider)
        for _ in range(3):
            assert run(agent.achat("Hello")).message
        assert agent.chat("Hello").message
        assert len(provider.calls[3].messages) == 1 + 6 + 1

    @pytest.mark.parametrize("how", ["sync", "stream", "batch", "async"])
    def test_a_turn_cannot_ask_its_own_agent(self, how: str) -> None:
        """It would wait for itself, and begin when everybody has given it up."""
        agents: list[ChatAgent] = []
        ways: dict[str, Any] = {
            "sync": lambda _: agents[0].chat("ghost").message,
            "stream": lambda _: "".join(agents[0].run_stream("ghost")),
            "batch": lambda _: agents[0].run_batch(["alone"]).results[0].message,
        }

        async def ask(_: object) -> str:
            return (await agents[0].achat("ghost")).message

        model = ScriptedModel(replies=[[ToolCall("ask")], "first", "second", "third"])
        agent = ChatAgent(llm=model, tools=[DuckTool("ask", ways.get(how, ask))], TOOL_TIMEOUT=20)
        agents.append(agent)
        output = agent.chat("Hello").tool_calls[0].output
        assert output is not None
        assert ("RuntimeError: this code is part of a turn" in output) == (how != "batch")
        assert [message["content"] for message in agent.history() if message["role"] == "user"] == ["Hello"]
        assert agent.chat("Once more.").message

    def test_a_hook_and_a_dispatcher_cannot_either(self) -> None:
        refused: list[str] = []

        def ask(*_: object) -> None:
            with pytest.raises(RuntimeError) as caught:
                run(agent.achat("ghost"))
            refused.append(str(caught.value))

        async def dispatch(action: Any) -> None:
            with pytest.raises(RuntimeError) as caught:
                await agent.achat("ghost")
            refused.append(str(caught.value))

        def act(arguments: dict[str, Any]) -> str:
            ask()
            return current_request().act("mail").id

        tool = DuckTool("act", act)
        model = ScriptedModel(replies=[[ToolCall("act")], "Done.", "Bye."])
        agent = ChatAgent(llm=model, tools=[tool], actions=dispatch)
        agent.chat("Hello")
        assert len(refused) == 2
        assert all("part of a turn of this agent" in text for text in refused)
        assert agent.chat("Bye").message == "Bye."

    def test_a_reader_may_line_up_the_next_turn(self) -> None:
        agent = ChatAgent(llm=ScriptedModel(replies=[["a", "b"], "next"]))

        async def scenario() -> None:
            stream = agent.chat_stream("1")
            assert await anext(stream) == "a"
            following = asyncio.create_task(agent.achat("2"))
            assert [text async for text in stream] == ["b"]
            assert (await following).message == "next"

        run(scenario())

    def test_a_sync_method_in_an_async_tool_is_refused_where_it_would_hang(self) -> None:
        inner = ChatAgent(llm=ScriptedModel(replies=["inner"]))

        async def ask(arguments: dict[str, Any]) -> str:
            return inner.chat("Hello").message

        outer = ChatAgent(
            tools=[DuckTool("ask", ask)], llm=ScriptedModel(replies=[[ToolCall("ask")], "outer"])
        )
        assert "await its async twin" in str(outer.chat("Go.").tool_calls[0].output)

    def test_a_turn_that_a_reset_overtakes_ends_in_the_old_conversation(self) -> None:
        model = ScriptedModel(replies=["old", "new"])
        agent = ChatAgent("s", llm=model)

        async def scenario() -> None:
            async for _ in agent.chat_stream("before"):
                agent.reset()
            await agent.achat("after")

        run(scenario())
        assert asked(model) == ["s", "after"]


class TestBatch:
    def test_items_are_independent_and_in_order(self, provider: FakeProvider) -> None:
        provider.extend(Script(default=Reply(echo=True, delay=0.05)))
        agent = agent_of(provider)
        agent.chat("before")
        conversation, response = agent.conversation_id, agent.last_response
        result = agent.run_batch([f"item {n}" for n in range(30)], concurrency=7)
        assert [f'"item {n}"' in answer.message for n, answer in enumerate(result.results)] == [True] * 30
        assert not any("before" in answer.message for answer in result.results)
        assert result.failed == []
        assert 1 < provider.calls.peak_concurrency <= 7
        assert result.total_tokens == sum(r.input_tokens + r.output_tokens for r in result.results)
        assert result.total_cost == pytest.approx(sum(r.cost for r in result.results))
        assert (agent.conversation_id, agent.last_response) == (conversation, response)
        assert len({answer.conversation_id for answer in result.results}) == 30
        assert '"item 29"' in result.model_dump_json().replace("\\", "")

    def test_failures_are_named_and_cost_what_they_cost(self) -> None:
        replies = ["ok", ProviderError("refused"), "ok"]
        agent = ChatAgent(llm=ScriptedModel(replies=replies))
        result = agent.run_batch(["a", "b", "", "c"], concurrency=1)
        assert [answer.message for answer in result.results] == ["ok", "ok"]
        refused, empty = result.failed
        assert (refused.index, refused.text, refused.error_class, refused.retryable) == (
            1,
            "b",
            "ProviderError",
            False,
        )
        assert "refused" in refused.error
        assert (empty.index, empty.error_class) == (2, "ValueError")
        assert (result.priced, result.unpriced_calls) == (False, 2)

    @pytest.mark.parametrize(
        ("items", "options"),
        [
            (["a", "b"], {"max_batch": 1}),
            ([str(n) for n in range(101)], {}),
            (["a"], {"concurrency": 0}),
            (["a"], {"concurrency": "3"}),
            (["a"], {"concurrency": True}),
            (["a"], {"max_batch": None}),
            ("abc", {}),
            (None, {}),
            ((text for text in "abc"), {}),
        ],
    )
    def test_what_cannot_run_is_refused_before_anything_runs(
        self, items: Any, options: dict[str, Any]
    ) -> None:
        model = ScriptedModel()
        with pytest.raises(ValueError, match=r"items|concurrency|max_batch"):
            ChatAgent(llm=model).run_batch(items, **options)
        assert model.requests == []

    def test_whatever_ends_an_item_ends_no_other(self) -> None:
        def hook(event: Any, request: Any) -> None:
            if isinstance(event, Message) and request.message == "b":
                raise ZeroDivisionError("mine")

        agent = ChatAgent(llm=ScriptedModel(replies=["ok"], repeat_last=True), on_event=hook)
        result = agent.run_batch(["a", "b", "c"], concurrency=2)
        assert len(result.results) == 2
        (failed,) = result.failed
        assert (failed.index, failed.error_class, failed.error) == (1, "ZeroDivisionError", "mine")

    def test_an_item_that_waits_for_a_human_has_failed(self) -> None:
        class Pay(DuckTool):
            approval = True

        paid: list[Any] = []
        model = ScriptedModel(replies=[[ToolCall("pay")]], repeat_last=True)
        result = ChatAgent(llm=model, tools=[Pay("pay", paid.append)]).run_batch(["a"])
        assert (result.results, paid) == ([], [])
        (failed,) = result.failed
        assert (failed.error_class, failed.retryable) == ("ConfigError", False)
        assert "'pay' waits for a human" in failed.error

    def test_a_result_can_always_be_written(self) -> None:
        class Wordless(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        replies = [ProviderError("half \ud800"), Wordless(), "ok"]
        agent = ChatAgent(llm=ScriptedModel(replies=replies), MAX_RETRIES=0)
        result = agent.run_batch(["a\ud800", "b", "c", "d"], concurrency=1)
        assert [item.text for item in result.failed] == ["a?", "b", "c"]
        assert BatchResult.model_validate_json(result.model_dump_json()).failed == result.failed

    def test_an_empty_batch_is_an_empty_result(self) -> None:
        assert ChatAgent(llm=ScriptedModel()).run_batch([]).results == []


class Text(str):
    """What some libraries have instead of `str`, or more than it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


def test_a_subclass_of_str_is_a_text(provider: FakeProvider) -> None:
    tool = DuckTool(Text("look"), lambda arguments: Text("found"))
    tool.description = Text("Looks.")
    provider.push(Reply(tool_calls=[ToolCall("look")]), "ok", "ok")
    agent = agent_of(
        provider, system_prompt=Text("Be kind."), tools=[tool], conversation_id=Text("c"), store=MemoryStore()
    )
    agent.chat(Text("Hello"), metadata={Text("a"): Text("b")})
    assert [message["content"] for message in provider.calls[1].messages] == [
        "Be kind.",
        "Hello",
        None,
        "found",
    ]
    assert provider.calls[0].body["tools"][0]["function"]["description"] == "Looks."
    result = agent.run_batch([Text("item")])
    assert result.failed == []
    assert provider.calls[2].messages[-1]["content"] == "item"


@pytest.mark.parametrize("wrong", [MemoryStore, 5, object()])
def test_what_is_no_store_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="store must be"):
        ChatAgent(llm=ScriptedModel(), store=wrong)


class TestMemoryModes:
    def test_none_sends_only_the_message(self) -> None:
        model = ScriptedModel(replies=["ok"], repeat_last=True)
        agent = ChatAgent("s", memory="none", llm=model)
        agent.chat("one")
        agent.chat("two")
        assert asked(model) == ["s", "two"]

    def test_buffer_keeps_the_last_messages(self) -> None:
        model = ScriptedModel(replies=["ok"], repeat_last=True)
        agent = ChatAgent("s", memory_k=2, llm=model)
        for text in ("one", "two", "three"):
            agent.chat(text)
        assert asked(model) == ["s", "two", "ok", "three"]

    def test_summary_takes_the_place_of_what_is_old(self) -> None:
        model = ScriptedModel(replies=["a1", "a2", "a3", "SUMMARY", "a4"])
        agent = ChatAgent("s", memory="summary", memory_k=2, llm=model)
        for n in range(1, 4):
            agent.chat(f"q{n}")
        response = agent.chat("q4")
        summary_prompt = model.requests[3]["messages"]
        assert "at most 500 words" in summary_prompt[0]["content"]
        assert all(text in summary_prompt[1]["content"] for text in ("q1", "a1", "q2", "a2"))
        texts = asked(model)
        assert texts[0] == "s"
        assert "SUMMARY" in texts[1]
        assert texts[2:] == ["q3", "a3", "q4"]
        assert [call.purpose for call in response.calls] == ["summary", "answer"]
        assert response.input_tokens == sum(call.usage.input_tokens for call in response.calls)

    def test_the_next_summary_contains_the_one_before(self) -> None:
        def reply(messages: list[Any]) -> str:
            return "FACT: blue" if "at most 500 words" in str(messages[0].content) else "ok"

        model = ScriptedModel(replies=[reply], repeat_last=True)
        agent = ChatAgent("s", memory="summary", memory_k=1, llm=model)
        for n in range(8):
            agent.chat(f"q{n}")
        summaries = [
            request["messages"] for request in model.requests if "500 words" in str(request["messages"][0])
        ]
        assert len(summaries) > 1
        assert all("FACT: blue" in messages[1]["content"] for messages in summaries[1:])

    def test_a_failing_summary_leaves_the_history_and_is_tried_again(self) -> None:
        replies = ["a1", "a2", ProviderError("no"), "a3", " ", "a4", "SUMMARY", "a5"]
        model = ScriptedModel(replies=replies)
        agent = ChatAgent("s", memory="summary", memory_k=1, llm=model)
        for n in range(1, 5):
            assert agent.chat(f"q{n}").message == f"a{n}"
        assert agent.failed_summaries == 2
        assert asked(model) == ["s", "q1", "a1", "q2", "a2", "q3", "a3", "q4"]
        agent.chat("q5")
        assert asked(model)[2:] == ["q4", "a4", "q5"]


def test_a_script_that_leaves_a_stream_open_ends_quietly(provider: FakeProvider) -> None:
    provider.extend(Script(default=Reply(chunks=["one", Gate("never")])))
    script = (
        "from aiforge import ChatAgent\n"
        f"agent = ChatAgent(OPENAI_BASE_URL={provider.url!r}, OPENAI_API_KEY='key')\n"
        "stream = agent.run_stream('Hello')\n"
        "print(next(stream))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "default", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("one\n", "", 0)
