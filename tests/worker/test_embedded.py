"""The embedded server with real processes: who starts it, who keeps it, what kill -9 leaves."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.waiting import wait_until

SECONDS: Final = 20.0
START: Final = [sys.executable, "-P", "-m", "worker.embedded", "--data-dir"]


class Folder:
    """A data folder and the supervisors that the test started on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[subprocess.Popen[str]] = []
        path.mkdir()

    def start(self, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*START, str(self.path)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def use(self) -> int:
        descriptor = os.open(self.path / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def address(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "valkey.json").read_text())
        return found

    def is_up(self, *, instead_of: int | None = None) -> bool:
        """Whether a server answers, and not the one with that process id."""
        with suppress(OSError, ValueError):
            return self.ask("PING") == "+PONG" and self.address()["pid"] != instead_of
        return False

    def ask(self, *words: str) -> str:
        """One command to the server of `valkey.json`; the first line of its reply, or a bulk string."""
        address = self.address()
        password = re.match(r"redis://default:(.+)@", address["url"])
        assert password is not None
        with closing(socket.create_connection(("127.0.0.1", address["port"]), timeout=5)) as connection:
            lines = connection.makefile("rb")
            for command in (("AUTH", password[1]), words):
                parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in command)
                connection.sendall(b"*%d\r\n" % len(command) + parts)
                line = lines.readline().decode().strip()
                if line.startswith("$") and line != "$-1":
                    line = lines.read(int(line[1:]) + 2).decode().strip()
            return line


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "data")
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()
    wait_until(lambda: not running(made.path), SECONDS)


