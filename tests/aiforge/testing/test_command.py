"""The provider as a process, and what importing the package costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aiforge.testing import FakeProvider
from aiforge.testing.command import main


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running process and its base URL."""
    ready, tell = os.pipe()
    command = [sys.executable, "-P", "-m", "aiforge.testing", *options]
    environment = {**os.environ, "AIFORGE_READY_FD": str(tell)}
    with subprocess.Popen(
        command, env=environment, pass_fds=(tell,), stderr=subprocess.PIPE, text=True
    ) as running:
        os.close(tell)
        with os.fdopen(ready) as line:
            url = json.loads(line.readline())["url"]
            assert line.read() == ""
        try:
            yield running, url
        finally:
            running.kill()


def post(url: str, body: object) -> str:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_and_stops_cleanly(number: signal.Signals) -> None:
    with process("--tokens", "3", "--models", "a, b", "--cut", "0") as (running, url):
        body = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
        answer = json.loads(post(f"{url}/chat/completions", body))
        assert answer["usage"]["completion_tokens"] == 3
        running.send_signal(number)
        assert running.wait(10) == 0
        assert running.stderr is not None
        assert running.stderr.read() == f"fake provider at {url}\n"


def test_settings_that_cannot_be_exit_3_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeProvider() as provider:
        for options, word in (
            (["--port", str(provider.port)], "cannot listen"),
            (["--rate-429", "5"], "rate_429"),
            (["--latency", "-1"], "--latency"),
            (["--latency", "nan"], "--latency"),
            (["--tokens", "0"], "--tokens"),
        ):
            assert main(options) == 3
            line = capsys.readouterr().err
            assert word in line
            assert line.count("\n") == 1


def test_names_load_when_they_are_used() -> None:
    script = (
        "import sys, aiforge.testing as t\n"
        "assert 'aiohttp' not in sys.modules and 'langchain_core' not in sys.modules\n"
        "t.FakeProvider, t.Reply\n"
        "assert 'langchain_core' not in sys.modules\n"
        "assert all(getattr(t, name) is not None for name in t.__all__)\n"
        "assert 'pytest' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, timeout=60)
