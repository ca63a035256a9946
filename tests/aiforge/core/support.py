"""What the tests of the provider seam share: a model on a server, and a stream read to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.language_models import BaseChatModel

from aiforge.core.deltas import (
    CallParams,
    CallRequest,
    Completion,
    Delta,
    TextDelta,
    ToolCallDelta,
    UsageDelta,
)
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.providers import complete, create_model, stream_deltas
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ProviderError, Usage

KEY = "sk-secret-canary-0123456789"
HELLO = [{"role": "user", "content": "Hello there"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def openai_model(url: str, **settings: Any) -> OpenAIChat:
    model = create_model(AIForgeSettings.load(**{"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url, **settings}))
    assert isinstance(model, OpenAIChat)
    return model


class Heard:
    """All that one streamed call gave, the error included."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.error: ProviderError | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def pieces(self) -> list[ToolCallDelta]:
        return [delta for delta in self.deltas if isinstance(delta, ToolCallDelta)]

    @property
    def usages(self) -> list[Usage]:
        return [delta.usage for delta in self.deltas if isinstance(delta, UsageDelta)]


async def hear(
    model: BaseChatModel,
    messages: list[dict[str, Any]] = HELLO,
    *,
    tools: list[dict[str, Any]] | None = None,
    params: CallParams = CallParams(),  # noqa: B008  # frozen
    call_id: str = "call-1",
) -> Heard:
    heard = Heard()
    try:
        async for delta in stream_deltas(model, CallRequest(messages, tools, params, call_id)):
            heard.deltas.append(delta)
    except ProviderError as error:
        heard.error = error
    return heard


async def ask(
    model: BaseChatModel,
    messages: list[dict[str, Any]] = HELLO,
    *,
    tools: list[dict[str, Any]] | None = None,
    params: CallParams = CallParams(),  # noqa: B008  # frozen
) -> Completion:
    return await complete(model, CallRequest(messages, tools, params, "call-1"))


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def wire_server(talk: Talk) -> AsyncIterator[str]:
    """A server that says exactly the bytes that `talk` writes; yields its base URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one HTTP request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    return head, await reader.readexactly(length)
