"""OpenAIChat: any endpoint that speaks OpenAI's chat completions, at the speed of its bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from pydantic import ConfigDict, Field, SecretStr

from aiforge.core.delta_chat import DeltaChat
from aiforge.core.deltas import (
    CallRequest,
    Completion,
    Delta,
    FinishDelta,
    TextDelta,
    ToolCallDelta,
    UsageDelta,
    assemble,
)
from aiforge.core.openai_chat import halves
from aiforge.core.openai_chat.failures import from_status, from_stream
from aiforge.core.openai_chat.transport import Limits, Reply, Transport
from aiforge.core.openai_chat.wire import AnswerReader, failed_response, is_json, request_body
from aiforge.core.settings import AIForgeSettings
from aiforge.core.tokens import estimate_usage
from aiforge.core.types import (
    AuthenticationError,
    ConfigError,
    ProviderError,
    RequestRefusedError,
    StreamCutError,
    Usage,
)

PROVIDER: Final = "openai"
CHAT_PATH: Final = "/chat/completions"
_ERROR_BODY_BYTES: Final = 64 * 1024


class Forwarded(NamedTuple):
    """An answer as it came; `failure` is what its status means, None for a success."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    failure: ProviderError | None


class OpenAIChat(DeltaChat):
    """A model behind OpenAI's wire format. `from_settings` builds it.

    Raises the ProviderError tree and nothing else for what goes wrong with a call; repeats nothing.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    url: str
    key: SecretStr | None = None
    minimal: bool = False
    limits: Limits
    transport: Transport = Field(exclude=True, repr=False)

    @classmethod
    def from_settings(
        cls, settings: AIForgeSettings, *, model: str, transport: Transport | None = None
    ) -> OpenAIChat:
        """Models that share a `transport` share its connections. Raises ConfigError."""
        return cls(
            model_name=model,
            url=_endpoint(settings.OPENAI_BASE_URL),
            key=_header_safe(settings.OPENAI_API_KEY),
            minimal=settings.MINIMAL_ENDPOINT,
            limits=Limits(settings.CONNECT_TIMEOUT, settings.FIRST_TOKEN_TIMEOUT, settings.TOKEN_TIMEOUT),
            transport=transport or Transport(settings.CA_FILE),
        )

    @property
    def _llm_type(self) -> str:
        return "aiforge-openai"

    async def aclose(self) -> None:
        """Close this event loop's connections, also those of models that share the transport."""
        await self.transport.aclose()

    async def stream_deltas(self, request: CallRequest) -> AsyncGenerator[Delta, None]:
        """One streamed call; leaving it early closes the connection."""
        reply = await self._send(self._body(request, stream=True), request.call_id)
        reader = AnswerReader()
        head = b""
        failure: ProviderError | None = None
        try:
            try:
                data = head = await _head(reply)
                if is_json(head):  # A provider that streams nothing answers in one piece.
                    for delta in reader.whole(head + await reply.read_all()):
                        yield delta
                    data = b""
                while data:
                    for delta in reader.feed(data):
                        yield delta
                    if reader.over:
                        break
                    if reader.started:
                        reply.begun()
                    data = await reply.read()
                for delta in reader.close(head):
                    yield delta
            except ProviderError as error:
                failure = error
            failure = self._failure(reader, failure)
            if failure is None or reader.usage is not None:
                yield UsageDelta(
                    reader.usage or estimate_usage(request.messages, request.tools, reader.output)
                )
            if failure is not None:
                raise failure
            yield FinishDelta(reader.reason)
            await reply.finish()
        finally:
            reply.close()

    async def complete(self, request: CallRequest) -> Completion:
        """One call that is answered in one piece."""
        reply = await self._send(self._body(request, stream=False), request.call_id)
        reader = AnswerReader()
        failure: ProviderError | None = None
        deltas: list[Delta] = []
        try:
            deltas = reader.whole(await reply.read_all())
        except ProviderError as error:
            failure = error
        finally:
            reply.close()
        failure = self._failure(reader, failure)
        if failure is not None:
            raise failure
        return Completion(
            text="".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
            tool_calls=assemble(delta for delta in deltas if isinstance(delta, ToolCallDelta)),
            usage=reader.usage or _estimate(request, reader),
            finish_reason=reader.reason,
            model=reader.model or self.model_name,
        )

    async def forward(self, endpoint: str, body: bytes, call_id: str) -> Forwarded:
        """Whatever the provider answers to a body that somebody else has written, refusals included.

        `endpoint` is a path of OpenAI's API, such as `/v1/responses`. Raises ProviderError when there is no
        whole answer.
        """
        path = endpoint.removeprefix("/v1")
        reply = await self._post(self.url.replace(CHAT_PATH, path, 1), body, call_id)
        try:
            said = halves.whole(await reply.read_all())
        except ProviderError as error:
            raise self._named(error) from None
        finally:
            reply.close()
        if self.key is not None:
            said = said.replace(self.key.get_secret_value().encode(), b"***")
        if 200 <= reply.status < 300:
            return Forwarded(reply.status, reply.headers, said, self._failed(said))
        failure = from_status(
            reply.status, said, reply.headers, provider=PROVIDER, model=self.model_name, secret=self.key
        )
        return Forwarded(reply.status, reply.headers, said, failure)

    def _failed(self, said: bytes) -> ProviderError | None:
        """What a response says that began as a success and failed later."""
        error = failed_response(said)
        if error is None:
            return None
        return from_stream(error, provider=PROVIDER, model=self.model_name, secret=self.key)

    def _body(self, request: CallRequest, *, stream: bool) -> bytes:
        try:
            return request_body(
                self.model_name,
                request.messages,
                stream=stream,
                tools=request.tools,
                params=request.params,
                minimal=self.minimal,
                extra=request.extra,
            )
        except (TypeError, UnicodeEncodeError) as error:
            raise self._named(
                RequestRefusedError(f"the request cannot be written as JSON: {error}")
            ) from None

    async def _send(self, body: bytes, call_id: str) -> Reply:
        """The reply to a request, if it is a success."""
        reply = await self._post(self.url, body, call_id)
        if 200 <= reply.status < 300:
            return reply
        raise await self._refusal(reply)

    async def _post(self, url: str, body: bytes, call_id: str) -> Reply:
        if self.key is None:
            raise self._named(AuthenticationError("no API key: set OPENAI_API_KEY or AIFORGE_OPENAI_API_KEY"))
        try:
            return await self.transport.post(
                url, key=self.key, call_id=call_id, body=body, limits=self.limits
            )
        except ProviderError as error:
            raise self._named(error) from None

    async def _refusal(self, reply: Reply) -> ProviderError:
        try:
            body = await reply.read_all(_ERROR_BODY_BYTES)
        except ProviderError:
            body = b""
        finally:
            reply.close()
        return from_status(
            reply.status, body, reply.headers, provider=PROVIDER, model=self.model_name, secret=self.key
        )

    def _failure(self, reader: AnswerReader, failure: ProviderError | None) -> ProviderError | None:
        """What keeps this from being an answer; what breaks after its end does not."""
        if reader.error is not None:
            return from_stream(reader.error, provider=PROVIDER, model=self.model_name, secret=self.key)
        if reader.complete:
            return None
        if reader.failure is not None:
            return self._named(ProviderError(reader.failure, status=200))
        return self._named(failure or StreamCutError("the answer ended before it was complete"))

    def _named(self, error: ProviderError) -> ProviderError:
        error.provider, error.model = PROVIDER, self.model_name
        error.args = (f"{PROVIDER}, {self.model_name}: {error}",)
        return error


