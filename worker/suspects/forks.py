"""Forks processes for a program that cannot do so itself any more, because it has threads by now.

A copy of the program is forked off while that has one thread. It does nothing but fork, when it is asked to:
all modules are loaded in it, so a process costs milliseconds, and the memory of all of them is mostly shared.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1
_OPEN: Final = Path("/dev/fd")
_MOST_EXPENDABLE: Final = "1000"
"""The highest value of `oom_score_adj`: when memory runs out, what was forked goes first."""


class Forks:
    """The way to that copy; every thread and every forked process of a pool may use it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @classmethod
    def begin(cls, run: Callable[[socket.socket], None]) -> Forks:
        """Fork the copy; what it forks calls `run`. Both end with the main thread of this process."""
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        if os.fork() == 0:
            live_and_die_with(parent)
            _let_go_of_all_but(theirs.fileno())
            serve(theirs, run)
        theirs.close()
        return cls(ours)

    def one(self) -> socket.socket:
        """Another process; `run` has the other end of this socket. Raises OSError when the copy is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"1"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def close(self) -> None:
        """The copy ends when nobody can ask it any more."""
        self._control.close()


def serve(control: socket.socket, run: Callable[[socket.socket], None]) -> NoReturn:
    """Fork a process for each socket that comes, until nobody is left who could send one."""
    gc.freeze()  # what is shared stays shared: collecting would write to all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not asked:
            os._exit(0)
        _fork(control, socket.socket(fileno=descriptors[0]), run)


def live_and_die_with(parent: int) -> None:
    """Be killed by the kernel when `parent` is gone; signals are for the program to obey."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, _pass)


def _fork(control: socket.socket, sock: socket.socket, run: Callable[[socket.socket], None]) -> None:
    parent = os.getpid()
    with sock, contextlib.suppress(OSError):
        if os.fork() == 0:
            control.close()
            _run(parent, sock, run)


def _run(parent: int, sock: socket.socket, run: Callable[[socket.socket], None]) -> NoReturn:
    try:
        live_and_die_with(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_MOST_EXPENDABLE)
        run(sock)
    finally:
        os._exit(0)


def _let_go_of_all_but(kept: int) -> None:
    """Descriptors stay taken, so that no object of the program closes one that is new."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(path.name) for path in _OPEN.iterdir()]:
        if number > 2 and number not in (kept, nothing):
            with contextlib.suppress(OSError):
                os.dup2(nothing, number, inheritable=False)


def _pass(_number: int, _frame: object) -> None:
    """The program gets the same signal and says what is to be done."""
