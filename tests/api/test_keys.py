"""API keys: what a key opens is its tenant's, and nothing of any other tenant is seen or changed with it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from aiforge.core.setting_types import ApiKey
from aiforge.core.types import ConfigError
from api.settings import ApiSettings, load
from api.sse import MEDIA_TYPE
from tests.api import worker
from tests.api.conftest import Api, Start
from tests.support.turns import claim, die
from worker.contract.schemas import Caller

pytestmark = pytest.mark.anyio

KEYS = {
    "shop": ApiKey(token=SecretStr("shop-token"), tenant="acme"),
    "desk": ApiKey(token=SecretStr("desk-token"), tenant="acme"),
    "rival": ApiKey(token=SecretStr("rival-token"), tenant="other"),
}
ACME = Caller("acme", "shop")
LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": [{"role": "user", "content": "canary"}]},
}
BODIES: dict[tuple[str, str], Any] = {
    ("post", "/v1/turns/{turn_id}/resume"): {"question_id": "q", "answer": "a"},
    ("put", "/v1/conversations/{conversation_id}/queue"): {"expected": [], "turns": []},
    ("patch", "/v1/conversations/{conversation_id}"): {"system_prompt": "mine"},
    ("post", "/v1/conversations/{conversation_id}/checkout"): {"version": 1},
    ("post", "/v1/conversations/{conversation_id}/compact"): {},
    ("post", "/v1/conversations/{conversation_id}/branch"): {},
    ("patch", "/v1/schedules/{schedule_id}"): {"paused": True},
}
OWN = {"/v1/conversations/{conversation_id}/turns"}
"""It makes a conversation of the caller's own under the same id."""


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def api(start: Start) -> Api:
    started = await start(api_keys=KEYS, api_token=SecretStr("operator-token"))
    started.http.headers.update(bearer("shop-token"))
    return started


async def everything(api: Api) -> dict[str, str]:
    """One of each thing that can be stored, by the name of its id."""
    store = api.store.of(ACME)
    posted = await api.post("canary", conversation="canary")
    await (await worker.claim(store, posted["turn_id"])).answer("canary")
    letter = (await api.post("canary"))["turn_id"]
    assert (await die(store.turns, await claim(store.turns, await store.turns.place(letter))))[0] == "dead"
    batch = await api.http.post("/v1/batches", json={"items": ["canary"], "metadata": {"note": "canary"}})
    upload = {"file": ("canary.jsonl", json.dumps(LINE).encode())}
    file = await api.http.post("/v1/files", files=upload, data={"purpose": "batch"})
    plan = {"cron": "0 0 1 1 *", "turn": {"message": "canary"}, "conversation_id": "canary"}
    schedule = await api.http.post("/v1/schedules", json=plan)
    for reply in (batch, file, schedule):
        assert reply.is_success, reply.text
    return {
        "turn_id": letter,
        "conversation_id": "canary",
        "batch_id": batch.json()["id"],
        "file_id": file.json()["id"],
        "schedule_id": schedule.json()["schedule_id"],
    }


def routes(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(method, path) for path, of_path in document["paths"].items() for method in of_path]


async def ask(api: Api, method: str, path: str, ids: dict[str, str], token: str) -> httpx.Response:
    where = path.format(**ids)
    query = {"from": 1, "to": 1} if path.endswith("/diff") else None
    body = BODIES.get((method, path))
    request = api.http.build_request(method, where, params=query, json=body, headers=bearer(token))
    reply = await api.http.send(request, stream=True)
    if not reply.headers.get("content-type", "").startswith(MEDIA_TYPE):
        await reply.aread()
    await reply.aclose()
    return reply


