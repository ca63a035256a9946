"""`aiforge batch run` while the API is away for some seconds: it asks again, and nothing is asked twice."""

from __future__ import annotations

import csv
import http.client
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from aiforge.cli.connect import AWAY_SECONDS, is_gone
from aiforge.client import BadRequestError, Client, UnreachableError
from aiforge.testing import FakeProvider
from tests.aiforge.cli.command import SECONDS, Desk
from tests.support.processes import Start
from tests.support.waiting import wait_until

ASKS_AGAIN = "asks again for up to 2:00"
TRIES = 4
"""More than a client repeats a request by itself."""


class Gateway(ThreadingHTTPServer):
    """Stands before an API and, of the requests that contain `away`, cuts the connection."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.behind = port
        self.away: str | None = None
        self.refused: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that goes away in the middle is none."""


class Passing(BaseHTTPRequestHandler):
    """Passes a request on, and its answer back."""

    server: Gateway

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        away = self.server.away
        if away is not None and away in f"{self.command} {self.path}":
            self.server.refused[away] += 1
            self.close_connection = True
            return
        there = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=SECONDS)
        there.request(self.command, self.path, body, dict(self.headers))
        answer = there.getresponse()
        content = answer.read()
        there.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _pass  # noqa: N815  # as the server looks for them


@pytest.fixture
def gateway(api_process: Start) -> Iterator[Gateway]:
    with Gateway(int(api_process().url.rpartition(":")[2])) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_run_outlasts_an_api_that_is_away_for_some_seconds(
    desk: Desk, gateway: Gateway, worker_process: Start, provider: FakeProvider
) -> None:
    """While it looks for its batches, while it posts one, and while it takes rows in."""
    command = ("batch", "run", "in.csv", "-o", "out.csv")
    (desk.folder / "in.csv").write_text("question\none?\n")
    first = desk.start(*command, AIFORGE_API_URL=gateway.url)
    first.wait_for(": 1 items")
    first.end(signal.SIGINT)

    (desk.folder / "in.csv").write_text("question\none?\ntwo?\n")
    gateway.away = "GET /v1/batches/"
    second = desk.start(*command, AIFORGE_API_URL=gateway.url)
    second.wait_for(ASKS_AGAIN)
    gateway.away = "POST /v1/batches"
    second.wait_for("goes on with batch")
    wait_until(
        lambda: second.err.count(ASKS_AGAIN) == 2 and gateway.refused["POST /v1/batches"] >= TRIES, SECONDS
    )
    gateway.away = "/results"
    worker_process()
    second.wait_for(": 1 items")
    wait_until(lambda: gateway.refused["/results"] >= TRIES, SECONDS)
    gateway.away = None
    ended = second.end()
    assert ended.code == 0, ended
    with (desk.folder / "out.csv").open(newline="") as file:
        assert [(row["question"], row["status"]) for row in csv.DictReader(file)] == [
            ("one?", "ok"),
            ("two?", "ok"),
        ]
    assert len(provider.calls) == 2
    with Client(gateway.url) as client:
        assert len(list(client.batches())) == 2, "a post that is repeated makes no second batch"


def test_of_a_service_that_was_never_there_nobody_waits_for_the_return(desk: Desk, gateway: Gateway) -> None:
    gateway.away = "/v1/"
    ended = desk.run("batch", "run", "in.jsonl", "-o", "out.jsonl", AIFORGE_API_URL=gateway.url)
    assert ended.code == 1
    assert ASKS_AGAIN not in ended.err
    assert "detached while a batch was posted or looked for: it may be at work" in ended.err, "it may be"


def test_patience_ends() -> None:
    away = UnreachableError("no answer")
    now = time.monotonic()
    assert not is_gone(away, now - AWAY_SECONDS / 2)
    assert is_gone(away, now - AWAY_SECONDS - 1)
    assert is_gone(BadRequestError("no", status=400, code="no"), now), (
        "what is refused would be refused again"
    )
