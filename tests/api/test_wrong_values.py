"""Every parameter of every route, and every field of every body, is sent wrong: the answer is one clear 4xx.

What there is to send is read from the service's own document, so a new route is looked at, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import httpx
import pytest

from tests.api.conftest import Api

pytestmark = pytest.mark.anyio

Schema = Mapping[str, Any]
HERE: Final = ("/livez", "/readyz", "/metrics")
NOTHING: Final = object()
WRONG: Final[Mapping[str, Any]] = {
    "string": 7, "integer": "seven", "number": "seven", "boolean": "perhaps", "array": {"a": 1},
    "object": [1],
}  # fmt: skip
"""What no field of a kind can be."""
FREE: Final = {
    ("metadata", "query"): "no sign",
    ("idempotency_key", "query"): "\x07",
    ("name", "query"): "",
}
"""Wrong values of parameters that take almost any text."""
NEEDS: Final[Mapping[str, Mapping[str, str]]] = {
    "/v1/turns": {"idempotency_key": "k"},
    "/v1/conversations/{conversation_id}/diff": {"from": "0", "to": "0"},
    "/v1/providers/reset": {"name": "x"},
}
"""What a GET or a POST of these has to say beside the wrong value."""


GUARDS: Final = ("if_revision", "if_version")
"""Fields that an example is sent without: the state that they name is not there."""
MONEY: Final = ("max_cost",)
"""Fields of decimals, which may be numbers, too."""


class Wrong(NamedTuple):
    """One request that is wrong in one place, named by `field`."""

    method: str
    path: str
    field: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: Any = NOTHING


@pytest.fixture
async def document(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = (await api.http.get("/openapi.json")).json()
    return found


@pytest.fixture
async def known(api: Api) -> dict[str, str]:
    """An id of each kind, of something that is there."""
    turn = await api.post(conversation="known")
    batch = (await api.http.post("/v1/batches", json={"items": ["a"]})).json()
    reply = await api.http.post("/v1/files", files={"file": ("a.jsonl", b"{}")}, data={"purpose": "batch"})
    file = reply.json()
    plan = {"cron": "0 0 * * *", "turn": {"message": "x"}}
    schedule = (await api.http.post("/v1/schedules", json=plan)).json()
    return {
        "conversation_id": "known", "turn_id": turn["turn_id"], "batch_id": batch["id"],
        "file_id": file["id"], "schedule_id": schedule["schedule_id"],
    }  # fmt: skip


async def test_each_wrong_parameter_is_named_with_what_is_right(
    api: Api, document: dict[str, Any], known: dict[str, str]
) -> None:
    sent = [wrong for route in _routes(document) for wrong in _wrong_parameters(*route, known)]
    assert len(sent) > 120
    complaints = [said for wrong in sent for said in await _complaints(api, wrong)]
    assert not complaints, "\n".join(complaints)


async def test_each_wrong_field_of_a_body_is_named_with_what_is_right(
    api: Api, document: dict[str, Any], known: dict[str, str]
) -> None:
    sent = [wrong for route in _routes(document) for wrong in _wrong_fields(*route, known, document)]
    assert len(sent) > 200
    complaints = [said for wrong in sent for said in await _complaints(api, wrong)]
    assert not complaints, "\n".join(complaints)


FILE_BATCH: Final = {"endpoint": "/v1/responses", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/v1/turns", {"message": "x", "client_message_id": "\0"}, 400, "client_message_id"),
        ("/v1/turns", {"message": "x", "model": " "}, 400, "model"),
        ("/v1/turns", {"message": "x", "run_after": 5}, 400, "run_after"),
        ("/v1/turns", {"message": "x", "tools": ["a", 5]}, 400, "tools[1]"),
        ("/v1/turns", {"message": "x", "metadata": {"a": 5}}, 400, "metadata"),
        ("/v1/conversations", {"conversation_id": "a b"}, 422, "conversation_id"),
        ("/v1/conversations/known/branch", {"conversation_id": "a b"}, 422, "conversation_id"),
        ("/v1/batches", {"items": ["a"], "max_cost": "ten"}, 400, "max_cost"),
        ("/v1/batches", {"items": ["a"], "max_cost": "NaN"}, 400, "max_cost"),
        ("/v1/batches", {"items": ["a"], "max_cost": "-1"}, 400, "max_cost"),
        ("/v1/batches", {"items": ["a", {"massage": "b"}]}, 400, "items[1].massage"),
        ("/v1/batches", {"items": ["a", {"message": "b", "tools": ["c", 5]}]}, 400, "items[1].tools[1]"),
        ("/v1/batches", {"items": ["a"], "completion_window": "soon"}, 400, "completion_window"),
        ("/v1/batches", {"input_file_id": "nonsense", **FILE_BATCH}, 400, "input_file_id"),
        ("/v1/schedules", {"cron": "0 0 30 2 *", "turn": {"message": "x"}}, 400, "cron"),
        ("/v1/schedules", {"cron": "0 0 * * *", "batch": {"items": [5]}}, 400, "batch.items[0]"),
    ],
)
async def test_what_is_no_wrong_type_is_named_too(
    api: Api, path: str, body: dict[str, Any], status: int, field: str
) -> None:
    await api.post(conversation="known")
    reply = await api.http.post(path, json=body)
    assert reply.status_code == status, reply.text
    assert not [*_said(reply, Wrong("POST", path, field))], reply.text


async def test_what_a_body_has_to_be_is_said(api: Api) -> None:
    error = (await api.http.post("/v1/turns", json=["Hello?"])).json()["error"]
    assert (error["message"], error["param"]) == ("the body: must be a JSON object", None)


async def test_days_in_the_wrong_order_are_both_named(api: Api) -> None:
    reply = await api.http.get("/v1/usage", params={"from": "2026-02-02", "to": "2026-02-01"})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "from")
    assert error["message"] == "from lies behind to: 2026-02-02 is later than 2026-02-01"


async def test_an_unknown_key_is_said_to_be_unknown(api: Api) -> None:
    for query, where in (({}, "without a conversation"), ({"conversation_id": "c"}, "to 'c'")):
        reply = await api.http.get("/v1/turns", params={"idempotency_key": "order-7", **query})
        said = f"no turn was posted {where} under the idempotency key 'order-7'"
        assert (reply.status_code, reply.json()["error"]["message"]) == (404, said)


async def _complaints(api: Api, wrong: Wrong) -> list[str]:
    """What is wrong with the answer to what is wrong."""
    body = {} if wrong.body is NOTHING else {"json": wrong.body}
    reply = await api.http.request(
        wrong.method, wrong.path, params=wrong.query, headers=wrong.headers, **body
    )
    where = f"{wrong.method} {wrong.path} {dict(wrong.query)} {dict(wrong.headers)} {body}: {reply.text}"
    return [f"{said}: {where}" for said in _said(reply, wrong)]


def _said(reply: httpx.Response, wrong: Wrong) -> Iterator[str]:
    nothing = wrong.field in ("batch_id", "file_id") and wrong.field not in wrong.query
    if reply.status_code not in ((404,) if nothing else (400, 422)):
        yield f"is answered {reply.status_code}"
        return
    error = reply.json().get("error", {})
    if set(error) != {"message", "type", "code", "param"}:
        yield "has another shape"
        return
    if error["type"] != "invalid_request_error" or not error["code"]:
        yield "has no proper type or code"
    if error["param"] != wrong.field:
        yield f"names {error['param']!r}, not {wrong.field!r}"
    if wrong.field.rpartition(".")[2] not in error["message"]:
        yield "does not name the field in its message"
    if re.search(
        r"\^|\$|[Ss]tring should|Input should|Expected `|Invalid enum|None|Literal", error["message"]
    ):
        yield "speaks of the program, not of what is right"


def _routes(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path not in HERE:
                yield method.upper(), path, operation


def _wrong_parameters(
    method: str, path: str, operation: dict[str, Any], known: dict[str, str]
) -> Iterator[Wrong]:
    right = NEEDS.get(path, {}) if method == "GET" or "requestBody" not in operation else {}
    yield Wrong(method, path.format(**known), "nonsense", {**right, "nonsense": "1"})
    for parameter in operation.get("parameters", []):
        name, place = parameter["name"], parameter["in"]
        for value in _wrong_texts(name, place, parameter["schema"]):
            match place:
                case "path":
                    yield Wrong(method, path.format(**{**known, name: value}), name, right)
                case "query":
                    yield Wrong(method, path.format(**known), name, {**right, name: value})
                case "header":
                    yield Wrong(method, path.format(**known), name, right, {name: value})
        if parameter.get("required") and place == "query":
            rest = {other: value for other, value in right.items() if other != name}
            yield Wrong(method, path.format(**known), name, rest)


def _wrong_texts(name: str, place: str, schema: Schema) -> Iterator[str]:
    """Values that are outside of what a parameter's schema says."""
    (kind, *_) = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    kind = kind.get("items", kind) if kind.get("type") == "array" else kind
    if (name, place) in FREE:
        yield FREE[name, place]
    elif "enum" in kind or kind.get("format") == "date" or kind["type"] == "boolean":
        yield "nonsense"
    elif kind["type"] in ("integer", "number"):
        yield "seven"
        yield str(kind.get("minimum", 0) - 1)
        yield str(int(kind.get("maximum", 2**53)) + 1)
    elif place == "header":
        yield "\x07"
        yield "k" * 256
    else:
        assert "pattern" in kind, f"{name}: nothing says what it may be"
        yield "a b"


