"""The command line: its two outputs and its exit code, as a process (`Desk`) and without one (`Room`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from aiforge.cli import app, signals
from tests.support.waiting import wait_until

SECONDS: Final = 90.0
FREE_PORTS: Final = {"AIFORGE_API_PORT": "0", "AIFORGE_METRICS_PORT": "0"}
QUESTIONS: Final = "".join(
    json.dumps({"id": f"n{n}", "question": f"question {n}?"}) + "\n" for n in range(40)
)


class Desk:
    """A folder of its own, and what is set there."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.data = folder / ".aiforge"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIFORGE_", "OPENAI_"))
        }
        # The data folder also marks every process that descends from here, however far.
        self.environment = {**kept, **settings, "AIFORGE_DATA_DIR": str(self.data)}
        self._started: list[Running] = []

    def run(self, *arguments: str, given: bytes | None = None, **settings: str) -> Ended:
        try:
            ended = subprocess.run(
                command(arguments),
                cwd=self.folder,
                env={**self.environment, **settings},
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            said = (late.stderr or b"").decode(errors="replace")
            raise AssertionError(f"{arguments} runs after {SECONDS} s\n{said}\n{self.logs()}") from None
        return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def logs(self) -> str:
        """What the services wrote last."""
        files = sorted((self.data / "logs").glob("*.log"))
        return "\n".join(f"---- {file.name} ----\n{file.read_text()[-4000:]}" for file in files)

    def start(self, *arguments: str, **settings: str) -> Running:
        return self.start_at(subprocess.DEVNULL, *arguments, **settings)

    def start_at(self, stdin: int, *arguments: str, **settings: str) -> Running:
        """Start a command that reads from this file descriptor."""
        running = Running(self, arguments, {**self.environment, **settings}, stdin)
        self._started.append(running)
        return running

    def close(self) -> None:
        """Kill what a failed test left running."""
        for running in self._started:
            running.close()

    def processes(self) -> list[str]:
        """Whatever still runs of all that was started here; each begins with its process id."""
        marks = (f"AIFORGE_DATA_DIR={self.data}\0".encode(), f"--data-dir\0{self.data}\0".encode())
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    command = command_of(entry.name)
                    if command and any(mark in (entry / "environ").read_bytes() + command for mark in marks):
                        found.append(f"{entry.name} {command!r}")
        return found

    def must_be_empty(self, seconds: float = 15) -> None:
        """Nothing that was started here is left. A look at all there is costs much, one at a time little."""
        limit = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < limit, left
            with suppress(AssertionError):
                wait_until(partial(has_ended, left[0].split()[0]), limit - time.monotonic())


def command_of(pid: str) -> bytes:
    """The command of a process; empty when it has ended."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""


def has_ended(pid: str) -> bool:
    return not command_of(pid)


class Ended:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err
        assert "Traceback" not in err, err

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Running:
    """A command that runs; its stderr is read as it comes."""

    def __init__(
        self, desk: Desk, arguments: tuple[str, ...], environment: Mapping[str, str], stdin: int
    ) -> None:
        self.desk = desk
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command(arguments),
            cwd=desk.folder,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out = ""
        self._readers = [threading.Thread(target=self._read_err), threading.Thread(target=self._read_out)]
        for reader in self._readers:
            reader.start()

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        while part := self.process.stdout.read(1):
            self.out += part

    @property
    def err(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str, seconds: float = SECONDS) -> None:
        """Until stderr holds the text, or the command has ended without it (then AssertionError)."""
        wait_until(lambda: text in self.err or self.process.poll() is not None, seconds)
        assert text in self.err, self.err

    def end(self, number: int | None = None, seconds: float = SECONDS) -> Ended:
        """Send a signal, wait for the end."""
        if number is not None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(seconds)
        finally:
            self.close()
        return Ended(code, self.out, self.err)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


class Room:
    """The same commands without a process of their own, for what they answer before anything is started."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self.data = folder / ".aiforge"
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *arguments: str, **settings: str) -> Ended:
        before = {number: signal.getsignal(number) for number in signals.ENDING}
        with self._monkeypatch.context() as patch:
            patch.chdir(self.folder)
            for name in os.environ:
                if name.startswith(("AIFORGE_", "OPENAI_")):
                    patch.delenv(name)
            for name, value in settings.items():
                patch.setenv(name, value)
            try:
                code = app.run(arguments)
            finally:
                for number, action in before.items():
                    signal.signal(number, action)
        said = self._capsys.readouterr()
        return Ended(code, said.out, said.err)


def command(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-P", "-m", "aiforge.cli", *arguments]
