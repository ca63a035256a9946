"""Every script of a batch in any order, repeated and late, against a small model, on real servers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    initialize,
    invariant,
    multiple,
    rule,
)

from aiforge.core.types import ProviderCall
from tests.properties.batch_model import ITEMS_A_SECOND, MAX_ATTEMPTS, Held, ModelBatch
from tests.properties.machine import ScriptMachine, leased, play, sums
from tests.properties.profiles import SOAK, SUITE
from tests.support import leaks
from tests.support.servers import RedisServer
from tests.support.turns import COST, USAGE, intended, paid
from worker.contract import records
from worker.contract.batches import BatchStore
from worker.contract.connection import Connection
from worker.contract.schemas import BatchItem, BatchRequest, BatchRow, BatchState
from worker.contract.settings import ContractSettings
from worker.contract.store import Refused, TurnStore


class BatchMachine(ScriptMachine):
    slices: Bundle[Held] = Bundle("slices")

    def __init__(self, server: RedisServer, runner: asyncio.Runner, connection: Connection) -> None:
        super().__init__(server, runner, connection)
        self.batch_id = ""
        self.model = ModelBatch(0, 1)
        self.tokens = 0

    @initialize(total=st.integers(1, 14), window=st.integers(1, 3))
    def submit(self, total: int, window: int) -> None:
        settings = ContractSettings(
            namespace=self.namespace, lease_seconds=60, batch_window=window, max_attempts=MAX_ATTEMPTS
        )
        self.store = BatchStore(self.connection, settings)
        self.turns = TurnStore(self.connection, settings)
        items = [BatchItem(message=f"question {number}") for number in range(total)]
        batch = self.run(self.store.create(BatchRequest(items=items), "default"))
        self.batch_id, self.model = batch.batch_id, ModelBatch(total, window)

    # what workers do

    @rule(target=slices)
    def claim(self) -> Any:
        self.tokens += 1
        token = f"{self.tokens:08x}"
        expected = self.model.next_part()
        got = self.run(self.store.claim(self.batch_id, token, intended("")))
        if isinstance(expected, str):
            assert got == Refused("refused", expected)
            return multiple()
        held = self.model.hold(expected, token)
        for index in held.items:
            self.model.calls[self.call_id(held, index)] = "intended"
        self.is_given(got, held, held.items)
        return held

    @rule(held=slices)
    def claim_again(self, held: Held) -> None:
        """The reply was lost, and the same call comes again while the slice is held."""
        if self.model.holds(held):
            got = self.run(self.store.claim(self.batch_id, held.token, intended("")))
            self.is_given(got, held, [index for index in held.items if index not in self.model.rows])

    def is_given(self, got: Any, held: Held, items: list[int]) -> None:
        assert not isinstance(got, Refused), got
        assert (got.start, got.fence, got.suspect) == (held.part.start, held.fence, held.part.suspect)
        assert [index for index, _ in got.items] == items
        assert all(item.message == f"question {index}" for index, item in got.items)

    @rule(held=slices, picks=st.sets(st.integers(0, 3)), ok=st.booleans(), over=st.booleans())
    def store_rows(self, held: Held, picks: set[int], ok: bool, over: bool) -> None:
        """Some of a slice's rows, with `over` all of them."""
        chosen = [index for number, index in enumerate(held.items) if over or number in picks]
        self.stored(held, chosen, "ok" if ok else "error", over=over)

    def stored(self, held: Held, chosen: list[int], status: Any, *, over: bool) -> None:
        model, accepted = self.model, self.model.holds(held)
        ended = [
            call_id
            for index in chosen
            for call_id in (self.call_id(held, index), self.call_id(held, index, 2))
            if call_id in model.calls or call_id.endswith(".1")
        ]
        model.settle(dict.fromkeys(ended, "ok"))
        rows = [_row(index, status) for index in chosen]
        got = self.run(
            self.store.store(
                self.batch_id,
                held.part.start,
                held.fence,
                rows,
                calls=[paid(call_id) for call_id in ended],
                over=over,
            )
        )
        assert got.accepted == accepted
        if not accepted:
            return
        for index in chosen:
            model.rows.setdefault(index, status)
        if over:
            model.free(held.part.start)
        model.end_if_done()
        assert got.state == model.state
        more = model.state is BatchState.IN_PROGRESS and (model.cursor < model.total or bool(model.redo))
        assert got.more == more

    @rule(held=slices)
    def hand_back(self, held: Held) -> None:
        model = self.model
        expected = "refused"
        if model.holds(held):
            self.forget_calls(held)
            model.free(held.part.start)
            expected = model.put_back(held.part)
        assert self.run(self.store.release(self.batch_id, held.part.start, held.fence)) == expected

    @rule(held=slices)
    def next_call(self, held: Held) -> None:
        """The first call of the first item failed, a second one begins."""
        if not self.model.holds(held) or not held.items:
            return
        first, second = (self.call_id(held, held.items[0], number) for number in (1, 2))
        self.model.settle({first: "ok"})
        self.model.calls.setdefault(second, "intended")
        self.run(self.turns.ledger(self.batch_id, settled=[paid(first)], intended=[intended(second)]))

    @rule(held=slices)
    def heartbeat(self, held: Held) -> None:
        work = f"{self.batch_id}/{held.part.start}"
        holds = self.model.holds(held)
        assert self.run(self.turns.heartbeat({work: held.fence})) == ([] if holds else [work])
        if holds:
            self.model.expired.discard(held.part.start)

    # what callers, time and the reaper do

    @rule()
    def cancel(self) -> None:
        model = self.model
        if model.state is BatchState.IN_PROGRESS:
            model.state = BatchState.CANCELLING if model.running else BatchState.CANCELLED
        assert self.run(self.store.cancel(self.batch_id, "default")).state is model.state

    @rule(held=slices)
    def lease_runs_out(self, held: Held) -> None:
        if held.part.start in self.model.running:
            self.model.expired.add(held.part.start)
            leases = self.store.keys.leases(int(self.batch_id.removeprefix("batch_")[:2]))
            self.server.ask("ZADD", leases, "XX", 0, f"{self.batch_id}/{held.part.start}")

    @rule(held=slices)
    def crash(self, held: Held) -> None:
        self.lease_runs_out(held)
        self.take_from_worker(held)

    @rule(target=slices, times=st.integers(1, 5))
    def crash_again_and_again(self, times: int) -> Any:
        """A batch whose next items kill their workers."""
        left: list[Held] = []
        for _ in range(times):
            held = self.claim()
            if isinstance(held, Held):
                self.crash(held)
                left.append(held)
        return multiple(*left)

    @rule(held=slices)
    def take_from_worker(self, held: Held) -> None:
        """The reaper's part."""
        model, start = self.model, held.part.start
        got = self.run(self.store.release(self.batch_id, start, None))
        if start not in model.running or start not in model.expired:
            assert got == "refused"
            return
        now = model.running[start]
        for index in now.part.indexes:
            for number in (1, 2):
                call_id = self.call_id(now, index, number)
                if model.calls.get(call_id) == "intended":
                    model.calls[call_id] = "lost"
        assert got == model.crash(start)

    def call_id(self, held: Held, index: int, number: int = 1) -> str:
        return f"{self.batch_id}.{held.token}.{index}.{number}"

    def forget_calls(self, held: Held) -> None:
        """What was entered and never made has no row."""
        for index in held.part.indexes:
            for number in (1, 2):
                if self.model.calls.get(self.call_id(held, index, number)) == "intended":
                    del self.model.calls[self.call_id(held, index, number)]

    # what holds at every moment

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        if not self.batch_id:
            return
        seen, keys, model = self.look(), self.store.keys, self.model
        stored = seen.hashes[keys.batch(self.batch_id)]
        assert stored["state"] == model.state
        assert [int(stored[name]) for name in ("cursor", "running", "fence")] == [
            model.cursor, len(model.running), model.fence,
        ]  # fmt: skip
        counts = Counter(model.rows.values())
        assert (int(stored["completed"]), int(stored["failed"])) == (counts["ok"], counts["error"])
        assert int(stored.get("units", 0)) == counts["ok"] * records.units(COST)
        assert seen.lists.get(keys.redo(self.batch_id), []) == [
            f"{part.start}:{part.count}:{part.crashes}" for part in model.redo
        ]
        rows = seen.hashes.get(keys.rows(self.batch_id), {})
        status = {int(index): json.loads(row)["status"] for index, row in rows.items()}
        assert status == model.rows
        held = {f"{self.batch_id}/{start}" for start in model.running}
        assert leased(seen) == sorted(held)
        assert len(seen.hashes.get(keys.slices(self.batch_id), {})) == 2 * len(held)
        self.nothing_is_lost()
        self.money_is_right(seen)

    def nothing_is_lost(self) -> None:
        """Every item has its row, or someone has it or will be given it; nobody is given one twice."""
        model = self.model
        if model.over:
            assert model.state is BatchState.CANCELLED or len(model.rows) == model.total
            return
        places = Counter[int]()
        for part in [*(held.part for held in model.running.values()), *model.redo]:
            places.update(part.indexes)
        assert all(count == 1 for count in places.values())
        if model.state is BatchState.IN_PROGRESS:
            known = {*model.rows, *places, *range(model.cursor, model.total)}
            assert known == set(range(model.total))

    def money_is_right(self, seen: leaks.Picture) -> None:
        ledger = seen.hashes.get(self.store.keys.ledger(self.batch_id), {})
        rows = {call_id: msgspec.json.decode(row, type=ProviderCall) for call_id, row in ledger.items()}
        assert {call_id: row.outcome for call_id, row in rows.items()} == self.model.calls
        running = {held.token for held in self.model.running.values()}
        open_ = {call_id.split(".")[1] for call_id, row in rows.items() if row.outcome == "intended"}
        assert open_ <= running
        spent = sums(seen)
        outcomes = Counter(row.outcome for row in rows.values())
        assert (spent["calls:ok"], spent["calls:lost"]) == (outcomes["ok"], outcomes["lost"])
        assert spent["units"] == outcomes["ok"] * records.units(COST)


def _row(index: int, status: Any) -> BatchRow:
    ok = status == "ok"
    return BatchRow(
        index=index,
        id=None,
        status=status,
        usage=USAGE if ok else None,
        cost=COST if ok else None,
        latency_ms=1000 / ITEMS_A_SECOND,
    )


def test_batches(server: RedisServer) -> None:
    play(BatchMachine, server, SUITE)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_batches_at_length(server: RedisServer) -> None:
    play(BatchMachine, server, SOAK)
