"""Submitting: stored once, ready when its conversation is idle, otherwise waiting behind the others."""

from __future__ import annotations

import pytest

from tests.support.servers import RedisServer
from tests.support.turns import Connect, answered, claim, intended, read, state, submit
from tests.support.waiting import eventually
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, Gone, NotFound
from worker.contract.places import new_place
from worker.contract.schemas import Caller, ConversationSettings, Lane, TurnRequest, TurnState

pytestmark = pytest.mark.anyio


async def depth(client: TurnClient) -> int:
    return (await client.stats()).depth[Lane.CHAT]


async def test_a_turn_is_queued_and_wakes_a_worker(client: TurnClient) -> None:
    turn = await client.submit(TurnRequest(message="Hello?", metadata={"a": "b"}, model="m"))
    assert (turn.state, turn.attempts, turn.answer, turn.cost) == (TurnState.QUEUED, 0, None, None)
    assert (turn.metadata, turn.model, turn.replayed) == ({"a": "b"}, "m", False)
    assert len(turn.conversation_id) == 16
    assert (await client.stats()).ready == 1
    await eventually(lambda: depth(client))


async def test_turns_of_a_busy_conversation_wait_without_a_wake_up(client: TurnClient) -> None:
    first = await submit(client, conversation_id="c")
    await eventually(lambda: depth(client))
    second = await submit(client, conversation_id="c")
    third = await submit(client, conversation_id="c")
    assert (await client.stats()).ready == 1
    for waiting in (second, third):
        granted = await client.turns.claim(waiting, "w", intended("call"), "token")
        assert granted == Refused("refused", "waiting")
    running = await claim(client.turns, first)
    assert (await running.answer("1")).following == second.turn_id
    running = await claim(client.turns, second)
    assert (await running.answer("2")).following == third.turn_id
    running = await claim(client.turns, third)
    assert (await running.answer("3")).following is None
    assert [message.content for message in await client.messages("c")][1::2] == ["1", "2", "3"]
    assert await depth(client) == 1


async def test_a_conversation_is_free_again_after_its_last_turn(client: TurnClient) -> None:
    await answered(client, "1", "one", conversation_id="c")
    await answered(client, "2", "two", conversation_id="c")
    assert (await client.conversation("c")).messages == 4


async def test_a_key_brings_the_same_turn_back(client: TurnClient) -> None:
    request = TurnRequest(message="Hello?")
    first = await client.submit(request, idempotency_key="k")
    again = await client.submit(request, idempotency_key="k")
    assert again.replayed
    assert (again.turn_id, again.conversation_id) == (first.turn_id, first.conversation_id)
    assert (await client.stats()).ready == 1


async def test_a_key_brings_the_answer_back(client: TurnClient) -> None:
    place = await answered(client, "Hello?", "Hi", idempotency_key="k", conversation_id="c")
    again = await client.submit(TurnRequest(message="Hello?"), idempotency_key="k", conversation_id="c")
    assert (again.turn_id, again.answer, again.replayed) == (place.turn_id, "Hi", True)
    assert (await client.conversation("c")).messages == 2


@pytest.mark.parametrize(
    ("lives", "turn_lives", "key", "remembered"),
    [(60, 86_400, "k", True), (0, 60, "k", True), (0, 86_400, "k", True), (60, 86_400, None, False)],
)
async def test_a_key_holds_for_a_day_however_soon_its_turn_is_forgotten(
    lives: int, turn_lives: int, key: str | None, remembered: bool, *, connect: Connect, server: RedisServer
) -> None:
    client = await connect(conversation_ttl_seconds=lives, turn_ttl_seconds=turn_lives)
    place = await answered(client, "Hello?", "Hi", idempotency_key=key, conversation_id="c")
    tombstone = client.turns.keys.gone(int(place.turn_id[:2]), place.turn_id)
    assert (server.ask("EXISTS", tombstone) == 1) == remembered
    if remembered:
        again = await client.submit(TurnRequest(message="Hello?"), idempotency_key=key, conversation_id="c")
        assert (again.answer, again.replayed) == ("Hi", True)
        assert 86_000_000 < server.ask("PTTL", tombstone) <= 86_400_000
        server.ask("DEL", client.turns.keys.turn(place.turn_id))  # as when its time is over
        with pytest.raises(Gone):
            await client.submit(TurnRequest(message="Hello?"), idempotency_key=key, conversation_id="c")
        assert (await client.stats()).ready == 0


