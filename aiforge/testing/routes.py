"""The HTTP face of the provider: its routes, its refusals, and the life of one call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from time import time
from typing import Any

import msgspec
from aiohttp import web

from aiforge.testing.answer import Surroundings, give
from aiforge.testing.calls import CallLog, End, RecordedCall, shown_headers
from aiforge.testing.exchange import Exchange, Written
from aiforge.testing.playbook import Playbook
from aiforge.testing.responses import AskedResponse, ResponseRequest, as_chat
from aiforge.testing.script import Script
from aiforge.testing.validate import MessageListError, check_messages
from aiforge.testing.wire import ChatRequest, encode, error_body, models_body

DEFAULT_MODEL = "fake-model"

_decode_request = msgspec.json.Decoder(ChatRequest).decode
_decode_response = msgspec.json.Decoder(ResponseRequest).decode
_decode_script = msgspec.json.Decoder(Script).decode
_FIELD = re.compile(r"\$\.(\w+)|field `(\w+)`")
_KEPT = Written(keep_alive=True)
_CLOSED = Written(keep_alive=False)


class Access(msgspec.Struct, frozen=True):
    """Who and what is let in; see FakeProvider."""

    models: tuple[str, ...] = ()
    api_key: str | None = None
    strict: bool = False


def _response_request(raw: bytes) -> ChatRequest:
    return as_chat(_decode_response(raw), msgspec.json.decode(raw))


_ANSWERED: dict[str, Callable[[bytes], ChatRequest]] = {
    "/v1/chat/completions": _decode_request,
    "/v1/responses": _response_request,
}


class _Refused(Exception):
    """The request is answered with an error before any reply is chosen."""

    def __init__(self, status: int, message: str, **fields: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, **fields)


class Routes:
    """Serves requests; all state that tests look at is in `calls` and `playbook`."""

    def __init__(
        self, calls: CallLog, playbook: Playbook, access: Access, *, latency: float, gap: float
    ) -> None:
        self.calls = calls
        self._playbook = playbook
        self._access = access
        self._around = Surroundings(latency, gap, self.gate, calls.changed)
        self._gates: dict[str, asyncio.Event] = {}
        self._created = int(time())
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def reset(self) -> None:
        self._playbook.reset()
        self._gates.clear()
        self.calls.clear()

    async def stop(self) -> None:
        """Break off the calls that still run."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """aiohttp's handler for every request."""
        transport = request.transport
        if transport is None:
            return _CLOSED
        raw = await request.read()
        exchange = Exchange(transport, keep_alive=request.keep_alive)
        if request.path in _ANSWERED and request.method == "POST":
            await self._call(request, raw, exchange)
        else:
            self._other(request, raw, exchange)
        exchange.complete()
        return _KEPT if exchange.keep_alive else _CLOSED

    async def _call(self, request: web.BaseRequest, raw: bytes, exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        call = self.calls.start(shown_headers(request.raw_headers), raw, request.path)
        end: End = "closed"
        try:
            end = await self._answer(call, request, exchange)
        except _Refused as refusal:
            call.status = refusal.status
            exchange.send(refusal.status, refusal.body, {})
            end = "refused"
        finally:
            self._tasks.discard(task)
            self.calls.finish(call, "stopped" if self._stopping and end == "closed" else end)

    async def _answer(self, call: RecordedCall, request: web.BaseRequest, exchange: Exchange) -> End:
        asked = self._check(call, request)
        call.model, call.stream = asked.model, bool(asked.stream)
        try:
            reply = self._playbook.choose(call, asked)
            return await give(reply, call, asked, exchange, self._around)
        except Exception as error:  # a scripted function is a test's own code: it may raise anything
            call.fault = repr(error)
            if call.status is not None:
                exchange.drop("reset")
                return "cut"
            raise _Refused(500, f"the script failed: {error!r}", code="script_failed") from error

    def _check(self, call: RecordedCall, request: web.BaseRequest) -> ChatRequest:
        access = self._access
        if access.api_key is not None and request.headers.get("Authorization") != f"Bearer {access.api_key}":
            raise _Refused(401, "Incorrect API key provided.")
        try:
            asked = _ANSWERED[call.path](call.raw)
        except msgspec.ValidationError as error:
            found = _FIELD.search(str(error))
            param = next(filter(None, found.groups()), None) if found else None
            raise _Refused(400, f"Invalid request: {error}", param=param) from None
        except msgspec.DecodeError as error:
            raise _Refused(400, f"We could not parse the JSON body of your request: {error}") from None
        if access.models and asked.model not in access.models:
            raise _Refused(
                404, f"The model `{asked.model}` does not exist.", code="model_not_found", param="model"
            )
        _check_response(asked)
        if asked.n not in (None, 1):
            raise _Refused(400, "Only n=1 is served.", param="n")
        if access.strict:
            try:
                check_messages(asked.messages)
            except MessageListError as error:
                raise _Refused(400, f"Invalid 'messages': {error}", param="messages") from None
        return asked

    def _other(self, request: web.BaseRequest, raw: bytes, exchange: Exchange) -> None:
        routes: dict[tuple[str, str], Callable[[web.BaseRequest, bytes], bytes]] = {
            ("GET", "/v1/models"): self._get_models,
            ("GET", "/calls"): self._get_calls,
            ("POST", "/script"): self._post_script,
            ("POST", "/open"): self._post_open,
            ("POST", "/reset"): self._post_reset,
        }
        route = routes.get((request.method, request.path))
        try:
            if route is None:
                raise _Refused(
                    404, f"Unknown request URL: {request.method} {request.path}.", code="unknown_url"
                )
            exchange.send(200, route(request, raw), {})
        except _Refused as refusal:
            exchange.send(refusal.status, refusal.body, {})

    def _get_models(self, request: web.BaseRequest, raw: bytes) -> bytes:
        return models_body(self._access.models or (DEFAULT_MODEL,), self._created)

    def _get_calls(self, request: web.BaseRequest, raw: bytes) -> bytes:
        """`?after=N` leaves out the calls up to number N."""
        after = request.query.get("after", "0")
        if not after.isdecimal():
            raise _Refused(400, "after is the number of a call.", param="after")
        log = self.calls
        return encode(
            {
                "total": log.total,
                "running": log.running,
                "peak_concurrency": log.peak_concurrency,
                "reported": log.reported,
                "untold": log.untold,
                "calls": [call.as_dict() for call in log if call.number > int(after)],
            }
        )

    def _post_script(self, request: web.BaseRequest, raw: bytes) -> bytes:
        try:
            return encode({"waiting": self._playbook.extend(_decode_script(raw))})
        except msgspec.DecodeError as error:
            raise _Refused(400, f"Invalid script: {error}") from None

    def _post_open(self, request: web.BaseRequest, raw: bytes) -> bytes:
        try:
            gate = msgspec.json.decode(raw, type=dict[str, str])["gate"]
        except (msgspec.DecodeError, KeyError):
            raise _Refused(400, 'The body is {"gate": NAME}.', param="gate") from None
        self.gate(gate).set()
        return encode({"gate": gate})

    def _post_reset(self, request: web.BaseRequest, raw: bytes) -> bytes:
        self.reset()
        return b"{}"


def _check_response(asked: ChatRequest) -> None:
    """Nothing is stored here, and nothing runs in the background."""
    if not isinstance(asked, AskedResponse):
        return
    earlier = asked.asked.get("previous_response_id")
    if earlier is not None:
        raise _Refused(
            400,
            f"Previous response with id '{earlier}' not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    if asked.asked.get("background"):
        raise _Refused(400, "Background responses are not served.", param="background")
