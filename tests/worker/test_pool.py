"""The greenlet pool, and each thing of Celery, kombu and greenlet that it leans on.

The pin `celery<5.8` may move when these and tests/integration/test_pools.py pass with the new version.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Final

import celery.utils.threads
import greenlet
import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.app.trace import build_tracer
from celery.concurrency.base import apply_target
from celery.exceptions import ImproperlyConfigured, WorkerLostError, WorkerShutdown
from celery.worker import state
from kombu.asynchronous import Hub

from tests.support.waiting import eventually, wait_until
from worker.loop import LoopThread
from worker.pools.choice import pool_of, wait_of
from worker.pools.greenlets import wait_in_greenlet
from worker.settings import Pool
from worker.upkeep.leases import HOLDER, Leases

pytestmark: Final = pytest.mark.anyio
LIMIT: Final = 3
WORD: Final = ContextVar("WORD", default="nothing")
Work = Callable[[], Coroutine[Any, Any, Any]]


class Here:
    """The process that the pool lives in, as far as the pool can see."""

    def __init__(self) -> None:
        self.turns_loop = LoopThread("turns")
        self.draining = False
        self.handed_back: list[int] = []

    def drain(self, grace: float | None = None) -> None:
        self.draining = True

    def hand_back(self, holder: int) -> None:
        self.handed_back.append(holder)


class Consumer:
    """Celery's consumer as far as the pool can see: its hub turns on this thread."""

    def __init__(self, host: Here, name: Pool, sock: socket.socket) -> None:
        self.host = host
        self.wait = wait_of(name)
        self.hub = Hub()
        self.hub.add_reader(sock, _nothing)  # a hub without a socket sleeps, and nobody can wake it
        self.pool = pool_of(host, name)(LIMIT, threads=False)
        self.pool.start()
        self.pool.register_with_event_loop(self.hub)
        self.accepted: list[int] = []
        self.outcomes: list[Any] = []
        self.callers: set[int] = set()

    def apply(self, work: Work) -> None:
        """Give the pool a task that waits for a coroutine."""
        runtime: Any = self.host
        self.apply_target(lambda: self.wait(runtime, work()))

    def apply_target(self, target: Callable[..., Any], *args: Any) -> None:
        self.pool.apply_async(target, args, {}, accept_callback=self._accept, callback=self._end)

    def run_until(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < limit, (self.accepted, self.outcomes)
            self.hub.run_once()

    def ended(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.outcomes) == count

    def _accept(self, pid: int, _at: float) -> None:
        self.callers.add(threading.get_ident())
        self.accepted.append(pid)

    def _end(self, outcome: Any) -> None:
        self.callers.add(threading.get_ident())
        self.outcomes.append(outcome)


class Door:
    """Tasks wait behind it until it is opened, from any thread."""

    def __init__(self, host: Here) -> None:
        self._host = host
        self._event = asyncio.Event()
        self.inside = 0

    async def enter(self) -> None:
        self.inside += 1
        await self._event.wait()
        self.inside -= 1

    def open(self) -> None:
        self._host.turns_loop.loop.call_soon_threadsafe(self._event.set)


@pytest.fixture
def host() -> Iterator[Here]:
    here = Here()
    yield here
    here.turns_loop.stop()


@pytest.fixture
def make(host: Here) -> Iterator[Callable[[Pool], Consumer]]:
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.callback(ours.close)
        stack.callback(theirs.close)

        def made(name: Pool) -> Consumer:
            consumer = Consumer(host, name, ours)
            stack.callback(consumer.hub.close)
            stack.callback(consumer.pool.stop)
            return consumer

        yield made


@pytest.fixture
def consumer(make: Callable[[Pool], Consumer]) -> Consumer:
    return make("greenlets")


@pytest.fixture
def door(host: Here) -> Iterator[Door]:
    made = Door(host)
    yield made
    made.open()


def test_tasks_wait_together_without_threads(consumer: Consumer, door: Door) -> None:
    consumer.pool.limit = 500
    before = threading.active_count()
    for _ in range(500):
        consumer.apply(door.enter)
    wait_until(lambda: door.inside == 500)
    assert threading.active_count() == before
    door.open()
    consumer.run_until(consumer.ended(500))


def test_celery_hears_of_everything_on_its_own_thread(consumer: Consumer, door: Door) -> None:
    for _ in range(LIMIT + 2):
        consumer.apply(door.enter)
    door.open()
    consumer.run_until(consumer.ended(LIMIT + 2))
    assert consumer.callers == {threading.get_ident()}
    assert consumer.outcomes == [None] * (LIMIT + 2)


def test_an_acknowledgement_does_not_wait_for_the_hubs_sleep(consumer: Consumer) -> None:
    """Celery asks the hub for it while the hub is turning, which does not wake it."""
    ended: list[float] = []
    acknowledged: list[float] = []

    def end(_outcome: Any) -> None:
        ended.append(time.monotonic())
        consumer.hub.call_soon(lambda: acknowledged.append(time.monotonic()))

    consumer.pool.apply_async(_nothing, accept_callback=_nothing, callback=end)
    consumer.run_until(lambda: bool(acknowledged))
    assert acknowledged[0] - ended[0] < 0.5  # asleep, it would be a second


def test_no_more_run_than_there_are_slots(consumer: Consumer, door: Door) -> None:
    for _ in range(LIMIT + 2):
        consumer.apply(door.enter)
    wait_until(lambda: door.inside == LIMIT)
    assert (len(consumer.accepted), consumer.pool.num_processes) == (LIMIT, LIMIT)
    assert consumer.pool.info["max-concurrency"] == LIMIT
    assert (consumer.pool.info["running"], consumer.pool.info["waiting"]) == (LIMIT, 2)

    consumer.pool.grow(1)
    wait_until(lambda: door.inside == LIMIT + 1)
    consumer.pool.shrink(9)
    assert consumer.pool.num_processes == 1
    door.open()
    consumer.run_until(consumer.ended(LIMIT + 2))


def test_what_has_not_begun_is_forgotten_with_its_connection(consumer: Consumer, door: Door) -> None:
    for _ in range(LIMIT + 2):
        consumer.apply(door.enter)
    consumer.pool.flush()
    door.open()
    consumer.run_until(consumer.ended(LIMIT))
    assert len(consumer.accepted) == LIMIT


def test_every_task_has_a_context_of_its_own(consumer: Consumer) -> None:
    seen: list[tuple[str, str]] = []

    async def look(word: str) -> None:
        before = WORD.get()
        WORD.set(word)
        await asyncio.sleep(0)
        seen.append((before, WORD.get()))

    for word in ("one", "two"):
        consumer.apply(lambda word=word: look(word))  # type: ignore[misc]
    consumer.run_until(consumer.ended(2))
    assert seen == [("nothing", "one"), ("nothing", "two")]


@pytest.mark.parametrize("name", ["greenlets", "threads"])
def test_what_a_task_holds_can_be_stopped_by_its_number(
    make: Callable[[Pool], Consumer], host: Here, door: Door, name: Pool
) -> None:
    consumer, holders = make(name), []

    async def hold() -> None:
        holders.append(HOLDER.get())
        await door.enter()

    for _ in range(2):
        consumer.apply(hold)
    wait_until(lambda: door.inside == 2)
    assert sorted(holders) == sorted(consumer.accepted)
    consumer.pool.terminate_job(consumer.accepted[1], 15)
    assert host.handed_back == [consumer.accepted[1]]
    door.open()
    wait_until(lambda: door.inside == 0)


def test_the_outcome_of_a_terminated_task_is_not_told(consumer: Consumer, door: Door) -> None:
    for _ in range(2):
        consumer.apply(door.enter)
    consumer.pool.terminate_job(consumer.accepted[0])
    door.open()
    consumer.run_until(lambda: consumer.pool.info["running"] == 0)
    assert len(consumer.outcomes) == 1


@pytest.mark.parametrize("name", ["greenlets", "threads"])
def test_stopping_waits_for_what_runs_and_begins_the_grace_time(
    make: Callable[[Pool], Consumer], host: Here, door: Door, name: Pool
) -> None:
    consumer = make(name)
    consumer.apply(door.enter)
    wait_until(lambda: door.inside == 1)
    consumer.pool.close()
    assert host.draining
    host.turns_loop.loop.call_soon_threadsafe(host.turns_loop.loop.call_later, 0.05, door.open)
    consumer.pool.stop()
    assert (door.inside, len(consumer.outcomes)) == (0, 1)


def test_an_error_reaches_the_task(consumer: Consumer) -> None:
    async def fail() -> None:
        raise LookupError("lost")

    def task() -> str:
        runtime: Any = consumer.host
        with pytest.raises(LookupError, match="lost"):
            wait_in_greenlet(runtime, fail())
        return "caught"

    consumer.apply_target(task)
    consumer.run_until(consumer.ended(1))
    assert consumer.outcomes == ["caught"]


def test_a_tracer_that_breaks_frees_its_slot(consumer: Consumer, host: Here) -> None:
    broken: list[str] = []
    host.turns_loop.loop.set_exception_handler(
        lambda _loop, context: broken.append(str(context["exception"]))
    )

    def task() -> None:
        raise RuntimeError("tracer")

    consumer.apply_target(task)
    consumer.run_until(lambda: consumer.pool.info["running"] == 0)
    assert (broken, consumer.outcomes) == (["tracer"], [])


def test_a_cancelled_task_is_a_lost_one_to_celery(consumer: Consumer) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    consumer.apply(cancelled)
    consumer.run_until(consumer.ended(1))
    (outcome,) = consumer.outcomes
    assert isinstance(outcome, ExceptionInfo)
    assert isinstance(outcome.exception.exc, WorkerLostError)


def test_it_needs_a_broker_with_an_event_loop(host: Here) -> None:
    with pytest.raises(ImproperlyConfigured, match="AIFORGE_POOL"):
        pool_of(host, "greenlets")(1, threads=True).start()


def test_tasks_that_overlap_know_their_own_requests(consumer: Consumer, door: Door) -> None:
    """Celery's tracer keeps the current task and its request on a stack; it is one for each greenlet."""
    application = Celery("aiforge", set_as_current=False)
    seen: list[tuple[str, str]] = []

    @application.task(bind=True, name="look", shared=False, ignore_result=True)  # type: ignore[untyped-decorator]
    def look(self: Any) -> None:
        before = self.request.id
        runtime: Any = consumer.host
        wait_in_greenlet(runtime, door.enter())
        seen.append((before, self.request.id))

    trace = build_tracer("look", application.tasks["look"], app=application)
    for task_id in ("a", "b", "c"):
        consumer.apply_target(trace, task_id, (), {}, {"id": task_id})
    wait_until(lambda: door.inside == LIMIT)
    door.open()
    consumer.run_until(consumer.ended(3))
    assert sorted(seen) == [("a", "a"), ("b", "b"), ("c", "c")]


def test_celery_tells_greenlets_apart() -> None:
    assert celery.utils.threads.get_ident is greenlet.getcurrent
    assert isinstance(celery.utils.threads.LocalStack(), celery.utils.threads._LocalStack)


def test_celerys_tracer_runs_without_being_accepted() -> None:
    outcomes: list[Any] = []
    apply_target(lambda word: word, ("done",), {}, outcomes.append)
    assert outcomes == ["done"]


def test_a_call_from_another_thread_wakes_the_hub(consumer: Consumer) -> None:
    heard = threading.Event()
    consumer.hub.run_once()
    threading.Thread(target=consumer.hub.call_soon, args=(heard.set,)).start()
    began = time.monotonic()
    consumer.run_until(heard.is_set)
    assert time.monotonic() - began < 0.9  # without a wake it sleeps for a second


def test_a_flag_ends_celerys_loop_with_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", 0)
    with pytest.raises(WorkerShutdown) as ended:
        state.maybe_shutdown()
    assert ended.value.code == 0


async def test_after_the_end_nothing_is_held_any_more() -> None:
    """A claim that was under way when everything was stopped is handed back at once."""
    leases = Leases()
    with leases.hold("early", 1) as early:
        leases.stop_all("handed_back")
        await eventually(lambda: early.reason == "handed_back")
        with leases.hold("late", 1) as late:
            task = asyncio.ensure_future(asyncio.Event().wait())
            late.follow(task)
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_only_what_one_task_holds_is_stopped() -> None:
    leases = Leases()
    with leases.hold("other", 1) as other:
        HOLDER.set(7)
        with leases.hold("mine", 2) as mine:
            leases.stop_held_by(7, "handed_back")
            await eventually(lambda: mine.reason == "handed_back")
            assert other.reason is None


def _nothing(*_: Any) -> None:
    """The socket never has anything to read."""
