"""Every script of a batch in any order, repeated and late, against a small model, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import replace
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
from tests.properties.batch_model import ITEMS_A_SECOND, MAX_ATTEMPTS, STEPS, Held, ModelBatch
from tests.properties.machine import ScriptMachine, leased, play, sums
from tests.properties.profiles import SOAK, SUITE
from tests.support import leaks
from tests.support.servers import RedisServer
from tests.support.turns import COST, USAGE, intended, paid
from worker.contract import records
from worker.contract.batch.batches import BatchStore, Slice
from worker.contract.batch.entries import repeated
from worker.contract.batch.steps import BatchSteps
from worker.contract.claims import Refused
from worker.contract.errors import Conflict
from worker.contract.schemas import BatchItem, BatchRequest, BatchRow, BatchState
from worker.contract.server.connection import Connection
from worker.contract.settings import ContractSettings
from worker.contract.store import TurnStore


class BatchMachine(ScriptMachine):
    slices: Bundle[Held] = Bundle("slices")

    def __init__(self, server: RedisServer, runner: asyncio.Runner, connection: Connection) -> None:
        super().__init__(server, runner, connection)
        self.batch_id = ""
        self.model = ModelBatch(0, 1)
        self.tokens = 0

    @initialize(
        total=st.integers(1, 14),
        window=st.integers(1, 3),
        file=st.booleans(),
        repeating=st.sets(st.integers(1, 13)),
        wrong=st.sets(st.integers(0, 13), max_size=2),
    )
    def submit(self, *, total: int, window: int, file: bool, repeating: set[int], wrong: set[int]) -> None:
        settings = ContractSettings(
            namespace=self.namespace, lease_seconds=60, batch_window=window, max_attempts=MAX_ATTEMPTS
        )
        self.store = BatchStore(self.connection, settings)
        self.turns = TurnStore(self.connection, settings)
        repeats = {index: index // 2 for index in repeating if index < total and index // 2 not in repeating}
        messages = [f"question {repeats.get(number, number)}" for number in range(total)]
        items = [BatchItem(message=message) for message in messages]
        request = BatchRequest(input_file_id="file-x") if file else BatchRequest(items=items, dedupe=True)
        batch = self.run(self.store.create(request, "default"))
        self.batch_id = batch.batch_id
        unread = frozenset(wrong & set(range(total)) - repeats.keys() - set(repeats.values()))
        self.model = ModelBatch(total, window, file, repeats, unread if file else frozenset())

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
        assert got.items == [] or got.start >= 0
        assert all(item.message == f"question {index}" for index, item in got.items)

    @rule(held=slices, picks=st.sets(st.integers(0, 3)), ok=st.booleans(), over=st.booleans())
    def store_rows(self, held: Held, picks: set[int], ok: bool, over: bool) -> None:
        """Some of a slice's rows, with `over` all of them."""
        if held.part.count == 0:
            return
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
        taken = model.takes_rows
        for index in chosen:
            model.store(index, status)
        if over:
            if not taken:
                model.keep_for_later(replace(held.part, crashes=0))
            model.free(held.part.start)
        model.go_on()
        assert got.state == model.state
        left = model.cursor < model.total or bool(model.redo) or bool(model.again)
        handing_out = model.state is BatchState.IN_PROGRESS and not model.paused and left
        assert got.more == (model.step is not None or handing_out)

    @rule(held=slices)
    def end_step(self, held: Held) -> None:
        """All lines are stored and the batch begins, or all files are written and it ends."""
        if held.part.count:
            return
        model, steps = self.model, BatchSteps(self.store)
        step = Slice(self.batch_id, held.part.start, held.fence, False, 0, "t", BatchRequest(), [], "default")
        if held.part.start == STEPS["finalize"]:
            state = self.run(steps.close(step, "file-a", None))
        else:
            self.run(self.store.add_items(self.batch_id, 0, self.entries(), self.known_rows()))
            state = self.run(steps.begin(step, model.total, None))
        if model.holds(held):
            model.end_step(held.part.start)
            assert state == model.state
        else:
            assert state == ""

    def entries(self) -> list[bytes]:
        model = self.model
        return [
            b"!"
            if index in model.wrong
            else repeated(model.repeats[index], None)
            if index in model.repeats
            else records.encode(BatchItem(message=f"question {index}"))
            for index in range(model.total)
        ]

    def known_rows(self) -> dict[int, bytes]:
        return {index: records.encode(_row(index, "error")) for index in self.model.wrong}

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
        self.run(
            self.turns.ledger(self.batch_id, "default", settled=[paid(first)], intended=[intended(second)])
        )

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
        model.cancel()
        with contextlib.suppress(Conflict):
            self.run(self.store.cancel(self.batch_id, "default"))

    @rule(pause=st.booleans())
    def pause(self, pause: bool) -> None:
        model = self.model
        if model.state in (BatchState.IN_PROGRESS, BatchState.VALIDATING):
            model.paused = pause
        with contextlib.suppress(Conflict):
            self.run(self.store.pause(self.batch_id, "default", pause=pause))

    @rule()
    def time_is_over(self) -> None:
        self.server.ask("HSET", self.store.keys.batch(self.batch_id), "expires_at", 1)
        self.model.expire()
        self.run(self.store.due(self.batch_id))

    @rule(target=slices)
    def time_is_over_on_the_way(self) -> Any:
        held = self.claim()
        self.time_is_over()
        return held if isinstance(held, Held) else multiple()

    @rule(most=st.integers(1, 20), ok=st.booleans())
    def go_far(self, most: int, ok: bool) -> None:
        """Some workers in a row, to whom nothing happens."""
        for _ in range(most):
            held = self.claim()
            if not isinstance(held, Held):
                break
            if held.part.count == 0:
                self.end_step(held)
            else:
                self.stored(held, held.items, "ok" if ok else "error", over=True)

    @rule()
    def retry(self) -> None:
        expected = self.model.retry()
        try:
            self.run(self.store.retry(self.batch_id, "default"))
        except Conflict:
            assert not expected
        else:
            assert expected

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
        asked = True
        for index in now.part.indexes:
            for number in (1, 2):
                call_id = self.call_id(now, index, number)
                if model.calls.get(call_id) == "intended" and asked:
                    model.calls[call_id] = "lost"
                elif model.calls.get(call_id) == "intended":
                    del model.calls[call_id]
            # The next item begins when this one has its row.
            asked = asked and (index in model.rows or self.call_id(now, index) not in model.calls)
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
        assert int(stored.get("units", 0)) == sums(seen)["units"]
        assert seen.lists.get(keys.redo(self.batch_id), []) == [
            f"{part.start}:{part.count}:{part.crashes}" for part in model.redo
        ]
        for name, expected in ((keys.again, list(model.again)), (keys.bad, model.bad)):
            assert seen.lists.get(name(self.batch_id), []) == [str(index) for index in expected]
        assert (stored.get("step"), "paused_at" in stored) == (model.step, model.paused)
        assert int(stored.get("saved", 0)) == model.saved
        if model.state is not BatchState.VALIDATING and not model.unread:
            self.rows_are_as_the_model_says(seen)
        held = {f"{self.batch_id}/{start}" for start in model.running}
        assert leased(seen) == sorted(held)
        slices = [name for name in seen.hashes.get(keys.slices(self.batch_id), {}) if name[:4] != "try:"]
        assert len(slices) == 2 * len(held)
        self.nothing_is_lost()
        self.money_is_right(seen)

    def rows_are_as_the_model_says(self, seen: leaks.Picture) -> None:
        rows = seen.hashes.get(self.store.keys.rows(self.batch_id), {})
        own = {int(index): row for index, row in rows.items()}
        status = {}
        for index, row in own.items():
            repeats = {"=": "ok", "!": "error"}.get(row[0])
            status[index] = repeats or json.loads(row)["status"]
        if self.model.begun or not self.model.file:
            assert status == self.model.rows

    def nothing_is_lost(self) -> None:
        """Every item has its row, or someone has it or will be given it; nobody is given one twice."""
        model = self.model
        if model.state is not BatchState.IN_PROGRESS:
            assert model.state is not BatchState.COMPLETED or len(model.rows) == model.total
            return
        places = Counter[int]()
        for part in [*(held.part for held in model.running.values()), *model.redo]:
            places.update(part.indexes)
        assert all(count == 1 for index, count in places.items() if index not in model.repeats)
        parked = {index for _, index in model.parked}
        known = {*model.rows, *places, *parked, *range(model.cursor, model.total)}
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
