"""The library's engine as the service runs it: what tools see of a turn, and what fits the window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aiforge.core.request import ChatRequest, current_request
from aiforge.core.types import ConfigError
from aiforge.modules.chat.agent import TurnSpec
from aiforge.testing import FakeProvider, Reply, ToolCall, check_messages
from tests.aiforge.chat.support import DuckTool, ListRecorder
from tests.support.runners import library
from tests.worker.test_specs import PLACE, claimed
from worker.contract.schemas import ConversationSettings, StoredMessage, TurnRequest
from worker.running import engine
from worker.running.specs import Specs

pytestmark = pytest.mark.anyio

WHO = {"tenant": "acme"}


def specified(
    provider: FakeProvider, window: list[StoredMessage] | None = None, **settings: object
) -> TurnSpec:
    request = TurnRequest(message="Hi", metadata=WHO)
    claim = claimed(request, ConversationSettings(memory_k=100), window)
    return Specs(library(provider, **settings)).of_turn(claim)


async def answered(spec: TurnSpec) -> str:
    result = await engine.answer(spec, "user-42", emit=lambda _event: None, recorder=ListRecorder())
    return result.answer


async def test_a_tool_sees_the_turn_that_it_works_for(provider: FakeProvider) -> None:
    seen: list[ChatRequest] = []

    def look(_arguments: dict[str, Any]) -> str:
        seen.append(current_request())
        return "seen"

    provider.push(Reply(tool_calls=[ToolCall("look")]), "Done.")
    spec = replace(specified(provider), tools=[DuckTool("look", look)])
    assert await answered(spec) == "Done."
    (request,) = seen
    assert (request.message, request.conversation_id, request.turn_id) == ("Hi", "user-42", PLACE.turn_id)
    assert request.metadata == WHO
    with pytest.raises(LookupError):
        current_request()


async def test_an_action_that_nobody_would_hand_on_is_refused(provider: FakeProvider) -> None:
    refusals: list[str] = []

    def act(_arguments: dict[str, Any]) -> str:
        with pytest.raises(ConfigError, match="'mail' would be lost") as refused:
            current_request().act("mail")
        refusals.append(str(refused.value))
        return "not sent"

    provider.push(Reply(tool_calls=[ToolCall("act")]), "Done.")
    spec = replace(specified(provider), tools=[DuckTool("act", act)])
    assert await answered(spec) == "Done."
    assert len(refusals) == 1


async def test_a_request_that_would_not_fit_loses_its_oldest_turns(provider: FakeProvider) -> None:
    window = [
        StoredMessage(role=role, content=f"{number} " + "x" * 800)
        for number in range(6)
        for role in ("user", "assistant")
    ]
    await answered(specified(provider, window, MAX_INPUT_TOKENS=1_500))
    (call,) = provider.calls
    check_messages(call.messages, "anthropic")
    assert 3 < len(call.messages) < len(window)
    assert call.messages[-2]["content"].startswith("5 ")
