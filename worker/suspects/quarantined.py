"""What a process does that `worker.suspects.quarantine` runs one suspect in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import threading
from collections.abc import Iterable
from typing import Final

import msgspec
import uvloop

from worker import metrics
from worker.calls.gate import ProviderGate, providers_of, renew
from worker.calls.purse import Purses
from worker.contract.batch.batches import BatchStore, Slice
from worker.contract.claims import Claim, new_token
from worker.contract.errors import Unavailable
from worker.contract.logs import Forward, logger
from worker.contract.server.connection import Connection
from worker.contract.store import TurnStore
from worker.loop import keep_up
from worker.running import recorders
from worker.running.items import Items
from worker.running.specs import Specs
from worker.running.stream import Flusher
from worker.running.turns import Attempts
from worker.suspects.quarantine import Begun, Ended, Job, Said, Stop, Woken
from worker.upkeep.leases import Held

_log = logging.getLogger(__name__)
_stop: Final = msgspec.json.Decoder(Stop)


class Line:
    """What the worker process is told."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def say(self, said: Said) -> None:
        self._sock.sendall(msgspec.json.encode(said) + b"\n")

    def wake(self, work: str, *, times: int = 1) -> None:
        """Wake-ups are sent by the worker process."""
        self.say(Woken(work, times))


def run(sock: socket.socket) -> None:
    """Run the one job that comes, in a process that was forked for it."""
    lines = sock.makefile("rb")
    with contextlib.suppress(EOFError, BrokenPipeError):  # the worker process changed its mind, or is gone
        job: Job = pickle.load(lines)  # noqa: S301  # from the program that this process is forked from
        log = logger("worker", job.settings.log_level, job.settings.log_format)
        logging.basicConfig(handlers=[Forward(log)], level=job.settings.log_level.upper(), force=True)
        uvloop.run(_run(job, Line(sock), lines))


async def _run(job: Job, line: Line, lines: Iterable[bytes]) -> None:
    assert job.settings.redis_url is not None
    connection = Connection(job.settings.redis_url)
    held = Held(_name(job.work), job.work.fence, asyncio.get_running_loop())
    threading.Thread(target=_listen, args=(lines, held), name="control", daemon=True).start()
    line.say(Begun(os.getpid()))
    following: str | None = None
    try:
        following = await _work(job, connection, line, held)
    except Unavailable:
        # No death, so the lease runs out as it would elsewhere.
        _log.exception("suspect_given_up", extra={"works": held.work})
    except Exception:
        # It would come again for ever.
        _log.exception("suspect_crashed", extra={"works": held.work})
        raise
    await connection.close()
    line.say(Ended(following, metrics.counted()))


async def _work(job: Job, connection: Connection, line: Line, held: Held) -> str | None:
    """Returns the conversation's next turn when this one ended."""
    providers = providers_of(job.settings, connection)
    gate = ProviderGate(providers, new_token(), job.library, job.settings.limits, hears=False)
    purses = Purses(connection, job.settings, job.library)
    places = asyncio.create_task(keep_up("places", lambda: renew(gate, providers)), name="places")
    try:
        return await _answered(job, connection, Specs(job.library, gate, purses), line, held)
    finally:
        places.cancel()
        await gate.settle()
        await purses.settled()


async def _answered(job: Job, connection: Connection, specs: Specs, line: Line, held: Held) -> str | None:
    store = TurnStore(connection, job.settings)
    match job.work:
        case Claim(place=place, token=token) as claim:
            recorder = recorders.of_turn(store, place, token, specs)
            attempts = Attempts(store=store, flusher=Flusher(store), specs=specs, waker=line)
            return await attempts.run(claim, recorder, held)
        case Slice() as taken:
            batches = BatchStore(connection, job.settings)
            items = Items(store=store, batches=batches, specs=specs, waker=line)
            if await items.run(taken, held):
                line.wake(taken.batch_id)
            return None


def _name(work: Claim | Slice) -> str:
    return work.place.turn_id if isinstance(work, Claim) else work.work


def _listen(lines: Iterable[bytes], held: Held) -> None:
    """Until the worker process is gone, which is not to be survived."""
    for said in lines:
        held.stop(_stop.decode(said).reason)
    os._exit(1)
