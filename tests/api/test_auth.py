"""Who may call: this machine, or whoever has the token."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from aiforge.core.types import ConfigError
from api.settings import is_loopback, load
from tests.api.conftest import Api, Start

pytestmark = pytest.mark.anyio

TOKEN = "correct horse battery staple"


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "127.8.0.1", "[::1]:8000"])
async def test_without_a_token_this_machine_may_call(api: Api, host: str) -> None:
    reply = await api.http.get("/livez", headers={"Host": host, "Origin": f"http://{host}"})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "localhost.example.com",
        "10.0.0.1",
        "[::2]",
        "[",
        "127.0.0.1.nip.io",
        "x@localhost",
        "localhost@x",
        "localhost/x",
        "localhost:80:80",
        "localhost#x",
        "localhost:",
    ],
)
async def test_without_a_token_another_host_is_refused(api: Api, host: str) -> None:
    reply = await api.http.get("/livez", headers={"Host": host})
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "forbidden_host"


@pytest.mark.parametrize(
    "origin", ["http://example.com", "null", "https://10.0.0.1:8000", "file://", "http://x@localhost"]
)
async def test_without_a_token_another_page_is_refused(api: Api, origin: str) -> None:
    reply = await api.http.post("/v1/turns", json={"message": "hi"}, headers={"Origin": origin})
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "forbidden_origin"


async def test_with_a_token_only_its_bearer_may_call(start: Start) -> None:
    api = await start(api_token=SecretStr(TOKEN))

    async def status(header: str | None, path: str = "/v1/conversations/user-42") -> tuple[int, str | None]:
        headers = {"Host": "example.com"} | ({"Authorization": header} if header is not None else {})
        reply = await api.http.get(path, headers=headers)
        if reply.status_code == 401:
            assert reply.headers["www-authenticate"] == "Bearer"
        return reply.status_code, reply.json()["error"]["code"]

    assert await status(None) == (401, "missing_token")
    assert await status("Basic abc") == (401, "missing_token")
    assert await status("Bearer") == (401, "missing_token")
    assert await status("Bearer wrong") == (401, "invalid_token")
    assert await status(f"Bearer {TOKEN}x") == (401, "invalid_token")
    assert await status(None, "/v1/nothing") == (401, "missing_token")
    assert await status(f"Bearer {TOKEN}") == (404, "not_found")
    assert await status(f"bearer {TOKEN}") == (404, "not_found")


@pytest.mark.parametrize(
    "path", ["/", "/livez", "/readyz", "/metrics", "/docs", "/docs/swagger-ui.css", "/openapi.json"]
)
async def test_health_metrics_and_documentation_need_no_token(start: Start, path: str) -> None:
    api = await start(api_token=SecretStr(TOKEN))
    assert (await api.http.get(path, follow_redirects=True)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "example.com"])
def test_another_address_needs_a_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIFORGE_API_HOST", host)
    with pytest.raises(ConfigError, match="AIFORGE_API_TOKEN"):
        load()
    monkeypatch.setenv("AIFORGE_API_TOKEN", TOKEN)
    settings = load()
    assert settings.api_host == host
    assert TOKEN not in repr(settings)


def test_loopback_names() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "localhost.", "127.0.0.1.nip.io")))
