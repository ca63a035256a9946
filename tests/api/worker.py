"""A worker of a few lines, on the contract's own store: says what the test tells it to say."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from aiforge.core.events import Done, Error, Event, Failed, Message, Token, encode
from aiforge.core.types import ProviderCall, Usage
from worker.contract.claims import Claim, new_token
from worker.contract.client import TurnClient
from worker.contract.records import TurnOutcome
from worker.contract.schemas import StoredMessage, TurnFailure, TurnState

USAGE = Usage(input_tokens=12, output_tokens=3)
COST = Decimal("0.0000036")


class Running:
    """A turn that was claimed."""

    def __init__(self, client: TurnClient, claim: Claim, model: str) -> None:
        self._client = client
        self._claim = claim
        self._model = model
        self._said = 0

    async def say(self, *events: Event) -> None:
        """Append events to the turn's log."""
        call = self._client.turns.append_call(self._claim, self._said, [encode(event) for event in events])
        assert await self._client.connection.run_many([call]) == [1]
        self._said += len(events)

    async def tokens(self, *texts: str) -> None:
        await self.say(*(Token(text) for text in texts))

    async def answer(self, text: str) -> None:
        """Commit an answer."""
        user = StoredMessage(role="user", content=self._claim.request.message)
        reply = StoredMessage(role="assistant", content=text)
        await self._finish(
            TurnState.COMPLETED,
            TurnOutcome(answer=text, model=self._model),
            messages=[user, reply],
            events=[Message(text), Done()],
        )

    async def fail(self, code: str, message: str) -> None:
        """Commit a failure."""
        await self._finish(
            TurnState.FAILED,
            TurnOutcome(error=TurnFailure(code, message)),
            events=[Error(code, message), Failed(code, message)],
        )

    async def _finish(
        self,
        state: TurnState,
        outcome: TurnOutcome,
        *,
        events: Sequence[Event],
        messages: Sequence[StoredMessage] = (),
    ) -> None:
        done = await self._client.turns.finish(
            self._claim,
            state,
            outcome,
            position=self._said,
            messages=messages,
            events=[encode(event) for event in events],
            calls=[_call(self._claim.place.turn_id, self._claim.token, self._model, outcome)],
        )
        assert done.accepted


async def claim(client: TurnClient, turn_id: str, *, model: str = "gpt-4o-mini") -> Running:
    """Take a queued turn."""
    place = await client.turns.place(turn_id)
    token = new_token()
    granted = await client.turns.claim(place, "test", _call(turn_id, token, model, None), token)
    assert isinstance(granted, Claim), granted
    return Running(client, granted, model)


def _call(turn_id: str, token: str, model: str, outcome: TurnOutcome | None) -> ProviderCall:
    return ProviderCall(
        call_id=f"{turn_id}.{token}.1",
        purpose="answer",
        provider="openai",
        model=model,
        outcome="intended" if outcome is None else "error" if outcome.error else "ok",
        usage=USAGE if outcome and not outcome.error else None,
        cost=COST if outcome and not outcome.error else None,
    )
