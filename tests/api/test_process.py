"""`python -m api` as a process: ports, ready line, wrong settings, signals."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.settings import DEFAULT_PORT
from tests.support.processes import Service

PATIENCE_SECONDS = 30


class Starter:
    """Starts an API in an empty folder; an empty setting is left out."""

    def __init__(self, folder: Path, redis_url: str, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._redis_url = redis_url
        self._stack = stack

    def __call__(self, **settings: str) -> Service:
        return self._start(settings, loaded=True)

    def unloaded(self) -> Service:
        """As `python -m api` starts for everybody."""
        return self._start({}, loaded=False)

    def _start(self, settings: dict[str, str], *, loaded: bool) -> Service:
        known = {"AIFORGE_REDIS_URL": self._redis_url, "AIFORGE_PROVIDER": "offline", "AIFORGE_API_PORT": "0"}
        chosen = {name: value for name, value in (known | settings).items() if value}
        service = Service("api", self._folder, chosen, loaded=loaded)
        self._stack.callback(service.close)
        return service


def ended(service: Service) -> tuple[int, str]:
    """Its exit code and what it wrote."""
    return service.process.wait(PATIENCE_SECONDS), service.output


@pytest.fixture
def run(tmp_path: Path, redis_url: str) -> Iterator[Starter]:
    with contextlib.ExitStack() as stack:
        yield Starter(tmp_path, redis_url, stack)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_ends_well(run: Starter, number: signal.Signals) -> None:
    service = run.unloaded()
    url = service.url
    assert httpx.get(f"{url}/readyz", trust_env=False).json() == {"status": "ready"}

    service.process.send_signal(number)
    code, written = ended(service)
    assert code == 0
    assert f"api: ready at {url}" in written


def test_a_signal_ends_open_streams_at_once(run: Starter) -> None:
    service = run()
    url = service.url
    with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS) as http:
        headers = {"Accept": "text/event-stream"}
        with http.stream("POST", "/v1/turns", json={"message": "hi"}, headers=headers) as response:
            chunks = response.iter_raw()
            assert next(chunks).startswith(b": ping\n\n")
            service.process.send_signal(signal.SIGTERM)
            rest = b"".join(chunks)
    assert b"event: failed" not in rest
    assert ended(service)[0] == 0


def test_a_taken_default_port_moves_on_and_is_printed(run: Starter) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", DEFAULT_PORT)))
        service = run(AIFORGE_API_PORT="")
        port = int(service.url.rpartition(":")[2])
        service.process.terminate()
        assert port > DEFAULT_PORT
        assert f"api: port {DEFAULT_PORT} is taken, using {port}" in ended(service)[1]


def test_a_taken_chosen_port_is_an_error(run: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _refused(run(AIFORGE_API_PORT=str(port)), f"AIFORGE_API_PORT: port {port} is taken")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"AIFORGE_API_HOST": "0.0.0.0"}, "AIFORGE_API_HOST: 0.0.0.0 can be reached from other machines"),
        ({"AIFORGE_API_PORT": "http"}, "AIFORGE_API_PORT: "),
        ({"AIFORGE_API_PORT": "70000"}, "AIFORGE_API_PORT: "),
        ({"AIFORGE_API_PING_SECONDS": "0"}, "AIFORGE_API_PING_SECONDS: "),
        ({"AIFORGE_LOG_LEVEL": "loud"}, "AIFORGE_LOG_LEVEL: "),
        ({"AIFORGE_REDIS_URL": "localhost:6379"}, "AIFORGE_REDIS_URL: "),
        ({"AIFORGE_REDIS_URL": ""}, "AIFORGE_REDIS_URL: not set"),
        ({"AIFORGE_PROVIDER": "openai"}, "AIFORGE_OPENAI_API_KEY: "),
        (
            {"AIFORGE_API_HOST": "203.0.113.1", "AIFORGE_API_TOKEN": "t" * 32},
            "AIFORGE_API_HOST: cannot listen",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_3(run: Starter, settings: dict[str, str], line: str) -> None:
    _refused(run(**settings), line)


def test_a_store_that_is_not_there_is_one_line_and_exit_1(run: Starter) -> None:
    code, written = ended(run(AIFORGE_REDIS_URL="redis://:secret-password@127.0.0.1:1/0"))
    assert code == 1
    assert written.startswith("api: ")
    assert written.count("\n") == 1
    assert "secret-password" not in written


def test_a_signal_ends_it_while_it_still_looks_for_its_store(run: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        service = run(AIFORGE_REDIS_URL=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        connection, _ = silent.accept()
        with connection:
            service.process.send_signal(signal.SIGTERM)
            code, written = ended(service)
            assert code == 0, written


def _refused(service: Service, line: str) -> None:
    code, written = ended(service)
    assert (code, written.count("\n")) == (3, 1), written
    assert written.startswith(f"api: {line}")
