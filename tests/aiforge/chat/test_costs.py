"""What an agent's tracker says after turns that went well, were repeated, failed or were summarised."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from aiforge import ChatAgent, CostTracker, ProviderCall, ProviderError, Usage
from aiforge.testing import Fail, FakeProvider, Reply, Report, Script, ScriptedModel, ToolCall, failure
from tests.aiforge.chat.support import DuckTool

INPUT, CACHED, OUTPUT = Decimal("2.5"), Decimal("1.25"), Decimal(10)
"""gpt-4o, USD for a million tokens."""


def price_of(usage: Usage) -> Decimal:
    plain = usage.input_tokens - usage.cached_tokens
    return (plain * INPUT + usage.cached_tokens * CACHED + usage.output_tokens * OUTPUT) / 1_000_000


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(strict=True) as server:
        yield server


def agent_of(provider: FakeProvider, **options: Any) -> ChatAgent:
    return ChatAgent(OPENAI_BASE_URL=provider.url, OPENAI_API_KEY="key", **{"MODEL": "gpt-4o", **options})


def test_tokens_are_told_apart_and_priced_exactly(provider: FakeProvider) -> None:
    usage = Usage(input_tokens=262_960, output_tokens=1_744, cached_tokens=257_955, reasoning_tokens=1_000)
    provider.push(Reply(text="Yes.", usage=usage))
    agent = agent_of(provider)
    response = agent.chat("Hello")
    tracker = agent.cost_tracker
    assert tracker.usage == usage
    assert tracker.total == price_of(usage) == Decimal("0.35239625")
    assert tracker.by_model == {"gpt-4o": 0.35239625}
    assert response.cost == tracker.session_total == 0.35239625
    assert (response.priced, response.unpriced_calls) == (True, 0)


def test_zero_usage_costs_nothing_and_missing_usage_is_estimated(provider: FakeProvider) -> None:
    provider.push(Reply(text="Yes.", usage=Usage()), Reply(text="Yes.", usage_in="none"))
    agent = agent_of(provider)
    assert agent.chat("Hello").cost == 0.0
    assert not agent.cost_tracker.usage.estimated
    assert agent.chat("Hello").cost > 0
    assert agent.cost_tracker.usage.estimated


def test_a_model_without_a_price_is_counted_and_not_hidden(provider: FakeProvider) -> None:
    agent = agent_of(provider, MODEL="no-such-model")
    response = agent.chat("Hello")
    assert (response.cost, response.priced, response.unpriced_calls) == (0.0, False, 1)
    tracker = agent.cost_tracker
    assert (tracker.unpriced_calls, tracker.total) == (1, Decimal(0))
    assert tracker.models["no-such-model"].unpriced_calls == 1
    assert tracker.usage.input_tokens == response.input_tokens > 0


def test_an_explicit_price_of_zero_is_a_price() -> None:
    agent = ChatAgent(provider="offline")
    response = agent.chat("Hello")
    assert (response.cost, response.priced) == (0.0, True)
    assert agent.cost_tracker.by_model == {"offline": 0.0}


def test_a_call_that_failed_after_it_was_paid_for_counts(provider: FakeProvider) -> None:
    first, second = Usage(input_tokens=100, output_tokens=10), Usage(input_tokens=100, output_tokens=20)
    failed = Reply(chunks=[Report(usage=first), Fail()])
    provider.push(failed, Reply(text="Yes.", usage=second))
    agent = agent_of(provider)
    assert "".join(agent.run_stream("Hello")) == "Yes."
    response = agent.last_response
    assert response is not None
    assert [call.outcome for call in response.calls] == ["error", "ok"]
    assert sum(call.cost for call in response.calls) == price_of(first) + price_of(second)
    assert agent.cost_tracker.total == price_of(first) + price_of(second)
    assert (agent.cost_tracker.calls, agent.cost_tracker.failed_calls) == (2, 1)
    assert (response.input_tokens, response.output_tokens) == (200, 30)


def test_a_failed_turn_costs_what_it_used(provider: FakeProvider) -> None:
    asked = Usage(input_tokens=50, output_tokens=5)
    provider.push(Reply(tool_calls=[ToolCall("look")], usage=asked), failure(400))
    agent = agent_of(provider, tools=[DuckTool("look", lambda arguments: "found")])
    with pytest.raises(ProviderError):
        agent.chat("Look.")
    assert agent.cost_tracker.total == price_of(asked)
    assert agent.cost_tracker.purposes["tool_round"].cost == price_of(asked)
    assert agent.cost_tracker.failed_calls == 1


def test_a_summary_is_part_of_the_turn_and_has_a_row_of_its_own(provider: FakeProvider) -> None:
    provider.when("<conversation>", "They greeted.")
    agent = agent_of(provider, memory="summary", memory_k=1)
    agent.chat("one")
    agent.chat("two")
    response = agent.chat("three")
    assert [call.purpose for call in response.calls] == ["summary", "answer"]
    assert response.cost == float(sum(call.cost for call in response.calls))
    purposes = agent.cost_tracker.purposes
    assert purposes["summary"].calls == 1
    assert purposes["summary"].cost > 0
    assert purposes["summary"].cost + purposes["answer"].cost == agent.cost_tracker.total


def test_failed_items_of_a_batch_count(provider: FakeProvider) -> None:
    used = Usage(input_tokens=10, output_tokens=1)
    cut = Reply(chunks=["x"], usage=used, status=400)
    provider.extend(Script(replies=[Reply(text="Yes.", usage=used), cut]))
    agent = agent_of(provider)
    result = agent.run_batch(["a", "b"], concurrency=1)
    assert (len(result.results), len(result.failed)) == (1, 1)
    assert result.total_cost == agent.cost_tracker.session_total == float(price_of(used))


def test_two_models_are_two_rows() -> None:
    tracker = CostTracker()
    for model, cost in (("a", "0.1"), ("b", "0.2"), ("a", "0.0000001")):
        call = ProviderCall(
            call_id="x",
            purpose="answer",
            provider="p",
            model=model,
            outcome="ok",
            usage=Usage(1, 1, reasoning_tokens=1),
            cost=Decimal(cost),
        )
        tracker.add(call)
    assert tracker.models["a"].cost == Decimal("0.1000001")
    assert tracker.by_model == {"a": 0.1000001, "b": 0.2}
    assert tracker.usage.reasoning_tokens == 3
    assert repr(tracker) == "CostTracker($0.3000001, 3 calls, 0 unpriced)"


def test_an_own_price_is_also_that_of_a_model_that_was_handed_over() -> None:
    agent = ChatAgent(llm=ScriptedModel(replies=["Yes."]), MODELS={"scripted": {"input": 1, "output": 2}})
    agent.chat("Hello")
    assert agent._model_name == "scripted"
    assert agent.cost_tracker.total > 0
    assert agent.cost_tracker.unpriced_calls == 0
