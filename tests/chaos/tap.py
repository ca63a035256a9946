"""The line between one process and Redis: sees every script go by, and can strike between any two of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import hiredis

from tests.support.proxy import Fate, Proxy, Wire
from worker.contract.server.lua import load_scripts

Moment = Literal["before", "after"]
"""Before a script reaches Redis, or after it has run there and before its caller hears of it."""
_CHUNK: Final = 65_536


class Call(NamedTuple):
    """A script on its way to Redis."""

    script: str
    work: str
    """The last part of its first key's name: the turn, where the script is about one."""
    arguments: list[bytes]


class Claimed(NamedTuple):
    """A claim that was granted; `at` is in Unix seconds of Redis."""

    turn_id: str
    fence: int
    at: float


class Trap:
    """Strikes once, at the next call of a script."""

    def __init__(self, script: str, moment: Moment, blow: Callable[[], None], *, late: bool = False) -> None:
        """`late`: what was kept back is sent after `let_go`, as by a process that wakes."""
        self.script = script
        self.moment = moment
        self.late = late
        self.released = asyncio.Event()
        self.sprung: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        self._blow = blow

    def spring(self, call: Call) -> None:
        self._blow()
        self.sprung.set_result(call)

    def let_go(self) -> None:
        self.released.set()


@dataclass
class _Count:
    """How far a connection is: the n-th reply belongs to the n-th command."""

    asked: int = 0
    answered: int = 0
    watched: dict[int, Call] = field(default_factory=dict)
    trapped: dict[int, Trap] = field(default_factory=dict)


class Tap(Proxy):
    """A proxy that reads along. One stands before each process, so that a script's caller is known."""

    def __init__(self, port: int, names: Mapping[bytes, str]) -> None:
        super().__init__(port)
        self._names = names
        self._counts: defaultdict[Wire, _Count] = defaultdict(_Count)
        self._trap: Trap | None = None
        self.claims: list[Claimed] = []
        self.late_commits: set[tuple[str, int]] = set()
        """The turn and fence of every commit that was refused as too late."""
        self.commits: set[tuple[str, int]] = set()
        """The same of every one that was accepted."""
        self._tried: set[tuple[str, int]] = set()
        """The same of every one that was sent."""
        self.late: list[str] = []
        """The turn of whatever was refused as too late: commits, tokens, heartbeats, repeated claims."""

    def set(self, trap: Trap) -> None:
        self._trap = trap

    def take_away(self) -> None:
        self._trap = None

    async def _up(self, wire: Wire) -> None:
        commands = hiredis.Reader()
        count = self._counts[wire]
        while data := await wire.reader.read(_CHUNK):
            commands.feed(data)
            ready: list[bytes] = []
            while (command := commands.gets()) is not False:
                call = self._call(command)
                if call is not None and await self._trapped(wire, call, count, ready):
                    return
                count.asked += 1
                ready.append(hiredis.pack_command((*command,)))
            await self._send(wire.server, b"".join(ready))

    async def _trapped(self, wire: Wire, call: Call, count: _Count, ready: list[bytes]) -> bool:
        """Watch a script, or strike at it; whether the connection ends here."""
        trap, again = self._trap, self._was_tried(call)
        if trap is None or trap.script != call.script or again:
            if call.script in _LOOKS:
                count.watched[count.asked] = call
            return False
        self._trap = None
        if trap.moment == "after":
            count.watched[count.asked], count.trapped[count.asked] = call, trap
            return False
        await self._send(wire.server, b"".join(ready))
        ready.clear()
        trap.spring(call)
        await trap.released.wait()
        count.watched[count.asked] = call
        return not trap.late

    def _was_tried(self, call: Call) -> bool:
        """Whether this is a commit that is asked for again, as its reply was late or lost."""
        if call.script != "finish":
            return False
        commit = call.work, int(call.arguments[1])
        again = commit in self._tried
        self._tried.add(commit)
        return again

    def _judge(self, wire: Wire, frame: bytes) -> Fate:
        if frame[:1] == b">":
            return super()._judge(wire, frame)
        count = self._counts[wire]
        number, count.answered = count.answered, count.answered + 1
        call = count.watched.pop(number, None)
        if call is not None:
            self._look(call, frame)
            trap = count.trapped.pop(number, None)
            if trap is not None:
                trap.spring(call)
                return "cut"
        return super()._judge(wire, frame)

    def _look(self, call: Call, frame: bytes) -> None:
        reader = hiredis.Reader()
        reader.feed(frame)
        look = _LOOKS.get(call.script)
        if look is not None:
            look(self, call, reader.gets())

    def _call(self, command: list[bytes]) -> Call | None:
        if command[0] == b"EVALSHA":
            name = self._names.get(command[1])
        elif command[0] == b"EVAL":
            name = self._names.get(hashlib.sha1(command[1], usedforsecurity=False).hexdigest().encode())
        else:
            return None
        if name is None:
            return None
        keys = int(command[2])
        return Call(name, command[3].decode().rpartition(":")[2], command[3 + keys :])

    def _claimed(self, call: Call, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"claimed":
            self.claims.append(Claimed(call.work, int(reply[1]), int(reply[4]) / 1000))
        elif isinstance(reply, list) and reply[0] == b"refused":
            self.late.append(call.work)

    def _finished(self, call: Call, reply: Any) -> None:
        commit = call.work, int(call.arguments[1])
        if isinstance(reply, list) and reply[0] == b"refused":
            self.late.append(call.work)
            self.late_commits.add(commit)
        elif isinstance(reply, list):
            self.commits.add(commit)

    def _appended(self, call: Call, reply: Any) -> None:
        if reply == 0:
            self.late.append(call.work)

    def _beaten(self, _call: Call, reply: Any) -> None:
        if isinstance(reply, list):
            self.late += [work.decode() for work in reply]


_LOOKS: Final[dict[str, Callable[[Tap, Call, Any], None]]] = {
    "claim": Tap._claimed,
    "finish": Tap._finished,
    "append": Tap._appended,
    "heartbeat": Tap._beaten,
}
"""Whose replies say something that is counted."""


def script_names(code: Path | None) -> dict[bytes, str]:
    """The scripts by digest: this checkout's, and those of another one that is tried."""
    scripts = load_scripts()
    if code is not None:
        others = load_scripts(code / "worker" / "contract" / "scripts")
        scripts |= {f"{name} ": script for name, script in others.items()}
    return {script.digest.encode(): script.name for script in scripts.values()}
