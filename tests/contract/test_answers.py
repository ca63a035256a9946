"""Answers that are kept for later batches: found while fresh, asked for by one at a time, erasable."""

from __future__ import annotations

import pytest

from tests.support.servers import RedisServer
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.contract.batch import answers
from worker.contract.batch.answers import AnswerStore, Asked, KeptAnswer, asked
from worker.contract.client import TurnClient
from worker.contract.ids import shard_of

pytestmark = pytest.mark.anyio
DAY = 86_400
SAID = KeptAnswer(model="m", answer="line one\u2028line\u0085two \x00 \U0001f600")
QUESTION = asked("default", "item", "Where is it?", 0.0)


@pytest.fixture
def store(client: TurnClient) -> AnswerStore:
    return client.answers


async def kept(store: AnswerStore, question: Asked = QUESTION, seconds: float = DAY) -> None:
    assert await store.ask(question, "a", seconds) == "ask"
    assert await store.keep(question, "a", seconds, SAID)


def test_the_same_values_are_the_same_question() -> None:
    assert asked("t", {"a": 1, "b": 2}) == asked("t", {"b": 2, "a": 1})
    different = {asked("t", "a", None), asked("t", None, "a"), asked("t", "a"), asked("u", "a", None)}
    assert len(different) == 4


async def test_an_answer_is_kept_word_for_word(store: AnswerStore) -> None:
    await kept(store)
    assert await store.ask(QUESTION, "b", DAY) == SAID


async def test_one_asks_and_the_others_wait(store: AnswerStore) -> None:
    assert await store.ask(QUESTION, "a", DAY) == "ask"
    assert await store.ask(QUESTION, "a", DAY) == "ask", "a lost reply is asked for again"
    assert await store.ask(QUESTION, "b", DAY) == "wait"
    assert not await store.keep(QUESTION, "b", DAY, SAID)
    assert await store.ask(QUESTION, "a", DAY, goes_on=True) == "ask"
    assert await store.keep(QUESTION, "a", DAY, SAID)
    assert not await store.keep(QUESTION, "a", DAY, SAID), "repeated, it changes nothing"
    assert await store.ask(QUESTION, "b", DAY) == SAID
    assert await store.ask(QUESTION, "a", DAY, goes_on=True) == "lost"


async def test_who_fails_lets_the_next_one_ask(store: AnswerStore) -> None:
    assert await store.ask(QUESTION, "a", DAY) == "ask"
    assert await store.keep(QUESTION, "a", DAY, None)
    assert await store.ask(QUESTION, "b", DAY) == "ask"


async def test_who_dies_is_waited_for_no_longer_than_a_lease(connect: Connect) -> None:
    store = (await connect(lease_seconds=0.2)).answers
    assert await store.ask(QUESTION, "a", DAY) == "ask"

    async def is_let_go() -> bool:
        return await store.ask(QUESTION, "b", DAY) == "ask"

    await eventually(is_let_go)
    assert not await store.keep(QUESTION, "a", DAY, SAID), "it was only asleep, and comes too late"
    assert await store.ask(QUESTION, "a", DAY, goes_on=True) == "lost"


async def test_an_answer_goes_when_its_time_is_over(store: AnswerStore, server: RedisServer) -> None:
    await kept(store, seconds=0.2)

    async def is_gone() -> bool:
        return not server.ask("KEYS", f"*:answer:default:{QUESTION.digest}")

    await eventually(is_gone)
    assert await store.ask(QUESTION, "b", DAY) == "ask"


async def test_an_answer_that_is_too_old_for_a_batch_is_asked_for_again(
    store: AnswerStore, server: RedisServer, client: TurnClient
) -> None:
    await kept(store)
    shard = shard_of("default", QUESTION.digest)
    name = client.batches.keys.answer("default", shard, QUESTION.digest)
    at, _, answer = server.ask("GET", name).partition(b" ")
    server.ask("SET", name, b"%d %b" % (int(at) - 60_000, answer), "KEEPTTL")
    assert await store.ask(QUESTION, "b", 3_600) == SAID
    assert await store.ask(QUESTION, "b", 30) == "ask"
    await store.keep(QUESTION, "b", 30, SAID)
    assert server.ask("PTTL", name) <= 30_000, "no longer than whoever gave it last wished"


async def test_what_is_kept_of_a_tenant_can_be_erased(
    store: AnswerStore, client: TurnClient, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "FORGOTTEN_AT_A_TIME", 2)
    questions = [asked("default", number) for number in range(60)]
    for question in [*questions, asked("other", 1)]:
        await kept(store, question)
    assert await store.ask(QUESTION, "late", DAY) == "ask"
    assert await client.forget_answers() == 60
    assert await client.forget_answers() == 0
    assert not await store.keep(QUESTION, "late", DAY, SAID), "asked before, answered after: not kept"
    assert not server.ask("KEYS", "*:default*")
    assert await store.ask(asked("other", 1), "b", DAY) == SAID


async def test_the_index_forgets_what_is_gone(store: AnswerStore, server: RedisServer) -> None:
    shard = shard_of("default", QUESTION.digest)
    near = [asked("default", number) for number in range(2_000)]
    one, other = [each for each in near if shard_of("default", each.digest) == shard][:2]
    await kept(store, one, 0.05)
    (index,) = server.ask("KEYS", f"*:{shard:02d}}}:answers:default")

    async def is_over() -> bool:
        return not server.ask("KEYS", f"*:answer:default:{one.digest}")

    await eventually(is_over)
    await kept(store, other)
    assert server.ask("ZRANGE", index, 0, -1) == [other.digest.encode()]
    assert 0 < server.ask("PTTL", index) <= DAY * 1000
