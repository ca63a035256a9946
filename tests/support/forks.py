"""The copy of a worker that forks processes for suspects, beside a test process that has threads.

`with forking() as (forks, process): …`, where `process` is the copy's number.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from worker.suspects import quarantined
from worker.suspects.forks import Forks, serve


def no_forks() -> Forks:
    """What is left when the copy has died."""
    control = socket.socket()
    control.close()
    return Forks(control)


@contextlib.contextmanager
def forking() -> Iterator[tuple[Forks, int]]:
    """It ends with this process at the latest."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.support.forks", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[2])
    forks = Forks(ours)
    try:
        yield forks, process.pid
    finally:
        forks.close()
        process.wait(10)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), quarantined.run)
