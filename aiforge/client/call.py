"""One request and how its answer is read, as a value; the sync and the async client differ only in how they
send it. `turn_calls` and its neighbours say which requests there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from aiforge.client.errors import ProtocolError, RequestError, from_response

T = TypeVar("T")
Params: TypeAlias = Mapping[str, str | Sequence[str]]

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
KEPT_CONNECTIONS: Final = 100
"""How many stay open when nothing is asked."""
_NO_IDS: Final = frozenset({"", ".", ".."})
"""As a segment of a URL these lead elsewhere."""
_encode: Final = msgspec.json.Encoder().encode


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
    params: Params = field(default_factory=dict)
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


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, and the call that asks for the next one, None behind the last."""

    data: Sequence[T]
    following: Call[Page[T]] | None


class Listed(msgspec.Struct, Generic[T]):
    """A list as the service answers it; `next` is where the next page begins, if pages are told so."""

    data: list[T]
    has_more: bool = False
    next: str | None = None


def one(kind: type[T]) -> Callable[[httpx.Response], T]:
    """Reads an answer that is one object of this kind."""
    decoder = msgspec.json.Decoder(kind)
    return lambda response: decoder.decode(response.content)


def listed(kind: type[T]) -> Callable[[httpx.Response], Listed[T]]:
    """Reads an answer that is a list of these."""
    decoder = msgspec.json.Decoder(Listed[kind])  # type: ignore[valid-type]  # a type that is a value
    return lambda response: decoder.decode(response.content)


def pages(
    kind: type[T], path: str, params: Params, following: Callable[[Listed[T]], Call[Page[T]]]
) -> Call[Page[T]]:
    """A list that comes in pages; `following` makes the next page's call from an answer that has one."""
    read = listed(kind)

    def page(response: httpx.Response) -> Page[T]:
        answer = read(response)
        more = answer.next is not None or (answer.has_more and answer.data)
        return Page(answer.data, following(answer) if more else None)

    return Call("GET", path, page, params=params)


def nothing(response: httpx.Response) -> None:
    """The answer is that there is no error."""


def http_options(base_url: str, token: str | None) -> dict[str, Any]:
    """What both httpx clients are made with; a loopback service is never asked through a proxy.

    Each stream that is read has a connection, and of those there may be any number.
    """
    headers = {"User-Agent": "aiforge"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    url = httpx.URL(base_url)
    here = url.host in {"localhost", "::1"} or url.host.startswith("127.")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS)
    return {"base_url": url, "headers": headers, "trust_env": not here, "limits": limits}


def said(**fields: Any) -> dict[str, Any]:
    """Without what is None: that is left to the service."""
    return {name: value for name, value in fields.items() if value is not None}


def as_json(fields: Mapping[str, Any]) -> bytes:
    """A body of these fields; raises RequestError naming one that cannot be written."""
    given: dict[str, msgspec.Raw] = {}
    for name, value in fields.items():
        try:
            given[name] = msgspec.Raw(_encode(value))
        except UnicodeEncodeError:
            raise RequestError(f"{name} holds a lone surrogate, which is no character") from None
    return _encode(given)


def keyed(idempotency_key: str | None) -> dict[str, str]:
    """The headers of a request that may bear an idempotency key."""
    return {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}


def path_of(collection: str, identifier: str, part: str = "") -> str:
    """Where one thing of a collection is, or a part of it; raises RequestError for what can be no id."""
    try:
        quoted = quote(identifier, safe="")
    except UnicodeEncodeError:
        quoted = ""
    if quoted in _NO_IDS:
        raise RequestError(f"there can be no id {identifier!r}")
    return f"/v1/{collection}/{quoted}" + (f"/{part}" if part else "")
