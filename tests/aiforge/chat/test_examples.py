"""Every example of the chat module's document, run as it stands there, with a provider over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from aiforge import BatchResult, ChatAgent, ChatResponse, ToolCallRecord
from aiforge.core.types import APITimeoutError, ConfigError, ProviderError, RateLimitError
from aiforge.testing import FakeProvider, Reply, ToolCall, failure, rate_limited
from tests.aiforge.chat.support import run


@pytest.fixture(autouse=True)
def vendor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeProvider]:
    """Stands where the vendor's endpoint does; nothing but the environment says so."""
    with FakeProvider(strict=True) as server:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        yield server


def contents(vendor: FakeProvider, call: int = -1) -> list[Any]:
    return [message.get("content") for message in list(vendor.calls)[call].messages]


def structured(function: Callable[..., str], name: str, description: str) -> StructuredTool:
    return StructuredTool.from_function(function, name=name, description=description)


def test_quick_start(vendor: FakeProvider) -> None:
    vendor.push("The capital of France is Paris.")
    agent = ChatAgent()
    response = agent.chat("What is the capital of France?")
    assert response.message == "The capital of France is Paris."


class TestConstructor:
    def test_custom_system_prompt(self, vendor: FakeProvider) -> None:
        agent = ChatAgent(system_prompt="You are a customer service agent for Acme Corp.")
        agent.chat("Hello!")
        assert contents(vendor) == ["You are a customer service agent for Acme Corp.", "Hello!"]

    def test_with_tools(self, vendor: FakeProvider) -> None:
        def calculate(expression: str) -> str:
            """Evaluate a math expression."""
            return {"6 * 7": "42"}[expression]

        calc_tool = structured(calculate, "calculator", "Evaluate math")
        vendor.push(Reply(tool_calls=[ToolCall("calculator", {"expression": "6 * 7"})]), "42.")
        agent = ChatAgent(tools=[calc_tool])
        assert agent.tools == [calc_tool]
        assert agent.chat("6 * 7?").tool_calls[0].output == "42"
        assert vendor.calls[0].body["tools"][0]["function"]["description"] == "Evaluate math"
        assert contents(vendor, 0)[0] == agent.system_prompt  # native tools need no instructions

    def test_summary_memory_with_gpt_4o(self, vendor: FakeProvider) -> None:
        agent = ChatAgent(memory="summary", memory_k=10, provider="openai", MODEL="gpt-4o", TEMPERATURE=0.3)
        assert (agent.memory_mode, agent.memory_k) == ("summary", 10)
        assert agent.chat("Hello!").memory_mode == "summary"
        assert (vendor.calls[0].body["model"], vendor.calls[0].body["temperature"]) == ("gpt-4o", 0.3)

    def test_quality_based_routing(self) -> None:
        high = ChatAgent(quality="high").chat("Hello!")
        low = ChatAgent(quality="low").chat("Hello!")
        assert high.model != low.model
        assert high.cost / high.output_tokens > low.cost / low.output_tokens

    def test_positional_order_is_the_documented_one(self) -> None:
        agent = ChatAgent("Prompt.", [], "summary", 3, 2, "low", "openai")
        assert (agent.system_prompt, agent.tools, agent.memory_mode) == ("Prompt.", [], "summary")
        assert (agent.memory_k, agent.max_tool_iterations) == (3, 2)
        assert agent.settings.PROVIDER == "openai"


