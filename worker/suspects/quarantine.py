"""Runs suspects in processes of their own: whoever dies tells whose fault it was.

A process that dies while this one lives died of its work, and of nothing else. When both die somebody killed
them, and the work is innocent. The process never outlives this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
from typing import Final, NamedTuple, TypeAlias

import msgspec

from aiforge.core.settings import AIForgeSettings
from worker import metrics
from worker.contract.batch.batches import Slice
from worker.contract.claims import Claim
from worker.contract.schemas import TurnFailure
from worker.contract.wakeups.wake import Wakes
from worker.settings import WorkerSettings
from worker.suspects.forks import Forks
from worker.upkeep.leases import Held, StopReason

DEAD: Final = TurnFailure("dead_lettered", "every process that ran this died")
PLACES: Final = 8
"""How many suspects run at a time for one worker process; the others wait with their leases renewed."""
STOP_SECONDS: Final = 1.5
"""How long a suspect that is stopped may take to commit or to be handed back by itself."""
ALONE_SECONDS: Final = 1.0
"""How much longer this process has to live than its suspect: what kills both at once need not do so at the
same instant."""
_log = logging.getLogger(__name__)


class Job(NamedTuple):
    """What the process is given, pickled; then it is sent a line for each `Stop`."""

    settings: WorkerSettings
    library: AIForgeSettings
    work: Claim | Slice


class Stop(msgspec.Struct, frozen=True):
    """The work was cancelled, lost, or is to be handed back."""

    reason: StopReason


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """From now on the process runs the work, and a death is the work's."""

    process: int


class Woken(msgspec.Struct, frozen=True, tag="woken"):
    """A wake-up to be sent."""

    work: str
    times: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The work was committed, handed back or given up; `following` is the conversation's next turn."""

    following: str | None
    counts: list[metrics.Count]


Said: TypeAlias = Begun | Woken | Ended
_said: Final = msgspec.json.Decoder(Said)


class Left(NamedTuple):
    """What became of a suspect. One that has begun and not ended died, or was killed when it did not stop."""

    begun: bool
    ended: Ended | None


class Quarantine:
    """One per process; lives on the loop that runs the turns."""

    def __init__(
        self, settings: WorkerSettings, library: AIForgeSettings, forks: Forks, waker: Wakes
    ) -> None:
        self._settings = settings
        self._library = library
        self._forks = forks
        self._waker = waker
        self._places = asyncio.Semaphore(PLACES)

    async def run(self, work: Claim | Slice, held: Held) -> Left:
        """Run what is held here in a process of its own, until it ends, dies or is stopped."""
        place = asyncio.create_task(self._places.acquire())
        held.follow(place)
        try:
            await asyncio.wait([place])
        finally:
            place.cancel()
        if place.cancelled():
            return Left(begun=False, ended=None)
        try:
            return await self._in_process(Job(self._settings, self._library, work), held)
        finally:
            self._places.release()

    async def _in_process(self, job: Job, held: Held) -> Left:
        try:
            ward = await Ward.start(self._forks, job, self._waker)
        except OSError as error:
            _log.error("no_process_for_a_suspect", extra={"reason": str(error)})
            return await self._gone(Left(begun=False, ended=None))
        try:
            left = await self._until_gone(ward, held)
        finally:
            ward.close()
        if left.ended is None and held.reason is None:
            event = "suspect_died" if left.begun else "suspect_not_begun"
            _log.error(event, extra={"works": held.work})
            return await self._gone(left)
        return left

    async def _until_gone(self, ward: Ward, held: Held) -> Left:
        listening = asyncio.create_task(ward.listen())
        held.follow(listening)
        try:
            await asyncio.wait([listening])
        finally:
            listening.cancel()
        if not listening.cancelled():
            return Left(ward.begun, listening.result())
        assert held.reason is not None, "what is held is cancelled by a reason alone"
        ward.stop(held.reason)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return Left(ward.begun, await ward.listen())
        except TimeoutError:
            return Left(ward.begun, None)

    async def _gone(self, left: Left) -> Left:
        """Whoever is killed together with the suspect does not come back from here."""
        await asyncio.sleep(ALONE_SECONDS)
        return left


class Ward:
    """A process that runs one suspect."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waker: Wakes) -> None:
        self._reader = reader
        self._writer = writer
        self._waker = waker
        self._process = 0
        self._gone = False

    @classmethod
    async def start(cls, forks: Forks, job: Job, waker: Wakes) -> Ward:
        """Raises OSError when there can be no further process."""
        reader, writer = await asyncio.open_unix_connection(sock=forks.one())
        writer.write(pickle.dumps(job))
        return cls(reader, writer, waker)

    @property
    def begun(self) -> bool:
        return self._process != 0

    async def listen(self) -> Ended | None:
        """Hear the process until it has ended; None when it died."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            while line := await self._reader.readline():
                match _said.decode(line):
                    case Begun(process):
                        self._process = process
                    case Woken(work, times):
                        self._waker.wake(work, times=times)
                    case Ended() as ended:
                        self._gone = True
                        metrics.count_again(ended.counts)
                        return ended
        self._gone = True
        return None

    def stop(self, reason: StopReason) -> None:
        """Ask it to stop; one that has not begun does not begin."""
        if self.begun:
            self._writer.write(msgspec.json.encode(Stop(reason)) + b"\n")
        else:
            self._writer.close()

    def close(self) -> None:
        """Leave nothing behind: what does not end by itself is killed."""
        if self.begun and not self._gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
        self._writer.close()
