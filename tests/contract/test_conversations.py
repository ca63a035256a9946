"""Conversations and what a caller may say in one."""

from __future__ import annotations

import pytest

from aiforge.core.content import MAX_MESSAGE_BYTES
from tests.support.servers import RedisServer
from tests.support.turns import answered
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, InvalidInput, NotFound
from worker.contract.ids import shard_of
from worker.contract.schedule.schemas import ScheduleRequest
from worker.contract.schemas import (
    MAX_BATCH_ITEMS,
    BatchItem,
    BatchRequest,
    Caller,
    ConversationSettings,
    TurnRequest,
)

pytestmark = pytest.mark.anyio


async def test_a_conversation_keeps_its_settings(client: TurnClient) -> None:
    settings = ConversationSettings(system_prompt="Be brief.", model="m", memory_k=3, metadata={"a": "b"})
    made = await client.create_conversation(settings, conversation_id="user-42")
    assert (made.conversation_id, made.messages, made.memory_k) == ("user-42", 0, 3)
    assert (made.system_prompt, made.model, made.metadata) == ("Be brief.", "m", {"a": "b"})
    assert await client.conversation("user-42") == made
    await answered(client, "Hello?", "Hi", conversation_id="user-42")
    assert (await client.conversation("user-42")).messages == 2


async def test_a_conversation_is_made_once(client: TurnClient) -> None:
    await client.create_conversation(ConversationSettings(memory_k=3), conversation_id="c")
    with pytest.raises(Conflict) as conflict:
        await client.create_conversation(ConversationSettings(memory_k=4), conversation_id="c")
    assert conflict.value.code == "conversation_exists"
    assert (await client.conversation("c")).memory_k == 3
    await client.of(Caller("other")).create_conversation(
        ConversationSettings(memory_k=5), conversation_id="c"
    )
    assert (await client.of(Caller("other")).conversation("c")).memory_k == 5


async def test_issued_ids_differ(client: TurnClient) -> None:
    made = {(await client.create_conversation(ConversationSettings())).conversation_id for _ in range(20)}
    assert len(made) == 20
    assert all(len(conversation_id) == 16 for conversation_id in made)


async def test_what_does_not_exist_is_not_found(client: TurnClient) -> None:
    for asked in (client.conversation("c"), client.messages("c"), client.turn("../x"), client.turn("")):
        with pytest.raises(NotFound):
            await asked


@pytest.mark.parametrize("conversation_id", ["../x", "a:b", "*", "{tag}", "a\x00", "x" * 129, "", "a/b", "é"])
async def test_ids_that_cannot_be(client: TurnClient, conversation_id: str) -> None:
    for asked in (
        client.submit(TurnRequest(message="Hello?"), conversation_id=conversation_id),
        client.create_conversation(ConversationSettings(), conversation_id=conversation_id),
        client.conversation(conversation_id),
        client.messages(conversation_id),
    ):
        with pytest.raises(InvalidInput) as invalid:
            await asked
        assert invalid.value.param == "conversation_id"


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (TurnRequest(message=""), "message"),
        (TurnRequest(message=" \n"), "message"),
        (TurnRequest(message=[]), "message"),
        (TurnRequest(message=[{"text": "no type"}]), "message[0]"),
        (TurnRequest(message=[{"type": "text", "text": "a"}, {"type": "video"}]), "message[1].type"),
        (TurnRequest(message=[{"type": "text", "text": "", "b": [[[[[[[[[[[[[[[]]]]]]]]]]]]]]]}]), "message"),
        (TurnRequest(message="x", max_tokens=10**30), "max_tokens"),
        (TurnRequest(message="\ud800"), "message"),
        (TurnRequest(message="x" * (MAX_MESSAGE_BYTES + 1)), "message"),
        (TurnRequest(message="x", temperature=2.1), "temperature"),
        (TurnRequest(message="x", max_tokens=0), "max_tokens"),
        (TurnRequest(message="x", model=" "), "model"),
        (TurnRequest(message="x", tools=["calculator", "no_such_tool"]), "tools"),
        (TurnRequest(message=5), "message"),  # type: ignore[arg-type]
        (TurnRequest(message="x", model=5), "model"),  # type: ignore[arg-type]
        (TurnRequest(message="x", metadata={"a": 5}), "metadata[...]"),  # type: ignore[dict-item]
    ],
)
async def test_turns_that_cannot_be(client: TurnClient, request_: TurnRequest, param: str) -> None:
    with pytest.raises(InvalidInput) as invalid:
        await client.submit(request_)
    assert invalid.value.param == param


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (BatchRequest(items=[]), "items"),
        (BatchRequest(items=[BatchItem(message="x")] * (MAX_BATCH_ITEMS + 1)), "items"),
        (BatchRequest(items=[BatchItem(message="x"), BatchItem(message="")]), "items[1].message"),
        (BatchRequest(items=[BatchItem(message="x", id="a"), BatchItem(message="y", id="a")]), "items[1].id"),
        (BatchRequest(items=[BatchItem(message="x", temperature=-1)]), "items[0].temperature"),
        (BatchRequest(items=[BatchItem(message="x")], tools=["no_such_tool"]), "tools"),
    ],
)
async def test_batches_that_cannot_be(client: TurnClient, request_: BatchRequest, param: str) -> None:
    with pytest.raises(InvalidInput) as invalid:
        await client.submit_batch(request_)
    assert invalid.value.param == param


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb"])
async def test_keys_that_cannot_be(client: TurnClient, key: str) -> None:
    with pytest.raises(InvalidInput) as invalid:
        await client.submit(TurnRequest(message="Hello?"), idempotency_key=key)
    assert invalid.value.param == "idempotency_key"


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        (ConversationSettings(model=""), "model"),
        (ConversationSettings(max_tokens=10**30), "max_tokens"),
        (ConversationSettings(temperature=3), "temperature"),
        (ConversationSettings(tools=["no_such_tool"]), "tools"),
        (ConversationSettings(ttl=60.5), "ttl"),  # type: ignore[arg-type]
        (ConversationSettings(memory_k="6"), "memory_k"),  # type: ignore[arg-type]
        (ConversationSettings(memory="all"), "memory"),  # type: ignore[arg-type]
    ],
)
async def test_settings_that_cannot_be(
    client: TurnClient, settings: ConversationSettings, param: str
) -> None:
    with pytest.raises(InvalidInput) as invalid:
        await client.create_conversation(settings)
    assert invalid.value.param == param


