"""Who may call, and as whom: with tokens whoever has one, without any only this machine.

A page in a browser on this machine is not its user: a request that names another host (DNS
rebinding) or comes from another site's page (Origin) is refused when no token is set.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import Problem
from api.settings import ApiSettings, is_loopback
from worker.contract.schemas import Caller

CALLER: Final = "aiforge.caller"
"""Where the gate leaves in the scope who calls."""
OPEN: Final = frozenset({"/", "/livez", "/readyz", "/metrics", "/docs", "/openapi.json"})
"""What needs no token: numbers and documentation, nothing of anyone's data."""
OPEN_FOLDER: Final = "/docs/"
_SCHEME: Final = re.compile(r"^https?://")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
"""A host and perhaps a port, and nothing that some reader might take for either."""


def callers(settings: ApiSettings) -> dict[bytes, Caller]:
    """Who calls with which token, by the token's digest: how long a look takes says nothing of any token."""
    found = {} if settings.api_token is None else {_digest_of(settings.api_token): Caller()}
    return found | {
        _digest_of(key.token): Caller(key.tenant, name) for name, key in settings.api_keys.items()
    }


class Gate:
    """ASGI: lets a request in, as its caller's, or answers 401 or 403 itself."""

    def __init__(self, app: ASGIApp, *, callers: Mapping[bytes, Caller]) -> None:
        """Without callers this machine may call."""
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope[CALLER] = self._caller(scope["path"], Headers(scope=scope))
            except Problem as refused:
                await refused.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _caller(self, path: str, headers: Headers) -> Caller:
        """Raises Problem for who may not call."""
        if not self._callers:
            _check_is_here(headers)
            return Caller()
        if path in OPEN or path.startswith(OPEN_FOLDER):
            return Caller()
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise _unauthorized("missing_token", "send the API token as Authorization: Bearer")
        caller = self._callers.get(_digest(given.strip().encode("latin-1", "replace")))
        if caller is None:
            raise _unauthorized("invalid_token", "this API token is not known here")
        return caller


def _digest_of(secret: SecretStr) -> bytes:
    return _digest(secret.get_secret_value().encode())


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _unauthorized(code: str, message: str) -> Problem:
    return Problem(401, code, message, headers={"WWW-Authenticate": "Bearer"})


def _check_is_here(headers: Headers) -> None:
    if not _is_here(headers.get("host", "")):
        raise Problem(
            403,
            "forbidden_host",
            "without an API token the host must be this machine, as localhost or 127.0.0.1",
        )
    origin = headers.get("origin")
    if origin is not None and not _is_here(_SCHEME.sub("", origin)):
        raise Problem(403, "forbidden_origin", "without an API token only pages of this machine may call")


def _is_here(where: str) -> bool:
    host = _HOST.fullmatch(where)
    return host is not None and is_loopback(host[1].lower())
