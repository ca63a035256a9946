"""Who may call: with a token whoever has it, without one only this machine.

A page in a browser on this machine is not its user: a request that names another host (DNS
rebinding) or comes from another site's page (Origin) is refused when no token is set.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import Problem
from api.settings import is_loopback

OPEN: Final = frozenset({"/", "/livez", "/readyz", "/metrics", "/docs", "/openapi.json"})
"""What needs no token: numbers and documentation, nothing of anyone's data."""
OPEN_FOLDER: Final = "/docs/"
_SCHEME: Final = re.compile(r"^https?://")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
"""A host and perhaps a port, and nothing that some reader might take for either."""


class Gate:
    """ASGI: lets a request in or answers 401 or 403 itself."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._refused(scope["path"], Headers(scope=scope))
            if refused is not None:
                await refused.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refused(self, path: str, headers: Headers) -> Problem | None:
        if self._token is None:
            return _stranger(headers)
        if path in OPEN or path.startswith(OPEN_FOLDER):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            return _unauthorized("missing_token", "send the API token as Authorization: Bearer")
        if not hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token):
            return _unauthorized("invalid_token", "this API token is not the right one")
        return None


def _unauthorized(code: str, message: str) -> Problem:
    return Problem(401, code, message, headers={"WWW-Authenticate": "Bearer"})


def _stranger(headers: Headers) -> Problem | None:
    if not _is_here(headers.get("host", "")):
        return Problem(
            403,
            "forbidden_host",
            "without an API token the host must be this machine, as localhost or 127.0.0.1",
        )
    origin = headers.get("origin")
    if origin is not None and not _is_here(_SCHEME.sub("", origin)):
        return Problem(403, "forbidden_origin", "without an API token only pages of this machine may call")
    return None


def _is_here(where: str) -> bool:
    host = _HOST.fullmatch(where)
    return host is not None and is_loopback(host[1].lower())
