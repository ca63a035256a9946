"""A stack whose embedded server is gone for good ends, whoever started the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from aiforge.cli.embedded import is_locked
from tests.aiforge.cli.command import FREE_PORTS, Desk
from tests.support.waiting import wait_until

SECONDS = 20.0


def server_of(desk: Desk, key: str, *, instead_of: int = 0) -> int:
    """A process id of `valkey.json`, 0 while there is none but the old one."""
    with suppress(OSError, ValueError):
        found = int(json.loads((desk.data / "valkey.json").read_text())[key])
        return 0 if found == instead_of else found
    return 0


@pytest.fixture
def kept_by_another(desk: Desk) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor that is no child of the command."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "worker.embedded", "--keep", "--data-dir", str(desk.data)],
        stderr=subprocess.DEVNULL,
    )
    wait_until(partial(server_of, desk, "pid"), SECONDS)
    yield process
    process.kill()
    process.wait()


def test_up_ends_when_the_supervisor_of_its_server_is_killed(desk: Desk) -> None:
    up = desk.start("up", **FREE_PORTS)
    up.wait_for("ready; Ctrl-C")
    os.kill(server_of(desk, "supervisor_pid"), signal.SIGKILL)
    ended = up.end()
    assert ended.code == 1
    assert "aiforge: embedded was killed by SIGKILL" in ended.err
    desk.must_be_empty(1)


def test_up_ends_when_its_supervisor_gives_the_server_up(desk: Desk) -> None:
    up = desk.start("up", **FREE_PORTS)
    up.wait_for("ready; Ctrl-C")
    dead = 0
    for _ in range(4):
        wait_until(partial(server_of, desk, "pid", instead_of=dead), SECONDS)
        dead = server_of(desk, "pid")
        os.kill(dead, signal.SIGKILL)
    ended = up.end()
    assert ended.code == 1
    assert "aiforge: embedded ended with code 1" in ended.err
    assert "the server keeps dying" in ended.err
    desk.must_be_empty(1)


def test_up_ends_when_a_server_that_another_command_started_is_gone(
    desk: Desk, kept_by_another: subprocess.Popen[bytes]
) -> None:
    up = desk.start("up", **FREE_PORTS)
    up.wait_for("ready; Ctrl-C")
    kept_by_another.kill()
    kept_by_another.wait()
    ended = up.end()
    assert ended.code == 1
    assert "aiforge: the embedded server is gone" in ended.err
    assert not is_locked(desk.data / "embedded.lock")
    desk.must_be_empty(1)
