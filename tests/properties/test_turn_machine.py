"""Every script of a turn in any order, repeated and late, against a small model, on real servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    invariant,
    multiple,
    rule,
)

from aiforge.core.events import (
    TERMINAL_EVENTS,
    Cancelled,
    Done,
    Event,
    Failed,
    Gap,
    Message,
    Token,
    decode,
    encode,
)
from aiforge.core.types import ProviderCall
from tests.properties.machine import leased, play, sums
from tests.properties.past_rules import PastRules
from tests.properties.profiles import SOAK, SUITE
from tests.properties.turn_model import MAX_ATTEMPTS, Attempt, ModelConversation, ModelTurn
from tests.support import leaks
from tests.support.servers import RedisServer
from tests.support.turns import COST, intended, paid
from worker.contract import records
from worker.contract.claims import Claim, Refused
from worker.contract.errors import Conflict
from worker.contract.ids import shard_of
from worker.contract.memory.conversations import ConversationStore
from worker.contract.memory.history import HistoryStore
from worker.contract.places import Place, new_place
from worker.contract.readers import Reader
from worker.contract.records import TurnOutcome
from worker.contract.schemas import ConversationSettings, StoredMessage, TurnFailure, TurnRequest, TurnState
from worker.contract.server.connection import Connection
from worker.contract.settings import ContractSettings
from worker.contract.store import TurnStore

KEEP = 10
DEATH = [Failed("dead_lettered", "dead")]
ENDS: dict[TurnState, Callable[[str], list[Event]]] = {
    TurnState.COMPLETED: lambda answer: [Message(answer), Done()],
    TurnState.FAILED: lambda _answer: [Failed("provider_error", "no")],
    TurnState.CANCELLED: lambda _answer: [Cancelled()],
}
outcomes = st.sampled_from(["ok", "error", "unmade"])


class TurnMachine(PastRules):
    turns: Bundle[ModelTurn] = Bundle("turns")
    attempts: Bundle[Attempt] = Bundle("attempts")

    def __init__(self, server: RedisServer, runner: asyncio.Runner, connection: Connection) -> None:
        super().__init__(server, runner, connection)
        settings = ContractSettings(
            namespace=self.namespace, lease_seconds=60, stream_keep=KEEP, max_attempts=MAX_ATTEMPTS
        )
        self.store = TurnStore(connection, settings)
        self.past = ConversationStore(connection, settings)
        self.history = HistoryStore(self.past, frozenset(), "default")
        self.conversations = {name: ModelConversation(name) for name in "ab"}
        self.known: list[ModelTurn] = []
        self.tokens = 0

    def teardown(self) -> None:
        self.run(self.past.close())
        super().teardown()

    def place(self, turn: ModelTurn) -> Place:
        return Place(turn.turn_id, "default", turn.conversation.name)

    # what callers do

    @rule(target=turns, name=st.sampled_from("ab"))
    def submit(self, name: str) -> ModelTurn:
        conversation = self.conversations[name]
        place = new_place("default", name)
        turn = ModelTurn(place.turn_id, conversation, f"question {len(self.known)}")
        answer, _ = self.run(self.store.submit(place, TurnRequest(message=turn.message), digest="d"))
        assert answer == ("waiting" if conversation.line else "ready")
        conversation.line.append(turn)
        self.known.append(turn)
        return turn

    @rule(turn=turns)
    def submit_again(self, turn: ModelTurn) -> None:
        request = TurnRequest(message=turn.message)
        answer, seen = self.run(self.store.submit(self.place(turn), request, digest="d"))
        assert (answer, seen.state) == ("replayed", turn.state)
        with pytest.raises(Conflict):
            self.run(self.store.submit(self.place(turn), request, digest="other"))

    @rule(turn=turns)
    def cancel(self, turn: ModelTurn) -> None:
        following = self.run(self.store.cancel(self.place(turn)))
        expected = None
        if turn.state is TurnState.RUNNING:
            turn.cancel_asked = True
        elif not turn.over:
            expected = turn.end(TurnState.CANCELLED, [Cancelled()])
        assert following == (expected.turn_id if expected else None)

    @rule(turn=turns, after=st.integers(0, 30))
    def read(self, turn: ModelTurn, after: int) -> None:
        """A reader that comes after the end gets the rest, a gap for what is gone, and always the end."""
        if not turn.over:
            return
        reader = Reader(self.store.connection, self.store.keys)
        trimmed = max(0, len(turn.events) - KEEP)
        start = min(max(after, trimmed), len(turn.events) - 1)
        expected: list[tuple[int, Event]] = [(trimmed, Gap(after + 1, trimmed))] if after < trimmed else []
        expected += [(start + number, event) for number, event in enumerate(turn.events[start:], start=1)]
        assert self.run(_read(reader, turn.turn_id, after)) == expected

    # what workers do

    @rule(target=attempts, turn=turns)
    def claim(self, turn: ModelTurn) -> Any:
        self.tokens += 1
        return self.claimed(turn, f"{self.tokens:08x}")

    @rule(target=attempts, name=st.sampled_from("ab"))
    def claim_head(self, name: str) -> Any:
        head = self.conversations[name].head
        return self.claim(head) if head is not None else multiple()

    @rule(target=attempts, attempt=attempts)
    def claim_again(self, attempt: Attempt) -> Any:
        """The reply was lost, and the same call comes again, perhaps much later."""
        return self.claimed(attempt.turn, attempt.token)

    def claimed(self, turn: ModelTurn, token: str) -> Any:
        call = intended(f"{turn.turn_id}.{token}.1")
        got = self.run(self.store.claim(self.place(turn), "w", call, token))
        if turn.state is TurnState.RUNNING and turn.token == token:
            assert isinstance(got, Claim)
            assert (got.fence, got.attempt) == (turn.fence, turn.attempts)
            return multiple()
        if turn.state is not TurnState.QUEUED:
            assert got == Refused("refused", turn.state)
        elif turn.conversation.head is not turn:
            assert got == Refused("refused", "waiting")
        else:
            assert isinstance(got, Claim)
            suspect = turn.suspect
            attempt = turn.claim(token)
            assert (got.fence, got.attempt, got.suspect) == (attempt.fence, turn.attempts, suspect)
            assert [message.content for message in got.window] == turn.conversation.memory[-20:]
            return attempt
        return multiple()

    @rule(attempt=attempts, count=st.integers(0, 6), back=st.integers(0, 3))
    def append(self, attempt: Attempt, count: int, back: int) -> None:
        """Up to `back` events are said once more: the reply to them was lost."""
        position = max(0, attempt.said - back)
        events = self.words(attempt, position, position + count)
        call = self.store.append_call(self.as_claim(attempt), position, [encode(event) for event in events])
        (reply,) = self.run(self.store.connection.run_many([call]))
        assert reply == int(attempt.current)
        if attempt.current:
            new = events[attempt.said - position :]
            attempt.turn.events += new
            attempt.said += len(new)

    @rule(attempt=attempts, state=st.sampled_from(sorted(ENDS)), back=st.integers(0, 2), outcome=outcomes)
    def finish(self, attempt: Attempt, state: TurnState, back: int, outcome: str) -> None:
        turn, answer = attempt.turn, f"answer of {attempt.fence} to {attempt.turn.message}"
        position = max(0, attempt.said - back)
        ending = ENDS[state](answer)
        memory = [
            StoredMessage(role="user", content=turn.message),
            StoredMessage(role="assistant", content=answer),
        ]
        memory = memory if state is TurnState.COMPLETED else []
        done = self.run(
            self.store.finish(
                self.as_claim(attempt),
                state,
                TurnOutcome(answer=answer),
                messages=memory,
                events=[encode(event) for event in self.words(attempt, position, attempt.said) + ending],
                position=position,
                calls=self.settled(attempt, outcome),
            )
        )
        following = None
        if attempt.current:
            assert done.accepted
            following = turn.end(state, ending, answer if memory else None)
        else:
            assert done.accepted == (turn.fence == attempt.fence and turn.state is state)
            following = turn.conversation.head if done.accepted else None
        assert done.following == (following.turn_id if following else None)

    @rule(attempt=attempts, outcome=outcomes)
    def hand_back(self, attempt: Attempt, outcome: str) -> None:
        calls = self.settled(attempt, outcome)
        answer = self.run(self.store.requeue(self.place(attempt.turn), attempt.fence, calls=calls))
        if attempt.current and attempt.turn.cancel_asked:
            assert answer == ("cancel", None)
            return
        assert answer == ("queued" if attempt.current else "refused", None)
        if attempt.current:
            attempt.turn.hand_back()

    @rule(attempt=attempts, outcome=st.sampled_from(["ok", "error"]))
    def next_call(self, attempt: Attempt, outcome: str) -> None:
        """The last call ended, another one begins, perhaps long after the attempt was superseded."""
        last, following = attempt.call_id(attempt.calls), attempt.call_id(attempt.calls + 1)
        attempt.calls += 1
        attempt.turn.settle({last: outcome})
        held = attempt.turn.state is TurnState.RUNNING and attempt.turn.token == attempt.token
        attempt.turn.rows.setdefault(following, "intended" if held else "lost")
        self.run(
            self.store.ledger(
                attempt.turn.turn_id,
                "default",
                settled=[_call(last, outcome)],
                intended=[intended(following)],
            )
        )

    @rule(attempt=attempts)
    def heartbeat(self, attempt: Attempt) -> None:
        lost = self.run(self.store.heartbeat({attempt.turn.turn_id: attempt.fence}))
        assert lost == ([] if attempt.current else [attempt.turn.turn_id])
        if attempt.current:
            attempt.turn.expired = False

    # what time and the reaper do

    @rule(attempt=attempts)
    def lease_runs_out(self, attempt: Attempt) -> None:
        if attempt.current:
            attempt.turn.expired = True
            leases = self.store.keys.leases(int(attempt.turn.turn_id[:2]))
            self.server.ask("ZADD", leases, "XX", 0, attempt.turn.turn_id)

    @rule(attempt=attempts)
    def crash(self, attempt: Attempt) -> None:
        self.lease_runs_out(attempt)
        self.take_from_worker(attempt.turn)

    @rule(target=attempts, name=st.sampled_from("ab"), times=st.integers(1, 4))
    def crash_again_and_again(self, name: str, times: int) -> Any:
        """A turn that kills its workers."""
        left: list[Attempt] = []
        while (head := self.conversations[name].head) is not None and len(left) < times:
            if head.state is TurnState.QUEUED:
                self.claim(head)
            left.append(Attempt(head, head.fence, head.token or ""))
            self.crash(left[-1])
        return multiple(*left)

    @rule(turn=turns)
    def take_from_worker(self, turn: ModelTurn) -> None:
        answer = self.run(self.store.requeue(self.place(turn), None))
        if turn.state is not TurnState.RUNNING or not turn.expired:
            assert answer == ("refused", None)
            return
        assert answer == ("queued", None)
        turn.crash()

    @rule(attempt=attempts, outcome=outcomes)
    def die(self, attempt: Attempt, outcome: str) -> None:
        """The process died that the turn had to itself, perhaps long after it was given to another."""
        calls, failure = self.settled(attempt, outcome), TurnFailure("dead_lettered", "dead")
        answer, following = self.run(
            self.store.requeue(
                self.place(attempt.turn), attempt.fence, calls=calls, died=failure, events=DEATH
            )
        )
        expected = None
        if attempt.current:
            assert answer == "dead"
            expected = attempt.turn.die(list(DEATH))
        else:
            assert answer == "refused"
        assert following == (expected.turn_id if expected else None)

    @rule()
    def reap(self) -> None:
        shards = sorted({shard_of("default", name) for name in self.conversations})
        found = self.run(self.store.reap(shards, "reaper"))
        expired = {work for shard in found for work in shard.expired}
        assert expired == {turn.turn_id for turn in self.known if turn.expired}
        heads = [conversation.head for conversation in self.conversations.values()]
        ready = [turn for turn in heads if turn is not None and turn.state is TurnState.QUEUED]
        assert sum(shard.ready for shard in found) == len(ready)

    # what holds at every moment

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        seen = self.look()
        for turn in self.known:
            self.turn_is_right(seen, turn)
        for conversation in self.conversations.values():
            self.conversation_is_right(seen, conversation)
        self.totals_are_right(seen)
        held = {turn.turn_id for turn in self.known if turn.state is TurnState.RUNNING}
        assert leased(seen) == sorted(held)

    def turn_is_right(self, seen: leaks.Picture, turn: ModelTurn) -> None:
        keys = self.store.keys
        stored = seen.hashes[keys.turn(turn.turn_id)]
        counted = [int(stored.get(name, 0)) for name in ("fence", "attempts", "crashes")]
        assert stored["state"] == turn.state
        assert counted == [turn.fence, turn.attempts, turn.crashes]
        assert ("cancel" in stored) == turn.cancel_asked
        log = [decode(event) for event in seen.lists[keys.log(turn.turn_id)]]
        assert log == turn.events[-KEEP:]
        assert int(stored.get("trimmed", 0)) == len(turn.events) - len(log)
        assert sum(isinstance(event, TERMINAL_EVENTS) for event in turn.events) == int(turn.over)
        rows = seen.hashes.get(keys.ledger(turn.turn_id), {})
        assert {call_id: _row(row).outcome for call_id, row in rows.items()} == turn.rows
        if turn.state is not TurnState.RUNNING:
            assert "intended" not in turn.rows.values()

    def conversation_is_right(self, seen: leaks.Picture, conversation: ModelConversation) -> None:
        keys, line = self.store.keys, [turn.turn_id for turn in conversation.line]
        active = seen.hashes.get(keys.conversation("default", conversation.name), {}).get("active")
        assert active == (line[0] if line else None)
        assert seen.lists.get(keys.fifo("default", conversation.name), []) == line[1:]
        assert sum(turn.state is TurnState.RUNNING for turn in conversation.line) <= 1
        stored = seen.lists.get(keys.messages("default", conversation.name), [])
        messages = [msgspec.json.decode(message, type=StoredMessage) for message in stored]
        assert [message.content for message in messages] == conversation.memory
        self.past_is_right(seen, conversation)
        roles = [message.role for message in messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)

    def totals_are_right(self, seen: leaks.Picture) -> None:
        """The sums are those of the rows, to the last unit."""
        expected = Counter[str]()
        for turn in self.known:
            for outcome in turn.rows.values():
                expected[f"calls:{outcome}"] += outcome != "intended"
                expected["units"] += records.units(COST) if outcome == "ok" else 0
        found = sums(seen)
        assert {name: found[name] for name in expected} == expected

    def words(self, attempt: Attempt, first: int, end: int) -> list[Event]:
        """Events of an attempt by position: the same ones when they are said again."""
        return [Token(f"{attempt.fence}.{number} ") for number in range(first, end)]

    def settled(self, attempt: Attempt, outcome: str) -> list[ProviderCall]:
        """Every call of an attempt, the last with this outcome if it was made; the model learns of it."""
        ended = {attempt.call_id(number): "ok" for number in range(1, attempt.calls)}
        if outcome != "unmade":
            ended[attempt.call_id(attempt.calls)] = outcome
        attempt.turn.settle(ended)
        return [_call(call_id, how) for call_id, how in ended.items()]

    def as_claim(self, attempt: Attempt) -> Claim:
        """What the worker of this attempt still believes to hold."""
        return Claim(
            place=self.place(attempt.turn),
            token=attempt.token,
            fence=attempt.fence,
            attempt=1,
            suspect=False,
            waited=0.0,
            request=TurnRequest(message=attempt.turn.message),
            settings=ConversationSettings(),
            memory_k=20,
            window=[],
            log=self.store.log(attempt.turn.turn_id),
        )


def _call(call_id: str, outcome: str) -> ProviderCall:
    return paid(call_id) if outcome == "ok" else msgspec.structs.replace(intended(call_id), outcome="error")


def _row(row: str) -> ProviderCall:
    return msgspec.json.decode(row, type=ProviderCall)


async def _read(reader: Reader, turn_id: str, after: int) -> list[tuple[int, Event]]:
    try:
        return [entry async for entry in reader.events(turn_id, "default", after)]
    finally:
        await reader.close()


def test_turns(server: RedisServer) -> None:
    play(TurnMachine, server, SUITE)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_turns_at_length(server: RedisServer) -> None:
    play(TurnMachine, server, SOAK)