class TestMethods:
    def test_chat(self, vendor: FakeProvider) -> None:
        vendor.push("Hello! How can I help you today?", "Sunny.", "Rain.", "Hola")
        agent = ChatAgent()
        assert agent.chat("Hello!").message == "Hello! How can I help you today?"
        agent.chat("What's the weather in NYC?")
        agent.chat("What about tomorrow?")
        assert "What's the weather in NYC?" in contents(vendor)
        translator = "You are a professional translator. Respond only with the translation."
        response = agent.chat("Translate 'hello' to Spanish", system_prompt=translator)
        assert response.message == "Hola"
        assert contents(vendor)[0] == translator
        agent.chat("And now?")
        assert contents(vendor)[0] == agent.system_prompt

    def test_achat(self, vendor: FakeProvider) -> None:
        vendor.push("Small things behave oddly.")
        response = run(ChatAgent().achat("Explain quantum computing in one sentence."))
        assert isinstance(response, ChatResponse)
        assert response.message == "Small things behave oddly."

    def test_streams(self, vendor: FakeProvider) -> None:
        agent = ChatAgent()

        async def scenario() -> list[list[str]]:
            haiku = [chunk async for chunk in agent.chat_stream("Write a haiku about Python")]
            joke = [chunk async for chunk in agent.achat_stream("Tell me a joke")]
            again = [chunk async for chunk in agent.arun_stream("Another one")]
            return [haiku, joke, again]

        vendor.push("one two three", "four five", "six seven")
        haiku, joke, again = run(scenario())
        assert ("".join(haiku), "".join(joke), "".join(again)) == ("one two three", "four five", "six seven")
        assert len(haiku) > 1
        assert all(call.body["stream"] for call in vendor.calls)

    def test_run_and_its_twins(self, vendor: FakeProvider) -> None:
        vendor.push("a", "b", "c d")
        agent = ChatAgent()
        assert agent.run("Hello", system_prompt="Be brief.").message == "a"
        assert contents(vendor)[0] == "Be brief."
        assert run(agent.arun("Hello")).message == "b"
        assert "".join(agent.run_stream("Tell me about black holes")) == "c d"

    def test_run_batch(self, vendor: FakeProvider) -> None:
        questions = ["What is AI?", "What is ML?", "What is DL?"]
        for question in questions:
            vendor.when(question, f"About {question}")
        batch = ChatAgent().run_batch(questions, concurrency=3)
        assert isinstance(batch, BatchResult)
        assert [r.message[:80] for r in batch.results] == [f"About {question}" for question in questions]
        assert batch.total_cost > 0
        assert batch.total_tokens > 0
        assert batch.failed == []
        assert all(len(call.messages) == 2 for call in vendor.calls)

    def test_reset(self, vendor: FakeProvider) -> None:
        agent = ChatAgent()
        first = agent.conversation_id
        agent.chat("Remember: my name is Alice")
        agent.chat("What's my name?")
        assert len(contents(vendor)) == 4
        agent.reset()
        agent.chat("What's my name?")
        assert contents(vendor) == [agent.system_prompt, "What's my name?"]
        assert agent.conversation_id != first


class TestResponses:
    def test_chat_response(self, vendor: FakeProvider) -> None:
        vendor.push("2 + 2 = 4")
        response = ChatAgent().chat("What is 2+2?")
        assert (response.message, response.to_text()) == ("2 + 2 = 4", "2 + 2 = 4")
        assert len(response.conversation_id) == len(response.trace_id) == 16
        assert (response.tool_calls, response.iterations, response.memory_mode) == ([], 0, "buffer")
        assert response.cost > 0
        assert response.input_tokens > 0
        assert response.output_tokens > 0
        assert response.model == "gpt-4o-mini"
        assert response.latency_ms > 0

    def test_tool_call_record(self, vendor: FakeProvider) -> None:
        calculator = structured(lambda expression: "212.4915", "calculator", "Evaluate math")
        expression = {"expression": "249.99 * 0.85"}
        vendor.push(Reply(tool_calls=[ToolCall("calculator", expression)]), "$212.49")
        (record,) = ChatAgent(tools=[calculator]).chat("What's 15% off $249.99?").tool_calls
        assert (record.tool, record.input, record.output) == ("calculator", expression, "212.4915")
        assert record.to_text() == "calculator({'expression': '249.99 * 0.85'}) → 212.4915"
        assert ToolCallRecord(tool="x").output is None


class TestMemory:
    def test_buffer(self, vendor: FakeProvider) -> None:
        agent = ChatAgent(memory="buffer", memory_k=10)
        for number in range(9):
            agent.chat(f"message {number}")
        sent = vendor.calls[-1].messages
        assert [message["role"] for message in sent[:2]] == ["system", "user"]
        assert len(sent) == 1 + 10 + 1
        assert sent[-1]["content"] == "message 8"

    def test_summary(self, vendor: FakeProvider) -> None:
        vendor.when("<conversation>", "They counted.")
        agent = ChatAgent(memory="summary", memory_k=10)
        for number in range(12):
            agent.chat(f"message {number}")
        sent = vendor.calls[-1].messages
        assert [message["role"] for message in sent[:3]] == ["system", "system", "user"]
        assert "They counted." in sent[1]["content"]
        assert [message["content"] for message in sent if message["role"] == "user"] == [
            f"message {number}" for number in range(6, 12)
        ]

    def test_none(self, vendor: FakeProvider) -> None:
        agent = ChatAgent(memory="none")
        agent.chat("one")
        agent.chat("two")
        assert contents(vendor) == [agent.system_prompt, "two"]


