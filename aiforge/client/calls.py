"""Every request of the client and how its answer is read, without doing any of it.

A `Call` is a value; the sync and the async client differ only in how they send one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import IO, Any, Final, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from aiforge.client.errors import ProtocolError, RequestError, from_response
from aiforge.client.results import (
    Batch,
    Content,
    Conversation,
    Erasure,
    Export,
    Item,
    Message,
    Queue,
    Row,
    Turn,
    UsageReport,
)

T = TypeVar("T")
_encode: Final = msgspec.json.Encoder().encode

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
LONGEST_WAIT_SECONDS: Final = 30.0
PAGE_MESSAGES: Final = 100
PAGE_ROWS: Final = 1000
PAGE_CONVERSATIONS: Final = 100
_NO_IDS: Final = frozenset({"", ".", ".."})
"""As a segment of a URL these lead elsewhere."""


@dataclass(frozen=True, slots=True)
class Form:
    """A file that is sent as a form with these fields, read while it goes out."""

    name: str
    file: IO[bytes]
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. A `repeatable` one may be sent again when its answer was lost.

    `settled` says of a POST that a second one finds done what the first did and answers the same.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    form: Form | None = None
    seconds: float = ANSWER_SECONDS
    settled: bool = False

    @property
    def repeatable(self) -> bool:
        return self.method == "GET" or self.settled or "Idempotency-Key" in self.headers

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        headers = dict(self.headers)
        if self.content is not None:
            headers["Content-Type"] = "application/json"
        form = self.form
        return client.build_request(
            self.method,
            self.path,
            params=dict(self.params),
            headers=headers,
            content=self.content,
            data=None if form is None else dict(form.fields),
            files=None if form is None else {"file": (form.name, form.file)},
            timeout=httpx.Timeout(self.seconds, connect=CONNECT_SECONDS),
        )

    def answer(self, response: httpx.Response) -> T:
        """Raises APIError for a refusal and ProtocolError for an answer that is not ours."""
        if not response.is_success:
            raise from_response(response)
        try:
            return self.read(response)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{self.path} answered something unexpected: {error}") from None


def http_options(base_url: str, token: str | None) -> dict[str, Any]:
    """What both httpx clients are made with; a loopback service is never asked through a proxy."""
    headers = {"User-Agent": "aiforge"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    url = httpx.URL(base_url)
    here = url.host in {"localhost", "::1"} or url.host.startswith("127.")
    return {"base_url": url, "headers": headers, "trust_env": not here}


def one(kind: type[T]) -> Callable[[httpx.Response], T]:
    """Reads an answer that is one object of this kind."""
    decoder = msgspec.json.Decoder(kind)
    return lambda response: decoder.decode(response.content)


_turn: Final = one(Turn)
_conversation: Final = one(Conversation)
_batch: Final = one(Batch)
_row: Final = msgspec.json.Decoder(Row)


class Page(msgspec.Struct):
    """Some messages of a conversation, and whether there are more."""

    data: list[Message]
    has_more: bool = False


class Letters(msgspec.Struct):
    """Dead letters."""

    data: list[Turn]


class Listed(msgspec.Struct):
    """Some conversations, and what `before` has to be for the next ones."""

    data: list[Conversation]
    next: str | None = None


_messages: Final = one(Page)
_letters: Final = one(Letters)
_listed: Final = one(Listed)
_queue: Final = one(Queue)
_erasure: Final = one(Erasure)
_export: Final = one(Export)
_usage: Final = one(UsageReport)


def nothing(response: httpx.Response) -> None:
    """The answer is that there is no error."""


def _rows(response: httpx.Response) -> list[Row]:
    # Only LF separates lines: a U+2028 inside an answer does not.
    return [_row.decode(line) for line in response.content.split(b"\n") if line.strip()]


def _body(fields: Mapping[str, Any]) -> bytes:
    return as_json({name: value for name, value in fields.items() if value is not None})


def as_json(fields: Mapping[str, Any]) -> bytes:
    """A body of these fields; raises RequestError naming one that cannot be written."""
    given: dict[str, msgspec.Raw] = {}
    for name, value in fields.items():
        try:
            given[name] = msgspec.Raw(_encode(value))
        except UnicodeEncodeError:
            raise RequestError(f"{name} holds a lone surrogate, which is no character") from None
    return _encode(given)


def submit(
    message: Content,
    *,
    conversation_id: str | None,
    if_not_exists: str | None,
    idempotency_key: str | None,
    wait: float | None,
    on_disconnect: str | None,
    fields: Mapping[str, Any],
) -> Call[Turn]:
    path = "/v1/turns" if conversation_id is None else f"/v1/conversations/{_id(conversation_id)}/turns"
    params = {}
    if if_not_exists is not None:
        params["if_not_exists"] = if_not_exists
    if wait is not None:
        params["wait"] = f"{wait:g}"
    if on_disconnect is not None:
        params["on_disconnect"] = on_disconnect
    return Call(
        "POST",
        path,
        _turn,
        params=params,
        headers={} if idempotency_key is None else {"Idempotency-Key": idempotency_key},
        content=_body({"message": message, **fields}),
        seconds=ANSWER_SECONDS + (wait or 0),
    )


def turn(turn_id: str, wait: float | None = None) -> Call[Turn]:
    params = {} if wait is None else {"wait": f"{wait:g}"}
    return Call(
        "GET", f"/v1/turns/{_id(turn_id)}", _turn, params=params, seconds=ANSWER_SECONDS + (wait or 0)
    )


def find_turn(idempotency_key: str, conversation_id: str | None) -> Call[Turn]:
    params = {"idempotency_key": idempotency_key}
    if conversation_id is not None:
        params["conversation_id"] = conversation_id
    return Call("GET", "/v1/turns", _turn, params=params)


def cancel(turn_id: str, if_state: str | None) -> Call[Turn]:
    params = {} if if_state is None else {"if_state": if_state}
    path = f"/v1/turns/{_id(turn_id)}/cancel"
    return Call("POST", path, _turn, params=params, settled=if_state is None)


def resume(turn_id: str, question_id: str, answer: str) -> Call[Turn]:
    body = _body({"question_id": question_id, "answer": answer})
    return Call("POST", f"/v1/turns/{_id(turn_id)}/resume", _turn, content=body, settled=True)


def dead_letters(limit: int) -> Call[Letters]:
    return Call("GET", "/v1/dead", _letters, params={"limit": str(limit)})


def requeue_dead(turn_id: str) -> Call[Turn]:
    return Call("POST", f"/v1/dead/{_id(turn_id)}/requeue", _turn, settled=True)


def drop_dead(turn_id: str) -> Call[None]:
    return Call("DELETE", f"/v1/dead/{_id(turn_id)}", nothing)


def create_conversation(conversation_id: str | None, fields: Mapping[str, Any]) -> Call[Conversation]:
    body = _body({"conversation_id": conversation_id, **fields})
    return Call("POST", "/v1/conversations", _conversation, content=body)


def conversation(conversation_id: str) -> Call[Conversation]:
    return Call("GET", f"/v1/conversations/{_id(conversation_id)}", _conversation)


def conversations(before: str | None, busy: bool | None, metadata: Mapping[str, str] | None) -> Call[Listed]:
    params: dict[str, str | Sequence[str]] = {"limit": str(PAGE_CONVERSATIONS)}
    if before is not None:
        params["before"] = before
    if busy is not None:
        params["busy"] = str(busy).lower()
    if metadata:
        params["metadata"] = [f"{key}={value}" for key, value in metadata.items()]
    return Call("GET", "/v1/conversations", _listed, params=params)


def queue(conversation_id: str) -> Call[Queue]:
    return Call("GET", f"/v1/conversations/{_id(conversation_id)}/queue", _queue)


def reorder(conversation_id: str, expected: Sequence[str], turns: Sequence[str]) -> Call[Queue]:
    body = _body({"expected": list(expected), "turns": list(turns)})
    return Call("PUT", f"/v1/conversations/{_id(conversation_id)}/queue", _queue, content=body)


def erase(conversation_id: str) -> Call[Erasure]:
    return Call("DELETE", f"/v1/conversations/{_id(conversation_id)}", _erasure)


def export(conversation_id: str) -> Call[Export]:
    path = f"/v1/conversations/{_id(conversation_id)}/export"
    return Call("GET", path, _export, seconds=5 * ANSWER_SECONDS)


def import_conversation(document: Export, conversation_id: str | None) -> Call[Conversation]:
    fields = msgspec.structs.asdict(document)
    body = _body(fields if conversation_id is None else {**fields, "conversation_id": conversation_id})
    path = "/v1/conversations/import"
    return Call("POST", path, _conversation, content=body, seconds=5 * ANSWER_SECONDS)


def usage(group_by: Sequence[str], first: date | None, last: date | None) -> Call[UsageReport]:
    params: dict[str, str | Sequence[str]] = {"group_by": list(group_by)} if group_by else {}
    for name, day in (("from", first), ("to", last)):
        if day is not None:
            params[name] = day.isoformat()
    return Call("GET", "/v1/usage", _usage, params=params)


def messages(conversation_id: str, after: int, limit: int) -> Call[Page]:
    params = {"after": str(after), "limit": str(limit)}
    return Call("GET", f"/v1/conversations/{_id(conversation_id)}/messages", _messages, params=params)


def submit_batch(
    items: Iterable[str | Item], fields: Mapping[str, Any], idempotency_key: str | None = None
) -> Call[Batch]:
    whole = [Item(message=item) if isinstance(item, str) else item for item in items]
    body = _body({"items": whole, **fields})
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    return Call("POST", "/v1/batches", _batch, headers=headers, content=body, seconds=5 * ANSWER_SECONDS)


def batch(batch_id: str) -> Call[Batch]:
    return Call("GET", f"/v1/batches/{_id(batch_id)}", _batch)


def cancel_batch(batch_id: str) -> Call[Batch]:
    return Call("POST", f"/v1/batches/{_id(batch_id)}/cancel", _batch)


def results(batch_id: str, after: int, limit: int) -> Call[list[Row]]:
    params = {"after": str(after), "limit": str(limit)}
    return Call("GET", f"/v1/batches/{_id(batch_id)}/results", _rows, params=params)


def ready() -> Call[None]:
    return Call("GET", "/readyz", nothing, seconds=CONNECT_SECONDS)


def events(turn_id: str) -> str:
    """The path of a turn's event stream."""
    return f"/v1/turns/{_id(turn_id)}/events"


def path_of(collection: str, identifier: str) -> str:
    """Where one thing of a collection is; raises RequestError for what can be no id."""
    return f"/v1/{collection}/{_id(identifier)}"


def conversation_path(conversation_id: str, part: str = "") -> str:
    """Where a conversation is, or a part of it."""
    return f"/v1/conversations/{_id(conversation_id)}" + (f"/{part}" if part else "")


def _id(value: str) -> str:
    try:
        quoted = quote(value, safe="")
    except UnicodeEncodeError:
        quoted = ""
    if quoted in _NO_IDS:
        raise RequestError(f"there can be no id {value!r}")
    return quoted
