"""What a turn costs Redis: its scripts by name, seen from Redis itself while API and worker run."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
import redis

from aiforge.testing import FakeProvider
from tests.support.processes import Start
from tests.support.servers import RedisServer
from worker.contract.server.lua import load_scripts

UPKEEP: Final = frozenset({"heartbeat", "reap", "presence"})
"""What a worker calls whether it has turns or not."""
FLUSHES: Final = frozenset({"append"})
"""How many of these there are is up to the provider's pace."""
TURN: Final = {"submit": 1, "wake": 1, "claim": 1, "finish": 1}
REPLAY: Final = {"submit": 1}
READ: Final = "read"
"""Once for each reader who joins, and once for each second in which it hears nothing."""


class Watch:
    """All that a server is asked while this is open."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._names = {script.digest: name for name, script in load_scripts().items()}
        client: Any = redis.Redis(port=server.port, decode_responses=True)
        self._client, self._monitor = client, client.monitor()
        self._since = time.monotonic()

    def __enter__(self) -> Watch:
        self._monitor.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.closing(self._client):
            self._monitor.__exit__(*error)

    def scripts(self) -> dict[str, int]:
        """How often each script was called since this was asked last, but for upkeep and flushes."""
        called = Counter(self._called())
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        reads = called.pop(READ, 0)
        assert 1 <= reads <= 1 + int(seconds), f"{reads} reads in {seconds:.1f} s"
        return {name: count for name, count in called.items() if name not in UPKEEP | FLUSHES}

    def _called(self) -> Iterator[str]:
        end = f"ECHO {secrets.token_hex(8)}"
        self._server.ask(*end.split())
        while (seen := self._monitor.next_command())["command"] != end:
            command, _, rest = seen["command"].partition(" ")
            assert command != "EVAL", "a script was not loaded yet"
            if command == "EVALSHA" and seen["client_type"] != "lua":
                yield self._names[rest.partition(" ")[0]]


@pytest.mark.parametrize("key", [None, "order-7"], ids=["plain", "with a key"])
def test_a_streamed_turn_costs_five_scripts(
    key: str | None, *, server: RedisServer, worker_process: Start, api_process: Start, provider: FakeProvider
) -> None:
    """Those of a turn, and the one with which its reader joins."""
    worker_process()
    api = api_process()
    headers = {"Accept": "text/event-stream"}
    named = headers if key is None else {**headers, "Idempotency-Key": key}
    with httpx.Client(base_url=api.url, trust_env=False, timeout=30) as http:
        assert "event: done" in http.post("/v1/turns", json={"message": "Warm up."}, headers=headers).text
        with Watch(server) as watch:
            first = http.post("/v1/turns", json={"message": "Hello?"}, headers=named)
            assert "event: done" in first.text
            assert watch.scripts() == TURN
            if key is not None:
                again = http.post("/v1/turns", json={"message": "Hello?"}, headers=named)
                assert again.headers["idempotent-replayed"] == "true"
                assert again.text == first.text
                assert watch.scripts() == REPLAY
    assert len(provider.calls) == 2
