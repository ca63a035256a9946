"""Request bodies: refused before they are read when they cannot be right, then decoded once.

Bodies are decoded straight into the contract's structs: a batch of 50,000 items takes tens of
milliseconds, and what does not fit is named by its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import wording
from api.errors import LONGEST_PARAM, Problem
from worker.contract.memory.transfer import ConversationExport
from worker.contract.schedule.schemas import ScheduleChange, ScheduleRequest
from worker.contract.schemas import (
    BatchItem,
    BatchRequest,
    ConversationSettings,
    StoredMessage,
    TurnRequest,
)

T = TypeVar("T")
_FIELD: Final = re.compile(r"(unknown|required) field `([^`]*)`")
_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
JSON: Final = "application/json"
FORM: Final = "multipart/form-data"
_DISCARDED: Final = 16 * 1024 * 1024
_DISCARD_SECONDS: Final = 2.0
"""How much of a refused body is read, and for how long, so that its sender gets to the answer."""


_DECIMAL: Final = {"format": "decimal"}
_DIGITS: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\Z"
"""Python would also read `1_0`, ` 10` and digits of other scripts."""
_Usd = Annotated[str, msgspec.Meta(pattern=_DIGITS, extra_json_schema=_DECIMAL)]
_WholeUsd = Annotated[int, msgspec.Meta(extra_json_schema=_DECIMAL)]
_PartUsd = Annotated[float, msgspec.Meta(extra_json_schema=_DECIMAL)]


class TurnBody(TurnRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn as it is posted."""

    client_message_id: str | None = None

    def request(self) -> TurnRequest:
        return TurnRequest(**{name: getattr(self, name) for name in TurnRequest.__struct_fields__})


class ConversationBody(ConversationSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation as it is posted."""

    conversation_id: str | None = None

    def settings(self) -> ConversationSettings:
        return ConversationSettings(
            **{name: getattr(self, name) for name in ConversationSettings.__struct_fields__}
        )


class BatchBody(BatchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch as it is posted: an item may be just its message."""

    items: list[BatchItem | str] = msgspec.field(default_factory=list)  # type: ignore[assignment]  # wider
    max_cost: _Usd | _WholeUsd | _PartUsd | None = None  # type: ignore[assignment]  # in plain digits

    def request(self) -> BatchRequest:
        items = [BatchItem(message=item) if isinstance(item, str) else item for item in self.items]
        fields = {name: getattr(self, name) for name in BatchRequest.__struct_fields__}
        cost = None if self.max_cost is None else Decimal(str(self.max_cost))
        kept = msgspec.UNSET if self.cache_ttl is None else self.cache_ttl
        return BatchRequest(**{**fields, "items": items, "cache_ttl": kept, "max_cost": cost})


class ScheduleBody(ScheduleRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule as it is posted, with a batch as that is posted."""

    batch: BatchBody | None = None

    def request(self) -> ScheduleRequest:
        fields = {name: getattr(self, name) for name in ScheduleRequest.__struct_fields__}
        return ScheduleRequest(**{**fields, "batch": self.batch and self.batch.request()})


class ResumeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a turn's question."""

    question_id: str
    answer: str


class QueueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waiting turns as they were seen, and the order they are to have."""

    expected: list[str]
    turns: list[str]


class MessageBody(StoredMessage, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message of a conversation that comes in."""


class ImportBody(ConversationExport, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exported conversation as it is posted."""

    version: int
    messages: list[MessageBody]


TURN: Final = msgspec.json.Decoder(TurnBody)
CONVERSATION: Final = msgspec.json.Decoder(ConversationBody)
BATCH: Final = msgspec.json.Decoder(BatchBody)
SCHEDULE: Final = msgspec.json.Decoder(ScheduleBody)
SCHEDULE_CHANGE: Final = msgspec.json.Decoder(ScheduleChange)
RESUME: Final = msgspec.json.Decoder(ResumeBody)
QUEUE: Final = msgspec.json.Decoder(QueueBody)
IMPORT: Final = msgspec.json.Decoder(ImportBody)


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as a struct; raises Problem 400 naming the field that is wrong."""
    if not body.strip():
        raise _bad_json("the body is empty; a JSON object is expected")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse(str(error), decoder.type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad_json(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise _bad_json("the body is nested too deeply") from None


def _bad_json(message: str) -> Problem:
    return Problem(400, "invalid_json", message)


def _refuse(message: str, kind: Any) -> NoReturn:
    """Say what is right where msgspec says what is wrong."""
    path, found, schema = _PATH.search(message), _FIELD.search(message), _schema(kind)
    place = path[1] if path else ""
    if found is None:
        param, right = place.removesuffix("[...]"), wording.of_field(schema, place)
        said = f"must be {right}" if right else _PATH.sub("", message)
        raise Problem(400, "invalid_value", f"{param or 'the body'}: {said}", param=param or None)
    param = (f"{place}.{found[2]}" if place else found[2])[:LONGEST_PARAM]
    if found[1] == "required":
        right = wording.of_field(schema, param)
        raise Problem(
            400, "missing_field", f"{param}: this field is required; it must be {right}", param=param
        )
    known = ", ".join(wording.fields(schema, place))
    raise Problem(400, "unknown_field", f"{param}: there is no such field; known: {known}", param=param)


@functools.cache
def _schema(kind: Any) -> dict[str, Any]:
    return msgspec.json.schema(kind)


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
