"""The outermost layer: a request id, one log line, the metrics, and an answer whatever happens."""

from __future__ import annotations

import re
import secrets
import time
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from api.auth import CALLER
from api.errors import UNEXPECTED, Problem
from api.metrics import UNMATCHED, Metrics
from worker.contract.logs import where

REQUEST_ID: Final = "x-request-id"
TURN_ID: Final = "aiforge.turn_id"
"""Where a route leaves the turn's id in the scope, for the log line."""

_SANE: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_GONE: Final = 499
"""The status in log and metrics of a request whose sender left before an answer began."""
_QUIET: Final = frozenset({"/livez", "/readyz", "/metrics"})


class Edge:
    """ASGI: wraps everything else."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, log: FilteringBoundLogger) -> None:
        self._app = app
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        answered = 0.0
        request_id = _request_id(scope)
        status = _GONE

        async def noting(message: Message) -> None:
            nonlocal answered, status
            if message["type"] == "http.response.start":
                answered = time.perf_counter()
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID.encode(), request_id)]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001  # where a request ends, whatever it ran into
            self._log.error(
                "request_failed",
                request_id=request_id.decode(),
                error=type(error).__name__,
                frames=where(error),
            )
            if not answered:
                await Problem(*UNEXPECTED).response()(scope, receive, noting)
        finally:
            now = time.perf_counter()
            route = _route(scope)
            self._metrics.answered(route, scope["method"], status, (answered or now) - started)
            self._write(scope, route, status, request_id, now - started)

    def _write(self, scope: Scope, route: str, status: int, request_id: bytes, seconds: float) -> None:
        level = 10 if scope["path"] in _QUIET else 20
        fields = {"turn_id": scope[TURN_ID]} if TURN_ID in scope else {}
        if CALLER in scope and (key := scope[CALLER].api_key) is not None:
            fields["api_key"] = key
        self._log.log(
            level,
            "request",
            request_id=request_id.decode(),
            method=scope["method"],
            route=route,
            status=status,
            ms=round(seconds * 1000, 1),
            **fields,
        )


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == REQUEST_ID.encode() and _SANE.fullmatch(value):
            given: bytes = value
            return given
    return f"req_{secrets.token_hex(8)}".encode()


def _route(scope: Scope) -> str:
    """The route's template, such as `/v1/turns/{turn_id}`."""
    route = scope.get("route")
    return UNMATCHED if route is None else str(route.path)
