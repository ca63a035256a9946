"""Bodies are refused by their headers, or while they arrive, before anything is made of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Problem
from api.replies import JSON

FORM: Final = "multipart/form-data"
_DISCARDED: Final = 16 * 1024 * 1024
_DISCARD_SECONDS: Final = 2.0
"""How much of a refused body is read, and for how long, so that its sender gets to the answer."""


class BodyLimit:
    """ASGI: refuses a body by its headers, or while it arrives, as soon as it is too long."""

    def __init__(
        self, app: ASGIApp, *, limit: int, limits: Mapping[str, int], forms: Collection[str]
    ) -> None:
        """`limits` are of paths that take more than `limit`, `forms` are paths to which forms are posted."""
        self._app = app
        self._limit = limit
        self._limits = limits
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        limit = self._limits.get(path, self._limit)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        form = path in self._forms and scope["method"] == "POST"
        refused = _refused(headers, limit, FORM if form else JSON)
        if refused is not None:
            await _answer_unread(refused, int(headers.get(b"content-length", b"0")), receive, send)
            return
        left = limit

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    await _discard(receive)
                    raise _too_large(limit)
            return message

        await self._app(scope, limited, send)


async def _answer_unread(problem: Problem, length: int, receive: Receive, send: Send) -> None:
    """Answer first, then read on for a while: closing on unread bytes would reset the answer away."""
    reply = problem.response()
    await send({"type": "http.response.start", "status": reply.status_code, "headers": reply.raw_headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    if length <= _DISCARDED:
        await _discard(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive) -> None:
    left = _DISCARDED
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _refused(headers: Mapping[bytes, bytes], limit: int, wanted: str) -> Problem | None:
    length = headers.get(b"content-length", b"0")
    has_body = b"transfer-encoding" in headers or length.strip(b"0 ")
    if not has_body:
        return None
    if length.isdigit() and int(length) > limit:
        return _too_large(limit)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return _unread(415, "unsupported_encoding", "send the body without Content-Encoding")
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != wanted.encode():
        return _unread(415, "unsupported_media_type", f"send the body as Content-Type: {wanted}")
    return None


def _too_large(limit: int) -> Problem:
    return _unread(413, "body_too_large", f"the body is longer than {limit} bytes")


def _unread(status: int, code: str, message: str) -> Problem:
    """An answer given with the body still unread: the connection cannot carry another request."""
    return Problem(status, code, message, headers={"Connection": "close"})