def _estimate(request: CallRequest, reader: AnswerReader) -> Usage:
    return estimate_usage(request.messages, request.tools, reader.output)


async def _head(reply: Reply) -> bytes:
    """The first bytes that are not blank, and what came before them."""
    head = b""
    while not head.strip() and (data := await reply.read()):
        head += data
    return head


def _endpoint(base_url: str) -> str:
    """The address of chat completions under `base_url`, its query kept."""
    parts = urlsplit(base_url.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError("AIFORGE_OPENAI_BASE_URL: must be an http or https URL")
    if parts.username or parts.password:
        raise ConfigError(
            "AIFORGE_OPENAI_BASE_URL: must not hold a user or password; the key has its own setting"
        )
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}{CHAT_PATH}", fragment=""))


def _header_safe(key: SecretStr | None) -> SecretStr | None:
    """The key without the blanks that come with pasting; raises ConfigError if no header can carry it."""
    stripped = SecretStr(key.get_secret_value().strip() if key else "")
    if not _printable(stripped):
        raise ConfigError("OPENAI_API_KEY: holds characters that no HTTP header can carry")
    return stripped if stripped.get_secret_value() else None


def _printable(key: SecretStr) -> bool:
    text = key.get_secret_value()
    return text.isascii() and text.isprintable()
