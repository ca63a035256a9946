"""The versions of a conversation: each turn makes one, and going back loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.servers import RedisServer
from tests.support.turns import answered, claim, crash, submit
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, InvalidInput, NotFound
from worker.contract.memory.transfer import ConversationExport
from worker.contract.schemas import ConversationChanges, ConversationSettings, StoredMessage, Summary

pytestmark = pytest.mark.anyio


async def turns(client: TurnClient, *names: str, conversation: str = "c") -> None:
    for name in names:
        await answered(client, f"q{name}", f"a{name}", conversation_id=conversation)


async def remembered(client: TurnClient, conversation: str = "c") -> list[str]:
    """The questions in memory."""
    found = await client.messages(conversation, limit=1000)
    assert [message.role for message in found] == ["user", "assistant"] * (len(found) // 2)
    return [str(message.content) for message in found[::2]]


async def test_each_turn_that_adds_messages_makes_a_version(client: TurnClient) -> None:
    first = await answered(client, "q1", "a1", conversation_id="c")
    failed = await submit(client, conversation_id="c")
    await (await claim(client.turns, failed)).fail()
    await turns(client, "2")
    found = await client.history.versions("c")
    assert [(one.version, one.kind, one.messages) for one in found] == [(1, "turn", 2), (2, "turn", 4)]
    assert found[0].turn_id == first.turn_id
    assert found[0].at <= found[1].at
    assert (await client.conversation("c")).version == 2
    assert [one.version for one in await client.history.versions("c", after=1, limit=1)] == [2]
    assert await client.history.versions("c", after=2) == []


async def test_what_was_gone_back_from_can_be_checked_out_again(client: TurnClient) -> None:
    await turns(client, "1", "2", "3")
    back = await client.history.checkout("c", 1)
    assert (back.version, back.messages) == (4, 2)
    assert await remembered(client) == ["q1"]
    await turns(client, "5")
    assert await remembered(client) == ["q1", "q5"]
    for version, wanted in (
        (3, ["q1", "q2", "q3"]),
        (5, ["q1", "q5"]),
        (4, ["q1"]),
        (0, []),
        (2, ["q1", "q2"]),
    ):
        await client.history.checkout("c", version)
        assert await remembered(client) == wanted
    found = await client.history.versions("c")
    assert [one.to for one in found] == [None, None, None, 1, None, 3, 5, 4, 0, 2]
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    assert [message.content for message in running.claim.window] == ["q1", "a1", "q2", "a2"]


async def test_a_version_that_there_is_not(client: TurnClient) -> None:
    await turns(client, "1")
    for asked in (
        client.history.checkout("c", 2),
        client.history.checkout("c", -1),
        client.history.diff("c", 0, 9),
        client.history.branch("c", version=2),
        client.history.compact("c", version=2),
        client.history.versions("nobody"),
        client.history.checkout("nobody", 0),
        client.history.branch("nobody"),
        client.history.change("nobody", ConversationChanges(model="m")),
    ):
        with pytest.raises(NotFound):
            await asked
    assert (await client.conversation("c")).version == 1


async def test_a_busy_conversation_is_not_moved(client: TurnClient) -> None:
    await turns(client, "1", "2")
    place = await submit(client, conversation_id="c")
    for _ in range(2):
        with pytest.raises(Conflict) as conflict:
            await client.history.checkout("c", 1)
        assert conflict.value.code == "conversation_busy"
        running = await claim(client.turns, place, token="t")
    await running.answer("a3")
    await client.history.checkout("c", 1)


async def test_only_one_of_two_who_saw_the_same_version_goes_back(client: TurnClient) -> None:
    await turns(client, "1", "2")
    both = await asyncio.gather(
        *(client.history.checkout("c", version, expected=2) for version in (0, 1)), return_exceptions=True
    )
    (refused,) = [one for one in both if isinstance(one, Conflict)]
    assert refused.code == "conversation_moved"
    assert (await client.conversation("c")).version == 3


async def test_a_checkout_whose_reply_was_lost_is_made_once(client: TurnClient) -> None:
    await turns(client, "1", "2")
    names = client.turns.keys.of_conversation("default", "c")
    replies = [await client.connection.run("checkout", names, [1, 2, "token"]) for _ in range(2)]
    assert replies == [[b"ok"], [b"ok"]]
    assert (await client.conversation("c")).version == 3


async def test_diff_says_what_to_take_and_what_to_add(client: TurnClient) -> None:
    await turns(client, "1", "2")
    await client.history.checkout("c", 1)
    await turns(client, "4", "5")
    diff = await client.history.diff("c", 2, 5)
    assert [message.content for message in diff.removed] == ["q2", "a2"]
    assert [message.content for message in diff.added] == ["q4", "a4", "q5", "a5"]
    back = await client.history.diff("c", 5, 2)
    assert (back.removed, back.added) == (diff.added, diff.removed)
    assert await client.history.diff("c", 1, 3) == await client.history.diff("c", 5, 5)
    assert len((await client.history.diff("c", 0, 5)).added) == 6


async def test_a_branch_goes_its_own_way(client: TurnClient) -> None:
    await client.create_conversation(ConversationSettings(model="m", memory_k=4), conversation_id="c")
    await turns(client, "1", "2")
    changes = ConversationChanges(model="n", metadata={"of": "c"})
    twin = await client.history.branch("c", version=1, new_id="d", changes=changes)
    assert (twin.conversation_id, twin.messages, twin.version, twin.baseline) == ("d", 2, 1, 1)
    assert (twin.model, twin.memory_k, twin.metadata) == ("n", 4, {"of": "c"})
    await turns(client, "9", conversation="d")
    assert await remembered(client, "d") == ["q1", "q9"]
    assert await remembered(client) == ["q1", "q2"]
    with pytest.raises(Conflict) as conflict:
        await client.history.branch("c", new_id="d")
    assert conflict.value.code == "conversation_exists"
    for wrong in (ConversationChanges(memory_k=0), ConversationChanges(tools=["none"])):
        with pytest.raises(InvalidInput):
            await client.history.branch("c", changes=wrong)
    empty = await client.history.branch("c", version=0)
    assert (empty.messages, empty.version) == (0, 0)
    await turns(client, "x", conversation=empty.conversation_id)
    assert (await client.history.checkout(empty.conversation_id, 0)).messages == 0


async def test_a_branch_may_be_made_of_what_memory_has_left(client: TurnClient) -> None:
    await turns(client, "1", "2", "3")
    await client.history.checkout("c", 1)
    twin = await client.history.branch("c", version=3)
    assert await remembered(client, twin.conversation_id) == ["q1", "q2", "q3"]


async def test_below_the_baseline_nothing_can_be_checked_out(client: TurnClient) -> None:
    await turns(client, "1", "2", "3", "4")
    folded = await client.history.compact("c", version=2)
    assert (folded.baseline, folded.version, folded.messages) == (2, 4, 8)
    found = await client.history.versions("c")
    assert [(one.version, one.kind) for one in found] == [(2, "snapshot"), (3, "turn"), (4, "turn")]
    for asked in (
        client.history.checkout("c", 1),
        client.history.diff("c", 1, 3),
        client.history.branch("c", version=0),
    ):
        with pytest.raises(Conflict) as conflict:
            await asked
        assert conflict.value.code == "version_compacted"
    await client.history.checkout("c", 2)
    assert await remembered(client) == ["q1", "q2"]
    await client.history.checkout("c", 4)
    assert await remembered(client) == ["q1", "q2", "q3", "q4"]
    twin = await client.history.branch("c", version=3)
    assert await remembered(client, twin.conversation_id) == ["q1", "q2", "q3"]
    assert (await client.history.compact("c", version=1)).baseline == 2


async def test_what_later_versions_go_back_to_is_not_folded(client: TurnClient) -> None:
    await turns(client, "1", "2", "3")
    await client.history.checkout("c", 1)
    await turns(client, "5")
    with pytest.raises(Conflict) as conflict:
        await client.history.compact("c", version=3)
    assert conflict.value.code == "version_needed"
    assert (await client.history.compact("c", keep=2)).baseline == 1
    assert (await client.history.compact("c", keep=1)).baseline == 4
    assert await remembered(client) == ["q1", "q5"]
    assert [one.version for one in await client.history.versions("c")] == [4, 5]
    await client.history.checkout("c", 4)
    assert await remembered(client) == ["q1"]
    assert (await client.history.compact("c")).baseline == 6
    await turns(client, "7")
    assert await remembered(client) == ["q1", "q7"]


async def test_compaction_gives_back_what_memory_had_left(client: TurnClient, server: RedisServer) -> None:
    await turns(client, "1", "gone")
    await client.history.checkout("c", 1)
    name = client.turns.keys.history("default", "c")
    assert b"qgone" in repr(server.ask("HGETALL", name)).encode()
    await client.history.compact("c")
    assert server.ask("HKEYS", name) == [b"3"]


async def test_a_summary_goes_back_with_its_messages(client: TurnClient) -> None:
    await client.create_conversation(ConversationSettings(memory="summary", memory_k=1), conversation_id="c")
    await turns(client, "1", "2")
    running = await claim(client.turns, await submit(client, "q3", conversation_id="c"))
    assert await client.turns.summarize(running.claim, 2, "first\nof q1")
    await running.answer("a3")
    assert not await client.turns.summarize(running.claim, 4, "too late")
    await turns(client, "4")
    assert (await client.export("c")).summary == Summary(2, "first\nof q1")
    for version, summary in ((1, None), (4, Summary(2, "first\nof q1")), (2, Summary(2, "first\nof q1"))):
        await client.history.checkout("c", version)
        assert (await client.export("c")).summary == summary
    await client.history.checkout("c", 4)
    await client.history.compact("c")
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    assert (running.claim.summary, running.claim.before, len(running.claim.window)) == ("first\nof q1", 2, 6)
    await running.answer("a")
    await client.history.compact("c")
    assert (await client.export("c")).summary == Summary(2, "first\nof q1")


async def test_an_older_summary_goes_with_the_versions_that_had_it(
    client: TurnClient, server: RedisServer
) -> None:
    await client.create_conversation(ConversationSettings(memory="summary", memory_k=1), conversation_id="c")
    await turns(client, "1")
    for number, text in ((2, "first"), (4, "second")):
        running = await claim(client.turns, await submit(client, conversation_id="c"))
        assert await client.turns.summarize(running.claim, number, text)
        await running.answer("a")
        await turns(client, "x")
        await client.history.compact("c")
    summaries = server.ask("HGETALL", client.turns.keys.history("default", "c"))
    assert b"second" in repr(summaries).encode()
    assert b"first" not in repr(summaries).encode()
    assert (await client.export("c")).summary == Summary(4, "second")


async def test_only_the_attempt_that_holds_the_turn_may_summarise(client: TurnClient) -> None:
    await turns(client, "1")
    place = await submit(client, conversation_id="c")
    dead = await claim(client.turns, place)
    await crash(client.turns, dead)
    living = await claim(client.turns, place)
    assert not await client.turns.summarize(dead.claim, 2, "late")
    assert (await client.export("c")).summary is None
    assert await client.turns.summarize(living.claim, 2, "in time")
    assert (await client.export("c")).summary == Summary(2, "in time")
    await living.answer("a")


async def test_a_claim_shows_no_more_than_some_windows_without_a_summary(client: TurnClient) -> None:
    messages = [StoredMessage(role="user", content="q"), StoredMessage(role="assistant", content="a")] * 200
    settings = ConversationSettings(memory="summary", memory_k=5)
    document = ConversationExport(conversation_id="c", created_at=1.5e9, settings=settings, messages=messages)
    await client.import_conversation(document)
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    assert (running.claim.before, len(running.claim.window)) == (280, 120)


@pytest.mark.parametrize("messages", [0, 3])
async def test_a_summary_that_cannot_be(client: TurnClient, messages: int) -> None:
    pair = [StoredMessage(role="user", content="q"), StoredMessage(role="assistant", content="a")]
    document = ConversationExport(
        conversation_id="c",
        created_at=1.5e9,
        settings=ConversationSettings(),
        messages=pair,
        summary=Summary(messages, "s"),
    )
    with pytest.raises(InvalidInput) as invalid:
        await client.import_conversation(document)
    assert invalid.value.param == "summary.messages"


async def test_a_conversation_from_before_there_were_versions(
    client: TurnClient, server: RedisServer
) -> None:
    await turns(client, "1", "2")
    keys = client.turns.keys
    server.ask("HDEL", keys.conversation("default", "c"), "head")
    server.ask("DEL", keys.history("default", "c"))
    before = await client.conversation("c")
    assert (before.version, before.baseline) == (1, 1)
    assert [(one.version, one.kind) for one in await client.history.versions("c")] == [(1, "snapshot")]
    server.ask("HDEL", keys.conversation("default", "c"), "head")
    server.ask("DEL", keys.history("default", "c"))
    await turns(client, "3")
    assert [one.messages for one in await client.history.versions("c")] == [4, 6]
    await client.history.checkout("c", 1)
    assert await remembered(client) == ["q1", "q2"]


async def test_all_of_it_lives_as_long_as_the_conversation(client: TurnClient, server: RedisServer) -> None:
    await client.create_conversation(ConversationSettings(ttl=60), conversation_id="c")
    await turns(client, "1")
    await client.history.checkout("c", 0)
    names = client.turns.keys.of_conversation("default", "c")
    assert server.ask("EXISTS", names[1]) == 0
    await client.history.checkout("c", 1)
    for name in names:
        assert 0 < server.ask("PTTL", name) <= 60_000
    place = await submit(client, conversation_id="c")
    for name in names:
        assert server.ask("PTTL", name) == -1
    await (await claim(client.turns, place)).answer("a")
    for name in names:
        assert 0 < server.ask("PTTL", name) <= 60_000


async def test_what_memory_has_left_is_erased_too(client: TurnClient, server: RedisServer) -> None:
    mark = "a-text-that-must-go"
    settings = ConversationSettings(memory="summary", memory_k=1, metadata={"note": mark})
    await client.create_conversation(settings, conversation_id="c")
    await turns(client, mark)
    running = await claim(client.turns, await submit(client, "q2", conversation_id="c"))
    await client.turns.summarize(running.claim, 2, mark)
    await running.answer(mark)
    await client.history.checkout("c", 0)
    receipt = await client.erase("c")
    assert (receipt.messages, receipt.turns) == (4, 2)
    for name in server.ask("KEYS", f"*{client.settings.namespace}:*"):
        kind = server.ask("TYPE", name)
        stored = server.ask("HGETALL", name) if kind == b"hash" else name
        assert mark.encode() not in repr(stored).encode()
        assert b":history:" not in name
    with pytest.raises(NotFound):
        await client.history.versions("c")


async def test_settings_change_side_by_side(client: TurnClient) -> None:
    settings = ConversationSettings(model="m", metadata={"a": "1", "b": "2"})
    await client.create_conversation(settings, conversation_id="c")
    changes = [
        ConversationChanges(model=None),
        ConversationChanges(memory_k=3, memory="none"),
        ConversationChanges(metadata={"a": None, "c": "3"}),
        ConversationChanges(on_busy="reject", temperature=0.5),
    ]
    await asyncio.gather(*(client.history.change("c", one) for one in changes))
    found = await client.conversation("c")
    assert (found.model, found.memory_k, found.memory, found.on_busy) == (None, 3, "none", "reject")
    assert (found.metadata, found.temperature, found.revision) == ({"b": "2", "c": "3"}, 0.5, 4)
    assert (await client.history.change("c", changes[1])).revision == 4
    with pytest.raises(Conflict) as conflict:
        await client.history.change("c", ConversationChanges(model="n"), expected=3)
    assert conflict.value.code == "conversation_changed"
    assert (await client.history.change("c", ConversationChanges(model="n"), expected=4)).model == "n"
    with pytest.raises(InvalidInput) as invalid:
        await client.history.change("c", ConversationChanges(tools=["none"]))
    assert invalid.value.param == "tools"


async def test_a_new_ttl_holds_for_all_that_is_there(client: TurnClient, server: RedisServer) -> None:
    place = await answered(client, "q", "a", conversation_id="c")
    keys = client.turns.keys
    assert (await client.history.change("c", ConversationChanges(ttl=60))).ttl == 60
    for name in (
        *keys.of_conversation("default", "c"),
        *(make(place.turn_id) for make in (keys.turn, keys.log)),
    ):
        assert 0 < server.ask("PTTL", name) <= 60_000
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    await client.history.change("c", ConversationChanges(ttl=90))
    assert server.ask("PTTL", keys.conversation("default", "c")) == -1
    await running.answer("a")
    assert 60_000 < server.ask("PTTL", keys.conversation("default", "c")) <= 90_000


async def test_pages_of_what_was_asked_for(client: TurnClient) -> None:
    for number in range(6):
        notes = {"team": "red" if number % 2 else "blue", "n": str(number)}
        await client.create_conversation(ConversationSettings(metadata=notes), conversation_id=f"c{number}")
    await submit(client, conversation_id="c3")
    await client.create_conversation(ConversationSettings(), conversation_id="plain")

    async def names(**asked: object) -> set[str]:
        page = await client.history.page(**asked)  # type: ignore[arg-type]
        assert page.next is None
        return {found.conversation_id for _, found in page.found}

    assert await names(metadata={"team": "red"}) == {"c1", "c3", "c5"}
    assert await names(metadata={"team": "red", "n": "1"}) == {"c1"}
    assert await names(busy=True) == {"c3"}
    assert await names(busy=False, metadata={"team": "red"}) == {"c1", "c5"}
    first = await client.history.page(metadata={"team": "red"}, limit=2)
    assert first.next is not None
    rest = await client.history.page(metadata={"team": "red"}, limit=2, before=first.next)
    assert rest.next is None
    together = {found.conversation_id for _, found in first.found + rest.found}
    assert together == {"c1", "c3", "c5"}