def running(data: Path) -> list[int]:
    """Processes whose folder or arguments are the data folder's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                if str(data) in command or (entry / "cwd").readlink().is_relative_to(data):
                    found.append(int(entry.name))
    return found


def test_it_serves_its_users_and_ends_with_the_last_one(folder: Folder) -> None:
    first, second = folder.use(), folder.use()
    supervisor = folder.start()
    wait_until(folder.is_up, SECONDS)
    assert folder.ask("SET", "greeting", "hello") == "+OK"

    os.close(first)
    assert supervisor.poll() is None
    closed_at = time.monotonic()
    os.close(second)
    assert supervisor.wait(10) == 0
    assert time.monotonic() - closed_at > 1.5
    assert not (folder.path / "valkey.json").exists()
    assert running(folder.path) == []


def test_it_persists_and_comes_back_on_the_same_address(folder: Folder) -> None:
    user = folder.use()
    supervisor = folder.start()
    wait_until(folder.is_up, SECONDS)
    assert folder.ask("SET", "greeting", "hello") == "+OK"
    url = folder.address()["url"]
    supervisor.send_signal(signal.SIGTERM)
    os.close(user)
    assert supervisor.wait(10) == 0

    user = folder.use()
    folder.start()
    wait_until(folder.is_up, SECONDS)
    assert folder.ask("GET", "greeting") == "hello"
    assert folder.address()["url"] == url
    os.close(user)


def test_the_configuration_is_ours(folder: Folder) -> None:
    user = folder.use()
    folder.start(AIFORGE_DURABILITY="always")
    wait_until(folder.is_up, SECONDS)
    persistence = folder.ask("INFO", "persistence")
    assert "aof_enabled:1" in persistence
    assert "maxmemory_policy:noeviction" in folder.ask("INFO", "memory")
    assert folder.address()["durability"] == "always"
    assert "appendfsync always" in (folder.path / "redis" / "valkey.conf").read_text()
    with closing(socket.create_connection(("127.0.0.1", folder.address()["port"]), timeout=5)) as stranger:
        stranger.sendall(b"PING\r\n")
        assert stranger.recv(100).startswith(b"-NOAUTH")
    for name in ("valkey.json", "redis/password", "redis/valkey.conf", "users.lock", "embedded.lock"):
        assert (folder.path / name).stat().st_mode & 0o777 == 0o600
    os.close(user)


def test_of_many_started_at_once_one_serves_and_all_report_it(folder: Folder) -> None:
    user = folder.use()
    reports = []
    for _ in range(6):
        read, write = os.pipe()
        process = subprocess.Popen(
            [*START, str(folder.path)],
            env={**os.environ, "AIFORGE_READY_FD": str(write)},
            pass_fds=(write,),
            stderr=subprocess.DEVNULL,
            text=True,
        )
        os.close(write)
        folder.started.append(process)
        reports.append(os.fdopen(read))
    seen = set()
    for report in reports:
        with report:
            seen.add(json.loads(report.readline())["redis_url"])
    assert seen == {folder.address()["url"]}
    wait_until(lambda: sum(process.poll() is None for process in folder.started) == 1, SECONDS)
    assert [process.returncode for process in folder.started if process.returncode is not None] == [0] * 5
    os.close(user)


def test_a_user_killed_with_kill_9_leaves_nothing(folder: Folder) -> None:
    code = (
        "import fcntl, os, signal\n"
        f"fd = os.open({str(folder.path / 'users.lock')!r}, os.O_RDWR | os.O_CREAT, 0o600)\n"
        "fcntl.flock(fd, fcntl.LOCK_SH)\n"
        "print('held', flush=True)\n"
        "signal.pause()\n"
    )
    user = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    with user.stdout as said:
        assert said.readline() == "held\n"
    supervisor = folder.start()
    wait_until(folder.is_up, SECONDS)
    user.kill()
    user.wait()
    assert supervisor.wait(10) == 0
    assert running(folder.path) == []


def test_after_kill_9_of_the_supervisor_its_stale_files_are_recognised(folder: Folder) -> None:
    user = folder.use()
    supervisor = folder.start()
    wait_until(folder.is_up, SECONDS)
    assert folder.ask("SET", "greeting", "hello") == "+OK"
    server = folder.address()["pid"]
    supervisor.kill()
    supervisor.wait()
    assert (folder.path / "valkey.json").exists()

    folder.start()
    wait_until(partial(folder.is_up, instead_of=server), SECONDS)
    assert folder.ask("GET", "greeting") == "hello"
    assert server not in running(folder.path)
    os.close(user)


def test_a_server_that_dies_is_started_again_with_its_data(folder: Folder) -> None:
    user = folder.use()
    folder.start(AIFORGE_DURABILITY="always")
    wait_until(folder.is_up, SECONDS)
    for count in range(3):
        assert folder.ask("SET", f"key-{count}", "kept") == "+OK"
        dead = folder.address()
        os.kill(dead["pid"], signal.SIGKILL)
        wait_until(partial(folder.is_up, instead_of=dead["pid"]), SECONDS)
        assert folder.address()["url"] == dead["url"]
        assert folder.ask("GET", f"key-{count}") == "kept"
    os.close(user)


def test_a_taken_port_moves_on(folder: Folder) -> None:
    user = folder.use()
    supervisor = folder.start()
    wait_until(folder.is_up, SECONDS)
    port = folder.address()["port"]
    supervisor.send_signal(signal.SIGTERM)
    os.close(user)
    assert supervisor.wait(10) == 0

    user = folder.use()
    with closing(socket.create_server(("127.0.0.1", port))):
        folder.start()
        wait_until(folder.is_up, SECONDS)
        assert folder.address()["port"] != port
    os.close(user)


def test_data_of_a_newer_server_is_refused_in_one_line(folder: Folder) -> None:
    (folder.path / "redis").mkdir()
    written = {"server": "Valkey", "version": "99.0.1", "port": 1}
    (folder.path / "redis" / "last-run.json").write_text(json.dumps(written))
    supervisor = folder.start()
    _, said = supervisor.communicate(timeout=20)
    assert supervisor.returncode == 3
    assert said.count("\n") == 1
    assert "was written by Valkey 99.0.1" in said
    assert "AIFORGE_DATA_DIR" in said


def test_data_that_the_server_cannot_read_is_refused_in_one_line(folder: Folder) -> None:
    aof = folder.path / "redis" / "appendonlydir"
    aof.mkdir(parents=True)
    (aof / "appendonly.aof.manifest").write_text("file appendonly.aof.1.base.rdb seq 1 type b\n")
    (aof / "appendonly.aof.1.base.rdb").write_bytes(b"VALKEY999" + bytes(20))
    supervisor = folder.start()
    _, said = supervisor.communicate(timeout=20)
    assert supervisor.returncode != 0
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [("AIFORGE_DURABILITY", "sometimes", "AIFORGE_DURABILITY: must be everysec or always (got 'sometimes')")],
)
def test_a_wrong_setting_is_one_line_and_exit_3(folder: Folder, name: str, value: str, says: str) -> None:
    supervisor = folder.start(**{name: value})
    _, said = supervisor.communicate(timeout=20)
    assert (supervisor.returncode, said) == (3, f"embedded: {says}\n")