class TestToolUse:
    def agent(self) -> ChatAgent:
        def get_weather(city: str) -> str:
            """Get the current weather for a city."""
            return f"72°F and sunny in {city}"

        def search_docs(query: str) -> str:
            """Search internal documentation."""
            return f"Found 3 results for '{query}'"

        weather_tool = structured(get_weather, "weather", "Get current weather for a city")
        search_tool = structured(search_docs, "search", "Search internal documentation")
        return ChatAgent(
            system_prompt="You are a helpful assistant with access to weather and doc search.",
            tools=[weather_tool, search_tool],
            max_tool_iterations=3,
        )

    def test_one_call(self, vendor: FakeProvider) -> None:
        asks = Reply(tool_calls=[ToolCall("weather", {"city": "San Francisco"}, id="call_a")])
        vendor.push(asks, "It's 72°F and sunny in San Francisco!")
        response = self.agent().chat("What's the weather in San Francisco?")
        assert response.message == "It's 72°F and sunny in San Francisco!"
        assert response.iterations == 1
        output = "72°F and sunny in San Francisco"
        assert response.tool_calls == [
            ToolCallRecord(tool="weather", input={"city": "San Francisco"}, output=output)
        ]
        assert vendor.calls[1].messages[-1] == {"role": "tool", "tool_call_id": "call_a", "content": output}

    def test_a_chain(self, vendor: FakeProvider) -> None:
        vendor.push(
            Reply(tool_calls=[ToolCall("weather", {"city": "NYC"})]),
            Reply(tool_calls=[ToolCall("search", {"query": "umbrellas"})]),
            "Rain, and three results.",
        )
        response = self.agent().chat("What's the weather in NYC and find docs about umbrellas")
        assert (response.iterations, len(response.tool_calls)) == (2, 2)


class TestPromptResolution:
    def test_the_order(self, vendor: FakeProvider, tmp_path: Path) -> None:
        (tmp_path / "aiforge.yaml").write_text('chat:\n  system_prompt: "From the file."\n')
        assert ChatAgent().system_prompt == "From the file."
        agent = ChatAgent(system_prompt="From the constructor.")
        agent.chat("a")
        assert contents(vendor)[0] == "From the constructor."
        agent.chat("b", system_prompt="From the call.")
        assert contents(vendor)[0] == "From the call."
        (tmp_path / "aiforge.yaml").unlink()
        assert ChatAgent().system_prompt == (
            "You are a helpful AI assistant. Answer questions clearly and concisely. "
            "If you don't know something, say so honestly."
        )


