"""A service that cannot work as it is told says so in one line, names the setting and exits with 3."""

from __future__ import annotations

import subprocess

import pytest

from aiforge.core.providers import check_provider
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError
from tests.support.processes import Service, Start
from worker.contract.service import check
from worker.contract.settings import ContractSettings


def must_be_refused(service: Service, says: str) -> None:
    try:
        code = service.process.wait(30)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it runs\n{service.output}") from None
    assert (code, service.output.count("\n")) == (3, 1), service.output
    assert service.output.startswith(f"{service.module}: {says}")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "broker_url",
            "garbage",
            "AIFORGE_BROKER_URL: must begin with redis://, rediss://, redis+sentinel://",
        ),
        ("provider", "no_module:factory", "AIFORGE_PROVIDER: provider 'no_module:factory' cannot be loaded"),
        ("openai_base_url", "ftp://x", "AIFORGE_OPENAI_BASE_URL: must be an http or https URL"),
    ],
)
def test_a_worker_refuses_what_it_cannot_do(worker_process: Start, name: str, value: str, says: str) -> None:
    must_be_refused(worker_process(wait=False, **{name: value}), says)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("provider", "nope", "AIFORGE_PROVIDER: unknown provider 'nope'"),
        ("redis_url", "redis://127.0.0.1:99999/0", "AIFORGE_REDIS_URL: Port out of range"),
    ],
)
def test_the_api_refuses_it_too(api_process: Start, name: str, value: str, says: str) -> None:
    must_be_refused(api_process(wait=False, **{name: value}), says)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("broker_url", "nope://x", "must begin with redis://"),
        ("broker_url", "redis://127.0.0.1:99999/0", "Port out of range"),
        ("broker_url", "amqp://127.0.0.1:abc//", "Port could not be cast"),
        ("redis_url", "redis://127.0.0.1:abc", "Port could not be cast"),
        ("redis_url", "redis://127.0.0.1/none", "names its database by a number, unlike 'none'"),
        ("redis_url", "redis://127.0.0.1/0?db=x", "Invalid value for 'db'"),
        ("redis_url", "redis://127.0.0.1/0?colour=red", "got an unexpected keyword argument 'colour'"),
        ("redis_url", "redis://[::1/0", "Invalid IPv6 URL"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^AIFORGE_{name.upper()}: {says}"):
        ContractSettings.load(**{name: value})


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://u:pw@h:1/3",
        "redis://[::1]:1/0?socket_keepalive=yes",
        "rediss://h:1/0?ssl_cert_reqs=none",
        "unix:///run/redis.sock?db=1",
    ],
)
def test_what_a_redis_url_may_say(url: str) -> None:
    assert ContractSettings(redis_url=url).redis_url == url


def test_celery_s_messages_go_through_no_unix_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIFORGE_PROVIDER", "offline")
    socket = ContractSettings(redis_url="unix:///run/redis.sock")
    with pytest.raises(ConfigError, match="AIFORGE_BROKER_URL: not set; the Unix socket"):
        check(socket)
    check(ContractSettings(redis_url=socket.redis_url, broker_url="redis://h"))


def test_a_password_in_a_wrong_url_is_shown_to_nobody() -> None:
    with pytest.raises(ConfigError, match="AIFORGE_REDIS_URL") as caught:
        ContractSettings(redis_url="redis://u:pw-canary@h:99999/0")
    assert "canary" not in str(caught.value)


def test_a_provider_without_a_default_model_can_be_asked_for_others() -> None:
    check_provider(AIForgeSettings(PROVIDER="ollama"))
