"""The ledger row by row: of a turn, a batch, a conversation and a tenant, each row once, page by page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.support.servers import RedisServer
from tests.support.slices import Sliced, kill, take
from tests.support.turns import COST, LOST, answered, claim, crash, intended, lost, paid, submit
from worker.contract.calls import rows
from worker.contract.calls.rows import Days, LedgerRow
from worker.contract.client import TurnClient
from worker.contract.errors import InvalidInput, NotFound
from worker.contract.schemas import BatchItem, BatchRequest, Caller

pytestmark = pytest.mark.anyio
TODAY = datetime.now(UTC).date()


async def pages(client: TurnClient, limit: int = 100, **asked: Any) -> list[list[LedgerRow]]:
    """All pages there are, each behind the one before it."""
    found: list[list[LedgerRow]] = []
    after = None
    while True:
        page = await client.ledger.page(after=after, limit=limit, **asked)
        found.append(page.found)
        if page.next is None:
            return found
        after = page.next


async def every(client: TurnClient, **asked: Any) -> list[LedgerRow]:
    return [row for page in await pages(client, **asked) for row in page]


async def one_batch(client: TurnClient, items: int = 3, **options: Any) -> str:
    request = BatchRequest(items=[BatchItem(message=str(number)) for number in range(items)])
    batch = await client.submit_batch(request, **options)
    for _ in range(items):
        await (await running(client, batch.batch_id)).answer_all()
        if (await client.batch(batch.batch_id, **options)).finished_at:
            break
    return batch.batch_id


async def running(client: TurnClient, batch_id: str) -> Sliced:
    taken = await take(client.batches, batch_id)
    assert isinstance(taken, Sliced)
    return taken


async def test_a_turns_rows_say_all_that_became_of_its_calls(client: TurnClient) -> None:
    dead = await claim(client.turns, await submit(client))
    place = dead.claim.place
    await crash(client.turns, dead, [lost(dead.call_id)])
    running = await claim(client.turns, place)
    second = f"{running.call_id[:-1]}2"
    failed = msgspec.structs.replace(intended(running.call_id), outcome="error", error_code="rate_limited")
    await client.turns.ledger(place.turn_id, "default", settled=[failed], intended=[intended(second)])
    summary = msgspec.structs.replace(paid(second), purpose="summary")
    await running.answer("Hi", calls=[summary])
    first, *others = await every(client, turn_id=place.turn_id)
    assert (first.call_id, first.turn_id, first.batch_id, first.index) == (
        dead.call_id, place.turn_id, None, None,
    )  # fmt: skip
    assert (first.attempt, first.outcome, first.cost) == (1, "lost", LOST)
    assert first.usage is not None
    assert first.usage.estimated
    assert [(row.call_id, row.outcome, row.error_code, row.purpose, row.cost) for row in others] == [
        (running.call_id, "error", "rate_limited", "answer", None),
        (second, "ok", None, "summary", COST),
    ]
    times = [row.at or 0 for row in (first, *others)]
    assert times == sorted(times)
    assert times[0] >= (await client.turn(place.turn_id)).created_at


async def test_a_batchs_rows_name_their_items(client: TurnClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_CHUNK", 2)
    batch_id = await one_batch(client, 9)
    found = await pages(client, 4, batch_id=batch_id)
    assert [len(page) for page in found] == [4, 4, 1]
    calls = [row for page in found for row in page]
    assert {row.index for row in calls} == set(range(9))
    assert {(row.batch_id, row.turn_id, row.attempt, row.outcome) for row in calls} == {
        (batch_id, None, 1, "ok")
    }


async def test_a_slice_that_died_is_run_in_its_next_attempt(client: TurnClient) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="Hello?")]))
    for attempt in (1, 2):
        taken = await running(client, batch.batch_id)
        assert taken.taken.attempt == attempt
        (row,) = [row for row in await every(client, batch_id=batch.batch_id) if row.outcome == "intended"]
        assert (row.attempt, row.index) == (attempt, 0)
        if attempt == 1:
            await taken.hand_back()
            taken = await running(client, batch.batch_id)
            assert taken.taken.attempt == 1
            assert await kill(client.batches, batch.batch_id, 0) == "queued"


async def test_a_conversations_rows_come_in_order_whatever_the_page(client: TurnClient) -> None:
    places = [await answered(client, "Hello?", "Hi", conversation_id="c") for _ in range(5)]
    await answered(client, "Hello?", "Hi", conversation_id="another")
    whole = [row.turn_id for row in await every(client, conversation_id="c")]
    assert sorted(whole, key=lambda name: [place.turn_id for place in places].index(name or "")) == whole
    assert len(whole) == 5
    for limit in (1, 2, 5):
        found = await pages(client, limit, conversation_id="c")
        assert [row.turn_id for page in found for row in page] == whole
        assert all(len(page) == limit for page in found[:-1])


async def test_all_rows_of_a_tenant_are_found_once(
    client: TurnClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "READ_AT_A_TIME", 3)
    monkeypatch.setattr(rows, "LOOKED_AT", 4)
    turns = {(await answered(client, "Hello?", "Hi", conversation_id=f"c{n % 7}")).turn_id for n in range(12)}
    batches = {await one_batch(client) for _ in range(2)}
    await answered(client.of(Caller("another")), "Hello?", "Hi")
    for limit in (1, 5, 100):
        found = await pages(client, limit)
        calls = [row.call_id for page in found for row in page]
        assert len(calls) == len(set(calls)) == 12 + 2 * 3
        assert {row.turn_id or row.batch_id for page in found for row in page} == turns | batches
        assert max(len(page) for page in found) <= limit
    assert len(await every(client.of(Caller("another")))) == 1


async def test_days_choose_rows(client: TurnClient) -> None:
    place = await answered(client, "Hello?", "Hi", conversation_id="c")
    yesterday, tomorrow = TODAY - timedelta(days=1), TODAY + timedelta(days=1)
    for asked in ({"turn_id": place.turn_id}, {"conversation_id": "c"}, {}):
        for days in (Days(yesterday, tomorrow), Days(yesterday, None), Days(None, tomorrow)):
            assert len(await every(client, days=days, **asked)) == 1
        for days in (Days(None, yesterday - timedelta(days=1)), Days(tomorrow + timedelta(days=1), None)):
            assert await every(client, days=days, **asked) == []


async def test_rows_of_an_older_version_are_read(client: TurnClient, server: RedisServer) -> None:
    place = await answered(client, "Hello?", "Hi")
    (call,) = await client.turns.calls(place.turn_id)
    old = msgspec.json.encode(msgspec.structs.replace(call, attempt=None, at=None))
    stored = old.replace(b',"attempt":null,"at":null', b"").decode()
    server.ask("HSET", client.turns.keys.ledger(place.turn_id), call.call_id, stored)
    (row,) = await every(client, turn_id=place.turn_id)
    assert (row.attempt, row.at, row.cost) == (None, None, COST)
    assert await every(client, turn_id=place.turn_id, days=Days(TODAY, None)) == []
    assert (await client.turn(place.turn_id)).cost == COST


async def test_rows_go_with_their_conversation(client: TurnClient) -> None:
    place = await answered(client, "Hello?", "Hi", conversation_id="c")
    await client.erase("c")
    assert await every(client) == []
    for asked in ({"turn_id": place.turn_id}, {"conversation_id": "c"}, {"batch_id": "batch_17" + "0" * 20}):
        with pytest.raises(NotFound, match="does not exist"):
            await client.ledger.page(**asked)  # type: ignore[arg-type]


async def test_what_cannot_be_asked(client: TurnClient) -> None:
    with pytest.raises(InvalidInput, match="only one of"):
        await client.ledger.page(turn_id="17" + "0" * 20, conversation_id="c")
    with pytest.raises(InvalidInput, match="behind the last day"):
        await client.ledger.page(days=Days(TODAY, TODAY - timedelta(days=1)))
    place = await answered(client.of(Caller("another")), "Hello?", "Hi")
    with pytest.raises(NotFound):
        await client.ledger.page(turn_id=place.turn_id)