@pytest.mark.parametrize("memory_k", [0, 1_001, -1])
async def test_windows_that_cannot_be(client: TurnClient, memory_k: int) -> None:
    with pytest.raises(InvalidInput) as invalid:
        await client.create_conversation(ConversationSettings(memory_k=memory_k))
    assert invalid.value.param == "memory_k"


async def test_messages_of_any_allowed_size_and_shape(client: TurnClient) -> None:
    parts = [{"type": "text", "text": "Hello?"}]
    await client.submit(TurnRequest(message=parts), conversation_id="c")
    await client.submit(TurnRequest(message="x" * (MAX_MESSAGE_BYTES - 2)), conversation_id="c")


async def test_a_list_holds_little_that_has_expired(client: TurnClient, server: RedisServer) -> None:
    """Also where nobody ever reads it."""
    keys, shard = client.turns.keys, shard_of("default", "c")
    names = [name for number in range(900) if shard_of("default", name := f"c{number}") == shard]
    for number, name in enumerate(names):
        if number % 3:
            await answered(client, "Hello?", "Hi", conversation_id=name)
        elif number % 2:
            await client.create_conversation(ConversationSettings(), conversation_id=name)
        else:
            schedule = ScheduleRequest(cron="0 0 1 1 *", turn=TurnRequest(message="Hi"), conversation_id=name)
            made = await client.schedules.open(schedule)
            await client.schedules.delete(made.schedule_id)
        for key in (*keys.of_conversation("default", name), keys.turns("default", name)):
            server.ask("PEXPIREAT", key, 1)
    assert len(names) > 9
    assert int(server.ask("ZCARD", keys.convs("default", shard))) <= 2


async def test_any_number_of_listed_conversations_may_have_expired(
    client: TurnClient, server: RedisServer
) -> None:
    await client.create_conversation(ConversationSettings(), conversation_id="c")
    shards: dict[int, list[str | int]] = {}
    for name in (f"gone-{number}" for number in range(4_000)):
        shards.setdefault(shard_of("default", name), []).extend((1, name))
    for shard, listed in shards.items():
        server.ask("ZADD", client.turns.keys.convs("default", shard), *listed)
    await client.create_conversation(ConversationSettings(), conversation_id="d")
    page = await client.history.page(limit=1)
    assert [found.conversation_id for _, found in page.found] == ["d"]
    rest = await client.history.page(before=page.next, limit=2)
    assert [found.conversation_id for _, found in rest.found] == ["c"]
    assert rest.next is None
    assert sum(server.ask("ZCARD", client.turns.keys.convs("default", shard)) for shard in shards) == 2