def _wrong_fields(
    method: str, path: str, operation: dict[str, Any], known: dict[str, str], document: dict[str, Any]
) -> Iterator[Wrong]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return
    schemas = document["components"]["schemas"]
    schema = schemas[content["schema"]["$ref"].rpartition("/")[2]]
    example = {name: value for name, value in schema["examples"][0].items() if name not in GUARDS}
    for field, body in _bodies(schema, example, schemas):
        yield Wrong(method, path.format(**known), field, body=body)


def _bodies(
    schema: Schema, example: dict[str, Any], schemas: Mapping[str, Schema], depth: int = 0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """An example made wrong in one field after the other, and in those of the objects in it."""
    yield "nonsense", {**example, "nonsense": 1}
    for name in schema.get("required", ()):
        yield name, {other: value for other, value in example.items() if other != name}
    for name, described in schema["properties"].items():
        for value in ["ten", [1]] if name in MONEY else _wrong_values(described, schemas):
            yield name, {**example, name: value}
        inner = _object(described, schemas)
        inside = example.get(name)
        if inner is not None and depth < 2 and isinstance(inside, dict):
            for field, body in _bodies(inner, inside, schemas, depth + 1):
                yield f"{name}.{field}", {**example, name: body}
        if inner is not None and depth < 2 and isinstance(inside, list) and isinstance(inside[0], dict):
            for field, body in _bodies(inner, inside[0], schemas, depth + 1):
                yield f"{name}[0].{field}", {**example, name: [body, *inside[1:]]}


def _kinds(schema: Schema, schemas: Mapping[str, Schema]) -> list[Schema]:
    """What a field may be, one by one and without references."""
    if "$ref" in schema:
        return _kinds(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return [kind for one in schema["anyOf"] for kind in _kinds(one, schemas)]
    return [schema]


def _object(schema: Schema, schemas: Mapping[str, Schema]) -> Schema | None:
    """The object that a field, or each entry of its list, may be."""
    for kind in _kinds(schema, schemas):
        for inner in [kind] if kind.get("type") != "array" else _kinds(kind.get("items", {}), schemas):
            if "properties" in inner:
                return inner
    return None


def _wrong_values(schema: Schema, schemas: Mapping[str, Schema]) -> Iterator[Any]:
    kinds = _kinds(schema, schemas)
    types = {kind.get("type", "string") for kind in kinds}
    yield next(value for kind, value in WRONG.items() if kind in types and _kind_of(value) not in types)
    for kind in kinds:
        if "enum" in kind or "const" in kind:
            yield "nonsense"
        if "minimum" in kind:
            yield kind["minimum"] - 1
        if "maximum" in kind:
            yield kind["maximum"] + 1
        if "pattern" in kind:
            yield "a b"


def _kind_of(value: Any) -> str:
    kinds = {str: "string", int: "integer", dict: "object", list: "array", bool: "boolean"}
    return kinds[type(value)]
