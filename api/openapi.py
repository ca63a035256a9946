"""How routes describe themselves, and the document that comes of it."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api import (
    batch_schemas,
    file_schemas,
    history_schemas,
    provider_schemas,
    schedule_schemas,
    schemas,
    usage_schemas,
)
from api.examples import NAMED, examples
from api.sse import MEDIA_TYPE

Responses = dict[int | str, dict[str, Any]]

_REF: Final = "#/components/schemas/{model}"
_MEANINGS: Final = {
    400: "The body, a parameter or a header is wrong; `param` names it.",
    404: "There is no such thing.",
    409: "The state of what is there does not allow it; `code` says why.",
    410: "It was erased.",
    413: "The body is too long.",
    415: "The body is not uncompressed application/json.",
    422: "An id is malformed.",
    429: "A budget has no room; `Retry-After` says when it has, `x-should-retry: false` that it never"
    " will or that it is of money.",
    503: "The store does not answer or is full; nothing was accepted. `Retry-After` says when to come back.",
}
_BODIES: Final = (
    *schemas.UNREFERENCED,
    *batch_schemas.UNREFERENCED,
    *schedule_schemas.UNREFERENCED,
    *history_schemas.UNREFERENCED,
)
_EXAMPLE: Final = """\
: ping

id: 1
event: queued
data: {"type":"queued"}

id: 2
event: started
data: {"type":"started","attempt":1}

id: 3
event: token
data: {"type":"token","text":"Open Settings","round":0}

id: 4
event: message
data: {"type":"message","text":"Open Settings","stopped":false,"iteration_limit":false}

id: 5
event: done
data: {"type":"done"}

"""
_STREAM: Final = """\
Server-Sent Events. `id` is the event's number in the turn, from 1 without holes; `event` is its type and
`data` one line of JSON that holds the type again. Types: queued, started, token, preamble, tool_call,
tool_result, usage, message, reset, requires_action, gap, error, and the terminal done, failed, cancelled,
expired. Tokens are provisional, `message` is the stored answer; `reset` means that a new attempt begins and
that the tokens so far are void; `gap` names events that are no longer kept. Comments (`: ping`) come at once
and whenever the stream is silent. The response ends after the terminal event or after requires_action. To
resume, send the last id as `Last-Event-ID` or `?after=`."""


def _header(description: str, kind: str = "string") -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


REQUEST_ID: Final = {
    "x-request-id": _header("The caller's own id when it sent a sane one, else one of ours.")
}
TURN: Final = {
    **REQUEST_ID,
    "x-turn-id": _header("The turn's id."),
    "Location": _header("Where the turn is."),
    "Idempotent-Replayed": _header("`true` when the idempotency key was seen before; absent otherwise."),
}


def answer(
    model: type[BaseModel],
    description: str,
    headers: dict[str, Any] = REQUEST_ID,
    example: str | None = None,
) -> dict[str, Any]:
    """A reply that is JSON of `model`; without a named example the model's own is shown."""
    found: dict[str, Any] = {"model": model, "description": description, "headers": headers}
    if example is not None:
        shown = {example: {"$ref": f"#/components/examples/{example}"}}
        found["content"] = {"application/json": {"examples": shown}}
    return found


def location(what: str) -> dict[str, Any]:
    return {**REQUEST_ID, "Location": _header(f"Where the {what} is.")}


def stream() -> dict[str, Any]:
    """The content of a reply that is a turn's event stream."""
    return {MEDIA_TYPE: {"schema": {"type": "string", "description": _STREAM}, "example": _EXAMPLE}}


def problems(*statuses: int) -> Responses:
    """The errors that a route documents by name; all others have the same shape."""
    described: Responses = {status: answer(schemas.ErrorBody, _MEANINGS[status]) for status in statuses}
    described["default"] = answer(schemas.ErrorBody, "Any other error: 401, 403, 405, 500, …")
    return described


def body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is decoded by `api.bodies`."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


class Application(FastAPI):
    """FastAPI, with the request bodies and the token in its document."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = self._document()
        return self.openapi_schema

    def _document(self) -> dict[str, Any]:
        document = get_openapi(
            title=self.title,
            version=self.version,
            description=self.description,
            tags=self.openapi_tags,
            routes=self.routes,
        )
        components = document.setdefault("components", {})
        _, definitions = models_json_schema(
            [(model, "validation") for model in _BODIES],
            ref_template=_REF,
        )
        components["schemas"] = {**definitions["$defs"], **components.get("schemas", {})}
        _put_examples(document)
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"token": []}]
        return document


def _put_examples(document: dict[str, Any]) -> None:
    """Examples whole: FastAPI drops whatever is null in them."""
    described = document["components"]["schemas"]
    modules = (
        schemas, batch_schemas, file_schemas, history_schemas, provider_schemas, schedule_schemas,
        usage_schemas,
    )  # fmt: skip
    for name, shown in examples(modules).items():
        if name in described:
            described[name]["examples"] = shown
    document["components"]["examples"] = {name: {"value": shown} for name, shown in NAMED.items()}