async def test_a_repetition_under_a_key_wakes_again_until_the_turn_has_begun(client: TurnClient) -> None:
    """The first reply may be lost, and then nobody was told of the turn."""
    request = TurnRequest(message="Hello?")
    for _ in range(2):
        turn = await client.submit(request, idempotency_key="k", conversation_id="c")
    await eventually(lambda: woken(client, 2))
    running = await claim(client.turns, await client.turns.place(turn.turn_id))
    await client.submit(request, idempotency_key="k", conversation_id="c")
    await running.answer("Hi")
    await client.submit(request, idempotency_key="k", conversation_id="c")
    await client.submit(TurnRequest(message="And?"), conversation_id="c")
    await eventually(lambda: woken(client, 3))


async def woken(client: TurnClient, times: int) -> bool:
    return await depth(client) == times


async def test_a_key_with_another_body_is_a_conflict(client: TurnClient) -> None:
    await client.submit(TurnRequest(message="Hello?"), idempotency_key="k")
    with pytest.raises(Conflict) as conflict:
        await client.submit(TurnRequest(message="Hello!"), idempotency_key="k")
    assert conflict.value.code == "idempotency_mismatch"
    assert (await client.stats()).ready == 1


async def test_a_key_belongs_to_its_tenant_and_conversation(client: TurnClient) -> None:
    request = TurnRequest(message="Hello?")
    turns = [
        await client.submit(request, idempotency_key="k"),
        await client.of(Caller("other")).submit(request, idempotency_key="k"),
        await client.submit(request, idempotency_key="k", conversation_id="c"),
        await client.submit(request, idempotency_key="k", conversation_id="d"),
    ]
    assert len({turn.turn_id for turn in turns}) == 4
    assert not any(turn.replayed for turn in turns)


async def test_a_conversation_can_be_asked_to_exist(client: TurnClient) -> None:
    request = TurnRequest(message="Hello?")
    with pytest.raises(NotFound):
        await client.submit(request, conversation_id="c", if_not_exists="reject")
    assert (await client.stats()).ready == 0
    await client.create_conversation(ConversationSettings(), conversation_id="c")
    assert (await client.submit(request, conversation_id="c", if_not_exists="reject")).conversation_id == "c"


async def test_tenants_do_not_see_each_other(client: TurnClient) -> None:
    place = await answered(client.of(Caller("a")), "mine", "yours?", conversation_id="c")
    with pytest.raises(NotFound):
        await client.of(Caller("b")).turn(place.turn_id)
    with pytest.raises(NotFound):
        await client.of(Caller("b")).cancel(place.turn_id)
    with pytest.raises(NotFound):
        await client.of(Caller("b")).messages("c")
    with pytest.raises(NotFound):
        async for _ in client.of(Caller("b")).events(place.turn_id):
            pass


async def test_a_repeated_submit_changes_nothing(client: TurnClient) -> None:
    """The reply was lost and the connection asked again."""
    place, request = new_place("default", "c"), TurnRequest(message="Hello?")
    first, _ = await client.turns.submit(place, request, digest="d")
    again, _ = await client.turns.submit(place, request, digest="d")
    assert (first, again) == ("ready", "replayed")
    await (await claim(client.turns, place)).answer("Hi")
    assert [sequence for sequence, _ in await read(client, place)] == [1, 2, 3, 4]
    assert await state(client, place) is TurnState.COMPLETED


async def test_a_finished_turn_goes_after_its_time(connect: Connect, server: RedisServer) -> None:
    client = await connect(turn_ttl_seconds=100)
    place = await answered(client, "Hello?", "Hi", conversation_id="c")
    keys = client.turns.keys
    for name in (keys.turn(place.turn_id), keys.log(place.turn_id), keys.ledger(place.turn_id)):
        assert 99_000 < server.ask("PTTL", name) <= 100_000
    assert 0 < server.ask("PTTL", keys.messages("default", "c")) <= 2_592_000_000