async def test_no_route_shows_or_changes_what_is_another_tenants(api: Api) -> None:
    ids = await everything(api)
    documented = routes((await api.http.get("/openapi.json")).json())
    of_one = [(method, path) for method, path in documented if "{" in path and path not in OWN]
    assert len(of_one) > 25
    for method, path in of_one:
        reply = await ask(api, method, path, ids, "rival-token")
        assert reply.status_code == 404, (method, path)
    for method, path in documented:
        if method == "get" and "{" not in path and path != "/metrics":
            reply = await ask(api, method, path, ids, "rival-token")
            assert "canary" not in reply.text, path
            assert not any(one in reply.text for one in ids.values()), path
    for name, value in ids.items():
        reply = await api.http.get("/v1/usage/calls", params={name: value}, headers=bearer("rival-token"))
        assert reply.status_code in (400, 404), name
    for method, path in of_one:
        if method == "get":
            reply = await ask(api, method, path, ids, "desk-token")
            assert reply.is_success, path


async def test_tenants_have_conversations_keys_and_caches_of_their_own(api: Api) -> None:
    async def post(token: str, key: str, message: str) -> httpx.Response:
        path = "/v1/conversations/user-42/turns"
        headers = {**bearer(token), "Idempotency-Key": key}
        return await api.http.post(path, json={"message": message}, headers=headers)

    first, other = await post("shop-token", "k", "Mine?"), await post("rival-token", "k", "Theirs?")
    assert (first.status_code, other.status_code) == (202, 202)
    assert first.json()["turn_id"] != other.json()["turn_id"]
    again = await post("desk-token", "k", "Mine?")
    assert again.json()["turn_id"] == first.json()["turn_id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert (await api.http.get("/v1/conversations", headers=bearer("operator-token"))).json()["data"] == []


async def test_dead_letters_of_others_hide_none_of_ones_own(api: Api) -> None:
    ids = await everything(api)
    api.http.headers.update(bearer("rival-token"))
    rival = api.store.of(Caller("other", "rival"))
    for _ in range(3):
        letter = (await api.post("theirs"))["turn_id"]
        assert (await die(rival.turns, await claim(rival.turns, await rival.turns.place(letter))))[
            0
        ] == "dead"
    found = await api.http.get("/v1/dead?limit=1", headers=bearer("desk-token"))
    assert [turn["turn_id"] for turn in found.json()["data"]] == [ids["turn_id"]]


async def test_a_wrong_token_opens_nothing(api: Api) -> None:
    for token in ("shop", "shop-token-", "-"):
        assert (await api.http.get("/v1/conversations", headers=bearer(token))).status_code == 401


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"a": {"token": "t"}, "b": {"token": "t"}}, "a and b have the same token"),
        ({"a b": {"token": "t"}}, "must be 1 to 128 characters"),
        ({"a": {"token": "t", "tenant": "x/y"}}, "must be 1 to 128 characters"),
        ({"a": {"token": ""}}, "a: token: Value should have"),
        ({"a": {"tenant": "x"}}, "a: token: Field required"),
        ({"a": "t"}, "a: Input should be"),
    ],
)
def test_a_mistake_is_named(written: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIFORGE_API_KEYS", json.dumps(written))
    with pytest.raises(ConfigError, match=r"^AIFORGE_API_KEYS: ") as refused:
        load()
    assert says in str(refused.value)
    assert "(got a secret)" in str(refused.value)


async def test_the_token_may_be_that_of_a_key(start: Start) -> None:
    """A client's own setting of the same name may be in the service's environment."""
    api = await start(api_keys=KEYS, api_token=SecretStr("shop-token"))
    api.http.headers.update(bearer("shop-token"))
    await api.post(conversation="c")
    assert (await api.store.of(ACME).conversation("c")).busy


def test_keys_are_enough_to_be_reached_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIFORGE_API_HOST", "0.0.0.0")
    monkeypatch.setenv("AIFORGE_API_KEYS", '{"shop": {"token": "shop-token"}}')
    settings = load()
    assert settings.api_keys["shop"].tenant == "default"
    assert "shop-token" not in repr(settings)
    assert isinstance(settings, ApiSettings)