class TestFullExamples:
    def test_basic_conversation(self, vendor: FakeProvider) -> None:
        agent = ChatAgent(system_prompt="You are a friendly coding tutor.", memory="buffer", memory_k=30)
        costs = [
            agent.chat("What's a list comprehension in Python?").cost,
            agent.chat("Show me an example with filtering").cost,
            agent.chat("How is that different from a generator expression?").cost,
        ]
        assert len(contents(vendor)) == 1 + 4 + 1
        assert agent.cost_tracker.session_total == pytest.approx(sum(costs))
        assert f"${agent.cost_tracker.session_total:.4f}".startswith("$0.")

    def test_tool_augmented_agent(self, vendor: FakeProvider) -> None:
        def lookup_order(order_id: str) -> str:
            """Look up an order by ID."""
            return f"Order {order_id}: shipped, arriving March 28"

        def cancel_order(order_id: str) -> str:
            """Cancel an order."""
            return f"Order {order_id} has been cancelled. Refund in 3-5 days."

        agent = ChatAgent(
            system_prompt="You are a customer service agent for ShopCo.",
            tools=[
                structured(lookup_order, "lookup_order", "Look up order status by ID"),
                structured(cancel_order, "cancel_order", "Cancel an order by ID"),
            ],
            max_tool_iterations=3,
        )
        vendor.push(
            Reply(tool_calls=[ToolCall("lookup_order", {"order_id": "12345"})]),
            "Order #12345 has been shipped and will arrive on March 28.",
            Reply(tool_calls=[ToolCall("cancel_order", {"order_id": "12345"})]),
            "Done! Order #12345 has been cancelled.",
        )
        r = agent.chat("What's the status of order #12345?")
        assert r.tool_calls[0] == ToolCallRecord(
            tool="lookup_order",
            input={"order_id": "12345"},
            output="Order 12345: shipped, arriving March 28",
        )
        r = agent.chat("Actually, please cancel it")
        assert r.message == "Done! Order #12345 has been cancelled."
        assert len(contents(vendor)) == 1 + 4 + 3

    def test_streaming_in_an_async_app(self, vendor: FakeProvider) -> None:
        vendor.push("Requests fly, answers return")

        async def main() -> list[str]:
            agent = ChatAgent(quality="high")
            return [chunk async for chunk in agent.chat_stream("Write a short poem about APIs")]

        assert "".join(asyncio.run(main())) == "Requests fly, answers return"

    def test_synchronous_streaming(self, vendor: FakeProvider) -> None:
        vendor.push("REST has many URLs")
        agent = ChatAgent()
        assert "".join(chunk for chunk in agent.run_stream("Explain REST vs GraphQL")) == "REST has many URLs"

    def test_batch_processing(self) -> None:
        agent = ChatAgent(quality="low")
        faqs = [
            "What are your business hours?",
            "How do I reset my password?",
            "Where is my order?",
            "Do you offer refunds?",
        ]
        result = agent.run_batch(faqs, concurrency=4)
        assert len(result.results) == 4
        assert all(r.message[:60] for r in result.results)
        assert result.total_cost > 0
        assert len(result.failed) == 0

    def test_configuring_via_yaml(self, vendor: FakeProvider, tmp_path: Path) -> None:
        document = 'PROVIDER: "openai"\nMODEL: "gpt-4o-mini"\nTEMPERATURE: 0.7\n'
        (tmp_path / "aiforge.yaml").write_text(document)
        response = ChatAgent().chat("Hello!")
        assert response.model == "gpt-4o-mini"
        assert vendor.calls[0].body["temperature"] == 0.7

    def test_model_override_per_agent(self, vendor: FakeProvider) -> None:
        ChatAgent(MODEL="gpt-4o", TEMPERATURE=0.3).chat("a")
        ChatAgent(MODEL="gpt-4o", TEMPERATURE=0.9).chat("b")
        ChatAgent(MODEL="gpt-4o-mini", TEMPERATURE=0.5).chat("c")
        assert [(call.body["model"], call.body["temperature"]) for call in vendor.calls] == [
            ("gpt-4o", 0.3),
            ("gpt-4o", 0.9),
            ("gpt-4o-mini", 0.5),
        ]


class TestErrors:
    @pytest.mark.parametrize(
        "options", [{"memory": "x"}, {"memory_k": 0}, {"max_tool_iterations": 0}, {"memory_k": -1}]
    )
    def test_value_errors_of_the_constructor(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            ChatAgent(**options)

    def test_an_empty_message(self, vendor: FakeProvider) -> None:
        with pytest.raises(ValueError, match="empty"):
            ChatAgent().chat("")
        assert len(vendor.calls) == 0

    @pytest.mark.parametrize(
        ("answer", "kind", "status"),
        [
            (failure(401), ProviderError, 401),
            (failure(404), ProviderError, 404),
            (failure(500), ProviderError, 500),
            (rate_limited(0.01), RateLimitError, 429),
        ],
    )
    def test_errors_of_the_provider(
        self, vendor: FakeProvider, answer: Reply, kind: type[ProviderError], status: int
    ) -> None:
        vendor.push(answer)
        with pytest.raises(kind) as caught:
            ChatAgent(MAX_RETRIES=0).chat("Hello")
        assert (caught.value.status, caught.value.provider, caught.value.model) == (
            status,
            "openai",
            "gpt-4o-mini",
        )
        assert "key" not in str(caught.value).split()

    def test_a_timeout(self, vendor: FakeProvider) -> None:
        vendor.push(Reply(instead="silence"))
        with pytest.raises(APITimeoutError):
            ChatAgent(FIRST_TOKEN_TIMEOUT=0.05, MAX_RETRIES=0).chat("Hello")

    def test_an_unknown_provider(self) -> None:
        with pytest.raises(ConfigError, match="nobody"):
            ChatAgent(provider="nobody")

    def test_rate_limits_are_provider_errors(self) -> None:
        assert issubclass(RateLimitError, ProviderError)
        assert issubclass(APITimeoutError, ProviderError)
