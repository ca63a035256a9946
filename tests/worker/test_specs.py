"""From what is stored to what the engine needs: the nearest word counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aiforge.core.types import ConfigError
from aiforge.modules.chat.prompts import DEFAULT_SYSTEM_PROMPT
from aiforge.testing import FakeProvider
from tests.support.runners import library
from worker.calls.gate import ProviderGate
from worker.contract.batch.batches import Slice
from worker.contract.batch.line_schemas import LineItem
from worker.contract.calls.providers import Providers
from worker.contract.claims import Claim, Log
from worker.contract.places import Place
from worker.contract.schemas import (
    BatchItem,
    BatchRequest,
    ConversationSettings,
    StoredMessage,
    TurnRequest,
)
from worker.contract.server.connection import Connection
from worker.running.specs import Specs, stored

PLACE = Place("00" + "0" * 20, "default", "c")


def claimed(
    request: TurnRequest, settings: ConversationSettings, window: list[StoredMessage] | None = None
) -> Claim:
    log = Log([], "")
    return Claim(PLACE, "t", 1, 1, False, 0.0, request, settings, settings.memory_k, window or [], log)


def specs(provider: FakeProvider, **settings: object) -> Specs:
    return Specs(library(provider, **settings))


def test_the_turn_comes_before_its_conversation_and_that_before_the_service(provider: FakeProvider) -> None:
    made = specs(provider, SYSTEM_PROMPT="service", TEMPERATURE=0.1)
    conversation = ConversationSettings(system_prompt="conversation", model="c-model")
    turn = TurnRequest(
        message="Hello?", system_prompt="turn", model="t-model", temperature=0.9, max_tokens=5,
        tools=["calculator"], metadata={"a": "b"},
    )  # fmt: skip
    spec = made.of_turn(claimed(turn, conversation))
    assert (spec.system_prompt, spec.model_name, spec.provider) == ("turn", "t-model", "openai")
    assert (spec.params.temperature, spec.params.max_tokens) == (0.9, 5)
    assert (len(spec.tools), spec.metadata, spec.stream) == (1, {"a": "b"}, True)
    plain = made.of_turn(claimed(TurnRequest(message="Hello?"), conversation))
    assert (plain.system_prompt, plain.model_name) == ("conversation", "c-model")
    assert (plain.params.temperature, plain.tools) == (0.1, [])
    bare = made.of_turn(claimed(TurnRequest(message="Hello?"), ConversationSettings()))
    assert (bare.system_prompt, bare.model_name) == ("service", "gpt-4o-mini")
    chatty = ConversationSettings(tools=["calculator"])
    assert len(made.of_turn(claimed(TurnRequest(message="Hello?"), chatty)).tools) == 1
    assert made.of_turn(claimed(TurnRequest(message="Hello?", tools=[]), chatty)).tools == []
    default = specs(provider).of_turn(claimed(TurnRequest(message="Hello?"), ConversationSettings()))
    assert default.system_prompt == DEFAULT_SYSTEM_PROMPT


def test_models_are_made_once(provider: FakeProvider) -> None:
    made, request = specs(provider), TurnRequest(message="Hello?", model="m")
    first, second = (made.of_turn(claimed(request, ConversationSettings())) for _ in range(2))
    other = made.of_turn(claimed(msgspec.structs.replace(request, model="n"), ConversationSettings()))
    assert first.model is second.model
    assert first.model is not other.model


def test_a_window_begins_with_a_question(provider: FakeProvider) -> None:
    """Where the window cuts through a turn, its rest is left out: no result without its call."""
    call = {"id": "1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    window = [
        StoredMessage(role="assistant", tool_calls=[call], turn_id="1"),
        StoredMessage(role="tool", content="4", tool_call_id="1", name="calculator", turn_id="1"),
        StoredMessage(role="assistant", content="It is 4.", turn_id="1"),
        StoredMessage(role="user", content="Sure?", turn_id="2"),
        StoredMessage(role="assistant", content="Quite su", turn_id="2", stopped=True),
    ]
    settings = ConversationSettings(memory_k=5)
    spec = specs(provider).of_turn(claimed(TurnRequest(message="And?"), settings, window))
    assert spec.history == [
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Quite su"},
    ]


def test_an_item_comes_before_its_batch(provider: FakeProvider) -> None:
    defaults = BatchRequest(
        items=[], system_prompt="batch", model="b-model", max_tokens=7, metadata={"b": "1"}
    )
    taken = Slice("batch_00" + "0" * 20, 0, 1, False, 0.0, "t", defaults, [], "default")
    made = specs(provider)
    spec = made.of_item(taken, 0, BatchItem(message="Hello?", model="i-model", metadata={"i": "1"}))
    assert (spec.system_prompt, spec.model_name, spec.params.max_tokens) == ("batch", "i-model", 7)
    assert (spec.metadata, spec.history, spec.stream) == ({"i": "1"}, (), False)
    assert made.of_item(taken, 0, BatchItem(message="Hello?")).metadata == {"b": "1"}


def test_each_lane_has_its_own_gate(provider: FakeProvider) -> None:
    settings = library(provider)
    gate = ProviderGate(Providers(Connection("redis://127.0.0.1:1"), "n"), "process", settings, {})
    made, batch_id = Specs(settings, gate), "batch_00" + "0" * 20
    defaults = BatchRequest(endpoint="/v1/chat/completions")
    taken = Slice(batch_id, 0, 1, False, 0.0, "t", defaults, [], "default")
    assert made.of_turn(claimed(TurnRequest(message="Hello?"), ConversationSettings())).gate is gate.chats
    assert made.of_item(taken, 0, BatchItem(message="Hello?")).gate is gate.items
    assert made.of_line(taken, LineItem(id="1", body=msgspec.Raw(b'{"model":"m"}'))).gate is gate.items


def test_what_this_worker_does_not_have(provider: FakeProvider) -> None:
    with pytest.raises(ConfigError, match="no_such_tool"):
        specs(provider).of_turn(
            claimed(TurnRequest(message="Hello?", tools=["no_such_tool"]), ConversationSettings())
        )


def test_messages_are_stored_with_their_turn() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    kept = stored(messages, "turn")
    assert [(message.role, message.turn_id) for message in kept] == [
        ("user", "turn"),
        ("assistant", "turn"),
        ("tool", "turn"),
    ]
    assert kept[1].tool_calls == [call]
