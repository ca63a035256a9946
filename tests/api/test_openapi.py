"""The document says what the service does, and `/docs` shows it with assets of our own."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from aiforge.core.types import Usage
from api import (
    batch_schemas,
    history_schemas,
    provider_schemas,
    replies,
    schemas,
    usage_schemas,
)
from api.bodies import (
    BranchBody,
    ChangeBody,
    CheckoutBody,
    CompactBody,
    ConversationBody,
    ImportBody,
    QueueBody,
    ResumeBody,
    TurnBody,
)
from tests.api.conftest import Api
from worker.contract import schemas as contract
from worker.contract.calls.providers import ModelHealth
from worker.contract.calls.rows import LedgerRow
from worker.contract.calls.usage import UsageRow
from worker.contract.memory.history import Page

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("documented", "real"),
    [
        (schemas.TurnBody, TurnBody),
        (schemas.ConversationBody, ConversationBody),
        (batch_schemas.BatchBody, contract.BatchRequest),
        (batch_schemas.BatchItem, contract.BatchItem),
        (schemas.ResumeBody, ResumeBody),
        (schemas.QueueBody, QueueBody),
        (history_schemas.ConversationExport, ImportBody),
        (history_schemas.ConversationSettings, contract.ConversationSettings),
        (schemas.Queue, contract.Line),
        (schemas.Erasure, contract.Erasure),
        (usage_schemas.UsageRow, UsageRow),
        (usage_schemas.LedgerRow, LedgerRow),
        (provider_schemas.ModelHealth, ModelHealth),
        (schemas.Conversation, contract.Conversation),
        (schemas.StoredMessage, contract.StoredMessage),
        (batch_schemas.BatchRow, contract.BatchRow),
        (schemas.TurnFailure, contract.TurnFailure),
        (schemas.Usage, Usage),
        (history_schemas.Summary, contract.Summary),
        (history_schemas.ChangeBody, ChangeBody),
        (history_schemas.CheckoutBody, CheckoutBody),
        (history_schemas.BranchBody, BranchBody),
        (history_schemas.CompactBody, CompactBody),
        (history_schemas.ConversationChanges, contract.ConversationChanges),
        (history_schemas.Version, contract.Version),
        (history_schemas.Diff, contract.Diff),
    ],
)
def test_the_documented_fields_are_the_real_ones(
    documented: type[BaseModel], real: type[msgspec.Struct]
) -> None:
    assert set(documented.model_fields) == set(real.__struct_fields__)


def test_the_documented_replies_are_the_real_ones() -> None:
    turn = contract.Turn(turn_id="1", conversation_id="c", state=contract.TurnState.QUEUED, created_at=1.5)
    batch = contract.Batch(batch_id="b", state=contract.BatchState.CANCELLED, total=1, created_at=1.5)
    for model, reply in ((schemas.Turn, replies.turn(turn)), (batch_schemas.Batch, replies.batch(batch))):
        read = model.model_validate_json(msgspec.json.encode(reply))
        assert set(type(read).model_fields) == set(reply)


def test_a_question_is_documented_without_what_is_ours() -> None:
    question = contract.Question(question_id="q", kind="approval", text="May I?", call_id="c", tool="t")
    state = contract.TurnState.REQUIRES_ACTION
    turn = contract.Turn(turn_id="1", conversation_id="c", state=state, created_at=1.5, question=question)
    assert set(replies.turn(turn)["question"]) == set(schemas.Question.model_fields)


def test_a_page_of_conversations_is_the_documented_one() -> None:
    found = contract.Conversation(conversation_id="c", created_at=1.5)
    page = replies.conversations(Page([(1500, found)], (1500, "c")))
    assert set(page) == set(schemas.Conversations.model_fields)
    assert set(page["data"][0]) == set(schemas.ListedConversation.model_fields)
    assert page["next"] == "1500:c"


async def test_every_route_documents_replies_errors_and_the_request_id(api: Api) -> None:
    document = (await api.http.get("/openapi.json")).json()

    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            for status, reply in operation["responses"].items():
                assert "x-request-id" in reply["headers"], f"{where} {status}"
            assert "HTTPValidationError" not in str(operation), where
            if path.startswith("/v1"):
                assert "default" in operation["responses"], where
    posted = document["paths"]["/v1/turns"]["post"]
    assert posted["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/TurnBody"
    }
    assert set(posted["responses"]["202"]["headers"]) == {
        "x-request-id",
        "x-turn-id",
        "Location",
        "Idempotent-Replayed",
    }
    streamed = document["paths"]["/v1/turns/{turn_id}/events"]["get"]["responses"]["200"]["content"]
    assert "id: 1\nevent: queued" in streamed["text/event-stream"]["example"]


async def test_every_reference_of_the_document_leads_somewhere(api: Api) -> None:
    document = (await api.http.get("/openapi.json")).json()
    parts = document["components"]
    named = {f"#/components/{kind}/{name}" for kind in ("schemas", "examples") for name in parts[kind]}
    assert set(_references(document)) <= named


async def test_examples_of_bodies_are_accepted(api: Api) -> None:
    for path, model in (
        ("/v1/turns", schemas.TurnBody),
        ("/v1/conversations", schemas.ConversationBody),
        ("/v1/conversations/import", history_schemas.ConversationExport),
        ("/v1/batches", batch_schemas.BatchBody),
    ):
        for example in model.model_json_schema()["examples"]:
            reply = await api.http.post(path, json=example)
            assert reply.is_success, reply.text


async def test_whatever_is_json_has_an_example_that_is_valid(api: Api) -> None:
    document = (await api.http.get("/openapi.json")).json()
    described = document["components"]["schemas"]
    named = {
        f"#/components/examples/{name}": one["value"]
        for name, one in document["components"]["examples"].items()
    }
    seen = [(f"schema {name}", schema, schema.get("examples", [])) for name, schema in described.items()]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            bodies = {"request": operation.get("requestBody", {}), **operation["responses"]}
            for where, body in bodies.items():
                for kind, content in body.get("content", {}).items():
                    if "json" in kind:
                        own = [named[one["$ref"]] for one in content.get("examples", {}).values()]
                        target = described[content["schema"]["$ref"].rpartition("/")[2]]
                        assert own or target.get("examples"), f"{method} {path} {where} shows nothing"
                        seen.append((f"{method} {path} {where}", content["schema"], own))
    assert len(seen) > 60
    for where, schema, shown in seen:
        validator = Draft202012Validator({**schema, "components": document["components"]})
        for example in shown:
            assert [error.message for error in validator.iter_errors(example)] == [], where


async def test_the_docs_page_loads_nothing_from_elsewhere(api: Api) -> None:
    page = (await api.http.get("/docs")).text

    links = re.findall(r"""(?:src|href)=["']([^"']+)["']|url: ["']([^"']+)["']""", page)
    addresses = [one or other for one, other in links]
    assert len(addresses) == 4
    for address in addresses:
        assert not re.match(r"(?:\w+:)?//", address)
        reply = await api.http.get(f"/{address}")
        assert reply.status_code == 200
        assert len(reply.content) > 1000


async def test_the_bare_address_leads_to_the_docs(api: Api) -> None:
    reply = await api.http.get("/")
    assert (reply.status_code, reply.headers["location"]) == (307, "docs")


@pytest.mark.parametrize("name", ["core.py", "../core.py", "redoc.standalone.js"])
async def test_the_docs_folder_holds_only_its_assets(api: Api, name: str) -> None:
    assert (await api.http.get(f"/docs/{name}")).status_code == 404


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for part in value.values() for found in _references(part)]
    if isinstance(value, list):
        return [found for part in value for found in _references(part)]
    return []
