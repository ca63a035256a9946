"""A conversation leaves as one document and comes in as what it was."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from aiforge.core.content import MAX_MESSAGE_BYTES
from tests.support.proxy import Relay
from tests.support.servers import RedisServer
from tests.support.turns import Connect, answered, claim, submit
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, InvalidInput, NotFound
from worker.contract.memory.conversations import ConversationStore
from worker.contract.memory.history import HistoryStore
from worker.contract.memory.transfer import MAX_MESSAGES, MAX_STORED_BYTES, ConversationExport
from worker.contract.schemas import ConversationSettings, StoredMessage
from worker.contract.server.connection import Connection

pytestmark = pytest.mark.anyio
SETTINGS = ConversationSettings(
    system_prompt="Be brief.", memory_k=3, on_busy="reject", ttl=900, metadata={"a": "b"}, temperature=0.5
)
USER = StoredMessage(role="user", content="Refund A1")
ANSWER = StoredMessage(role="assistant", content="Done.")


def asks(*ids: str) -> StoredMessage:
    """An answer that calls a tool once for each id."""
    calls = [{"id": name, "type": "function", "function": {"name": "t", "arguments": "{}"}} for name in ids]
    return StoredMessage(role="assistant", tool_calls=calls)


def told(call_id: str | None, content: str | None = "ok") -> StoredMessage:
    return StoredMessage(role="tool", content=content, tool_call_id=call_id)


def document(*messages: StoredMessage, **fields: Any) -> ConversationExport:
    known: dict[str, Any] = {"conversation_id": "c", "created_at": 1.5e9, "settings": SETTINGS}
    return ConversationExport(**{**known, "messages": messages, **fields})


async def test_what_comes_in_is_what_went_out(client: TurnClient) -> None:
    await client.create_conversation(SETTINGS, conversation_id="c")
    await answered(client, "Hello? \u2028 😀", "Hi", conversation_id="c")
    before, exported = await client.conversation("c"), await client.export("c")
    with pytest.raises(Conflict) as conflict:
        await client.import_conversation(exported)
    assert conflict.value.code == "conversation_exists"
    await client.erase("c")
    sent = msgspec.json.decode(msgspec.json.encode(exported), type=ConversationExport)
    before = msgspec.structs.replace(before, baseline=1)
    assert await client.import_conversation(sent) == before
    assert await client.export("c") == exported
    assert [found for _, found in await client.conversations.latest("default", None, 100)] == [before]


async def test_a_turn_of_an_imported_conversation_is_shown_what_came_before(client: TurnClient) -> None:
    messages = [USER, asks("1", "2"), told("2"), told("1"), ANSWER]
    await client.import_conversation(document(*messages))
    place = await submit(client, "And now?", conversation_id="c")
    running = await claim(client.turns, place)
    assert running.claim.window == messages[2:]
    assert running.claim.before == 2
    assert (running.claim.settings, running.claim.memory_k) == (SETTINGS, 3)
    await running.answer("Nothing.")
    assert (await client.conversation("c")).messages == 7


async def test_an_imported_conversation_expires_like_any_other(client: TurnClient) -> None:
    await client.import_conversation(document(USER, ANSWER))
    keys = client.turns.keys
    for name in keys.of_conversation("default", "c"):
        assert 890_000 < await client.connection.command("PTTL", name) <= 900_000


async def test_a_lost_reply_is_no_conflict(client: TurnClient) -> None:
    keys = client.turns.keys
    names = [keys.conversation("default", "c"), keys.convs("default", 1), keys.messages("default", "c")]
    names[1] = keys.convs("default", int(names[0].split(":")[1][:2]))
    names.append(keys.history("default", "c"))
    arguments: list[str | int] = ["c", 1, 20, "{}", "enqueue", 0, "token", "", "buffer", 0, "", "{}"]
    assert [await client.connection.run("open", names, arguments) for _ in range(2)] == [1, 1]
    assert (await client.conversation("c")).messages == 1
    arguments[6] = "another"
    assert await client.connection.run("open", names, arguments) == 0


async def test_a_long_conversation_goes_out_in_pages_and_comes_in_whole(client: TurnClient) -> None:
    messages = [
        StoredMessage(role=role, content=f"{role} {number}")
        for number in range(1_300)
        for role in ("user", "assistant")
    ]
    await client.import_conversation(document(*messages))
    assert (await client.export("c")).messages == messages


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ([told("1")], "messages[0].tool_call_id", "belongs to no call"),
        ([USER, asks("1"), told("1"), told("1")], "messages[3].tool_call_id", "belongs to no call"),
        ([USER, asks("1"), told(None)], "messages[2].tool_call_id", "belongs to no call"),
        ([USER, asks("1", "2"), told("1"), ANSWER], "messages[3]", "stands before the result of call '2'"),
        ([USER, asks("1")], "messages", "call '1' has no result"),
        ([USER, asks("1", "1")], "messages[1].tool_calls", "an id appears twice"),
        (
            [msgspec.structs.replace(ANSWER, tool_calls=[{"id": "1"}])],
            "messages[0].tool_calls",
            "missing required field `function`",
        ),
        ([msgspec.structs.replace(asks("1"), role="user")], "messages[0].tool_calls", "only an assistant"),
        ([msgspec.structs.replace(USER, tool_call_id="1")], "messages[0].tool_call_id", "only a tool's"),
        ([msgspec.structs.replace(USER, stopped=True)], "messages[0].stopped", "only an answer"),
        ([msgspec.structs.replace(USER, turn_id="x:y")], "messages[0].turn_id", "is no turn's id"),
        ([StoredMessage(role="assistant")], "messages[0].content", "is missing"),
        ([USER, asks("1"), told("1", None)], "messages[2].content", "is missing"),
        ([msgspec.structs.replace(USER, content=" ")], "messages[0].content", "must not be empty"),
        (
            [msgspec.structs.replace(USER, content="x" * MAX_MESSAGE_BYTES)],
            "messages[0].content",
            "is longer than",
        ),
        ([msgspec.structs.replace(ANSWER, content="x" * MAX_STORED_BYTES)], "messages[0]", "is longer than"),
        ([msgspec.structs.replace(ANSWER, content="\ud800")], "messages[0]", "a lone surrogate"),
        ([USER] * (MAX_MESSAGES + 1), "messages", "at most 100000 messages"),
    ],
)
async def test_a_wrong_message_is_named_and_nothing_is_made(
    client: TurnClient, messages: list[StoredMessage], param: str, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says) as wrong:
        await client.import_conversation(document(*messages))
    assert wrong.value.param == param
    with pytest.raises(NotFound):
        await client.export("c")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"version": 2}, "version"),
        ({"created_at": 0}, "created_at"),
        ({"created_at": 9e9}, "created_at"),
        ({"created_at": float("nan")}, "created_at"),
        ({"conversation_id": "a/b"}, "conversation_id"),
        ({"settings": ConversationSettings(memory_k=0)}, "settings.memory_k"),
        ({"settings": ConversationSettings(tools=["none"])}, "settings.tools"),
    ],
)
async def test_a_wrong_field_is_named(client: TurnClient, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        await client.import_conversation(document(USER, ANSWER, **fields))
    assert wrong.value.param == param


async def test_a_long_conversation_keeps_nobody_waiting(connect: Connect, server: RedisServer) -> None:
    """To export it, to branch off it and to read it takes longer than a command may; others do not notice."""
    sound = await connect()
    words = StoredMessage(role="assistant", content="x" * 200_000)
    await sound.import_conversation(document(USER, *[words] * 10))
    async with Relay(server.port) as relay:
        url = f"redis://127.0.0.1:{relay.port}/0"
        connection = Connection(url, timeout=0.5)
        store = ConversationStore(connection, sound.settings)
        past = HistoryStore(store, frozenset(), "default")
        assert (await store.get("default", "c")).messages == 11
        relay.drip(2_500_000)
        for long in (
            store.export("default", "c"),
            store.messages("default", "c", 0, 100),
            past.branch("c", new_id="b"),
        ):
            asked = asyncio.create_task(long)
            while not asked.done():
                assert (await store.get("default", "c")).messages == 11
            await asked
        await store.close()
        await connection.close()
    assert (await sound.conversation("b")).messages == 11
