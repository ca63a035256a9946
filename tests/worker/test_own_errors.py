"""Errors of the worker's own behind the engine: they end the turn, which would else be run again for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aiforge.core.events import Failed
from aiforge.testing import FakeProvider, failure
from tests.support.certificates import Certificates
from tests.support.forks import forking
from tests.support.runners import LocalWorker
from tests.support.turns import DEAD, SUSPECT_AFTER, claim, crash, read, state, submit
from worker.contract.claims import Finished
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable
from worker.contract.schemas import BatchItem, BatchRequest, TurnState
from worker.contract.store import TurnStore

pytestmark = pytest.mark.anyio


class Broken(TurnStore):
    """Cannot commit an answer."""

    error: Exception = ValueError("no")

    async def finish(self, claim: Any, state: TurnState, *args: Any, **more: Any) -> Finished:
        if state is TurnState.COMPLETED:
            raise self.error
        return await super().finish(claim, state, *args, **more)


async def test_an_answer_that_cannot_be_committed_fails_and_the_next_turn_follows(
    client: TurnClient, provider: FakeProvider
) -> None:
    client.turns = Broken(client.connection, client.settings)
    place = await submit(client, conversation_id="c")
    following = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(place.turn_id)
    turn = await client.turn(place.turn_id)
    assert turn.error is not None
    assert (turn.state, turn.error.code, turn.attempts) == (TurnState.FAILED, "internal_error", 1)
    assert [event for _, event in await read(client, place)][-1] == Failed(
        "internal_error", turn.error.message
    )
    assert [call.outcome for call in await client.turns.calls(place.turn_id)] == ["ok"]
    assert await state(client, following) is TurnState.FAILED


async def test_a_store_that_is_away_is_no_end(
    client: TurnClient, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.patience.LONGEST_SECONDS", 0)
    client.turns = Broken(client.connection, client.settings)
    monkeypatch.setattr(Broken, "error", Unavailable("away"))
    place = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        with pytest.raises(Unavailable):
            await worker.turns.run(place.turn_id)
    assert await state(client, place) is TurnState.RUNNING


async def test_a_suspect_whose_process_cannot_even_begin_is_dead_lettered(
    client: TurnClient, provider: FakeProvider, tmp_path: Path
) -> None:
    """It would come again for ever. Here a file is gone that the worker has read at its start."""
    authority = Certificates.make(tmp_path).authority
    place = await submit(client, conversation_id="c")
    for _ in range(SUSPECT_AFTER):
        await crash(client.turns, await claim(client.turns, place))
    with forking() as (forks, _):
        async with LocalWorker(client, provider, forks=forks, CA_FILE=authority) as worker:
            authority.unlink()
            await worker.turns.run(place.turn_id)
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts, turn.error) == (TurnState.FAILED, SUSPECT_AFTER + 1, DEAD)


class Silent(TurnStore):
    """Cannot note a call before it is made."""

    async def ledger(self, *args: Any, **more: Any) -> None:
        raise Unavailable("away")


async def test_an_item_whose_calls_cannot_be_noted_goes_back_and_is_asked_later(
    client: TurnClient, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.patience.LONGEST_SECONDS", 0)
    whole, client.turns = client.turns, Silent(client.connection, client.settings)
    provider.push(failure(500))
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="q")]))
    async with LocalWorker(client, provider) as worker:
        await worker.slices.run(batch.batch_id)
    assert await client.results(batch.batch_id) == []
    client.turns = whole
    async with LocalWorker(client, provider) as worker:
        await worker.slices.run(batch.batch_id)
    done = await client.batch(batch.batch_id)
    assert (done.completed, done.failed) == (1, 0)
