"""Every refusal becomes one class of our tree, with the provider's words and never with the key."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from aiforge.core.openai_chat.failures import MAX_TEXT, error_text, retry_after
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import (
    APITimeoutError,
    AuthenticationError,
    ConfigError,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
    UnavailableError,
)
from aiforge.testing import FakeProvider, Reply, failure, rate_limited
from tests.aiforge.core.support import KEY, ask, hear, openai_model


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider() as running:
        yield running


def refusal(provider: FakeProvider, reply: Reply, **settings: Any) -> ProviderError:
    """The error of a streamed call, after the same one for a whole call."""
    provider.push(reply, reply)
    model = openai_model(provider.url, **settings)
    with pytest.raises(ProviderError) as caught:
        asyncio.run(ask(model))
    heard = asyncio.run(hear(model))
    assert heard.deltas == []
    assert type(heard.error) is type(caught.value)
    assert str(heard.error) == str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("status", "cls", "retryable"),
    [
        (400, RequestRefusedError, False),
        (401, AuthenticationError, False),
        (403, AuthenticationError, False),
        (404, RequestRefusedError, False),
        (408, APITimeoutError, True),
        (409, UnavailableError, True),
        (413, RequestRefusedError, False),
        (422, RequestRefusedError, False),
        (429, RateLimitError, True),
        (500, UnavailableError, True),
        (501, UnavailableError, False),
        (502, UnavailableError, True),
        (503, UnavailableError, True),
        (529, UnavailableError, True),
    ],
)
def test_statuses(provider: FakeProvider, status: int, cls: type[ProviderError], retryable: bool) -> None:
    error = refusal(provider, failure(status, "what the provider says"))
    assert type(error) is cls
    assert (error.status, error.retryable) == (status, retryable)
    assert (error.provider, error.model) == ("openai", "gpt-4o-mini")
    assert str(error) == f"openai answered {status} for gpt-4o-mini: what the provider says"


def test_a_used_up_quota_is_not_repeated(provider: FakeProvider) -> None:
    reply = Reply(status=429, error={"message": "no credit", "code": "insufficient_quota", "type": "x"})
    error = refusal(provider, reply)
    assert isinstance(error, RateLimitError)
    assert not error.retryable


def test_the_provider_may_say_whether_to_repeat(provider: FakeProvider) -> None:
    assert not refusal(provider, Reply(status=500, headers={"x-should-retry": "false"})).retryable
    assert refusal(provider, Reply(status=400, headers={"x-should-retry": "true"})).retryable


@pytest.mark.parametrize("form", ["both", "seconds", "ms", "date"])
def test_retry_after_in_every_form(provider: FakeProvider, form: Any) -> None:
    error = refusal(provider, rate_limited(3, form=form))
    assert error.retry_after is not None
    assert 1 <= error.retry_after <= 3


def test_no_retry_after(provider: FakeProvider) -> None:
    assert refusal(provider, rate_limited(form="none")).retry_after is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"x-ms-retry-after-ms": "3000", "retry-after": "1"}, 3.0),
        ({"retry-after-ms": "500", "x-ms-retry-after-ms": "3000"}, 0.5),
        ({"retry-after": formatdate(1000, usegmt=True), "date": formatdate(990, usegmt=True)}, 10.0),
        ({"retry-after": formatdate(1000, usegmt=True)}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after-ms": "0", "retry-after": "2"}, 2.0),
        ({"retry-after": "99999999999"}, 3600.0),
        ({"retry-after-ms": "1e30"}, 3600.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 3600.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({}, None),
    ],
)
def test_retry_after_header(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"error": {"message": "a", "type": "b"}}, "a"),
        ({"error": "a"}, "a"),
        ({"message": "a"}, "a"),
        ({"detail": [{"loc": ["body"], "msg": "a"}]}, "a"),
        ([{"error": {"message": "a"}}], "a"),
        ({"other": 1}, '{"other":1}'),
        ({}, ""),
        (None, ""),
        (7, ""),
    ],
)
def test_the_providers_words(document: object, text: str) -> None:
    assert error_text(document) == text


def test_long_texts_are_cut(provider: FakeProvider) -> None:
    error = refusal(provider, Reply(status=500, body="<html>" + "long " * 100_000))
    assert len(str(error)) < MAX_TEXT + 100
    assert len(str(refusal(provider, failure(400, "x" * 10_000)))) < MAX_TEXT + 100


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(provider: FakeProvider, status: int) -> None:
    with FakeProvider() as elsewhere:
        headers = {"location": f"{elsewhere.url}/chat/completions"}
        error = refusal(provider, Reply(status=status, headers=headers, body=""))
        assert type(error) is RequestRefusedError
        assert "redirect" in str(error)
        assert elsewhere.calls.total == 0


def test_no_key(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("AIFORGE_OPENAI_API_KEY", raising=False)
    model = create_model(AIForgeSettings.load(OPENAI_BASE_URL=provider.url))
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY or AIFORGE_OPENAI_API_KEY"):
        asyncio.run(ask(model))
    assert provider.calls.total == 0


def test_a_key_that_no_header_can_carry() -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
        openai_model("http://localhost/v1", OPENAI_API_KEY="sk-canary\nx: y")
    assert "canary" not in _everything(caught.value)


def test_blanks_around_a_key_do_not_matter() -> None:
    with FakeProvider(api_key=KEY) as provider:
        asyncio.run(ask(openai_model(provider.url, OPENAI_API_KEY=f" {KEY}\n")))


def test_a_base_url_with_credentials_is_refused() -> None:
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL") as caught:
        openai_model("https://user:canary@example.org/v1")
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL"):
        openai_model("example.org/v1")


@pytest.mark.parametrize(
    "reply",
    [
        failure(401, f"Incorrect API key provided: {KEY}"),
        Reply(status=500, body=f"trace: authorization: Bearer {KEY}"),
        Reply(instead="reset"),
        Reply(body="<html>"),
    ],
)
def test_the_key_is_never_shown(
    provider: FakeProvider, reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    """Z3: not in text, repr, traceback, the variables of its frames, or the log."""
    caplog.set_level(logging.DEBUG)
    model = openai_model(provider.url)
    provider.push(reply, reply)
    with pytest.raises(ProviderError) as caught:
        asyncio.run(ask(model))
    heard = asyncio.run(hear(model))
    assert heard.error is not None
    assert "aiforge/core/openai_chat/model.py" in _everything(caught.value)
    assert KEY not in _everything(caught.value)
    assert KEY not in _everything(heard.error)
    assert KEY not in repr(model)
    assert KEY not in str(model)
    assert KEY not in caplog.text


def test_messages_that_are_no_json(provider: FakeProvider) -> None:
    with pytest.raises(RequestRefusedError, match="cannot be written as JSON"):
        asyncio.run(ask(openai_model(provider.url), [{"role": "user", "content": "\ud800"}]))
    with pytest.raises(RequestRefusedError, match="cannot be written as JSON"):
        asyncio.run(ask(openai_model(provider.url), [{"role": "user", "content": object()}]))


def _everything(error: BaseException) -> str:
    """What a log with variables would show of the error; this file's own frames know the key."""
    shown = repr(error) + repr(vars(error))
    for cause in (error, error.__cause__, error.__context__):
        if cause is not None:
            trace = traceback.TracebackException.from_exception(cause, capture_locals=True)
            frames = [frame for frame in trace.stack if "/tests/" not in frame.filename]
            shown += str(cause) + "".join(traceback.StackSummary.from_list(frames).format())
    return shown
