"""Chat for an app of one's own: routes over agents, to be mounted on FastAPI (extra `fastapi`).

    app.include_router(create_chat_router(lambda conversation_id: ChatAgent(conversation_id=conversation_id)))

POST /chat            {message, conversation_id?, metadata?} → the ChatResponse
POST /stream          the same body → server-sent events: those of the turn; the last is `message`, `error`,
                      or `requires_action` when the turn waits for a human
POST /resume          {conversation_id, question_id, answer, stream?} → what `chat` or `stream` gives
GET  /history/{id}    → {conversation_id, messages}

Without a `conversation_id` a new conversation begins; the answer, and a stream's `x-conversation-id`, name
it. Errors have the form {"error": {message, type, param, code}}.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from aiforge.core.events import Error, Event, encode, name
from aiforge.core.types import (
    AIForgeError,
    APITimeoutError,
    ConfigError,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
)
from aiforge.modules.chat.module import ChatAgent
from aiforge.modules.chat.schemas import ChatResponse

AgentFactory = Callable[..., Any]
"""Makes, or awaits, the ChatAgent of a conversation from its id, and from its owner if there is one."""

Asked = Callable[[ChatAgent], AsyncGenerator[Event, None]]

PING_SECONDS: Final = 10.0
_STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (ConfigError, 500),
    (RateLimitError, 429),
    (APITimeoutError, 504),
    (RequestRefusedError, 400),
    (ProviderError, 502),
    (ValueError, 422),
)


class ChatBody(BaseModel):
    """One message to an agent."""

    message: str
    conversation_id: str | None = None
    metadata: dict[str, str] | None = None


class ResumeBody(BaseModel):
    """A human's answer to a turn that waits for it."""

    conversation_id: str
    question_id: str
    answer: str
    stream: bool = False


def create_chat_router(
    agent_factory: AgentFactory,
    *,
    owner: Callable[..., Any] | None = None,
    keep: int = 1_000,
    prefix: str = "",
    dependencies: Sequence[Any] | None = None,
) -> APIRouter:
    """Routes for chat, stream and history.

    `agent_factory(conversation_id)` makes the agent of a conversation; the latest `keep` idle agents
    are kept, so that an older conversation lives on only in its agent's store. `owner` is a
    dependency that says whose request it is: then `agent_factory(conversation_id, owner)` is called,
    and one owner never meets the agents of another. `dependencies` are FastAPI's, for access checks.
    """
    agents = _Agents(agent_factory, keep, owned=owner is not None)
    router = APIRouter(prefix=prefix, dependencies=list(dependencies or ()), tags=["chat"])
    whose = Depends(owner or _nobody)

    @router.post("/chat")
    async def chat(body: ChatBody, of: Any = whose) -> Response:
        conversation = agents.of(body.conversation_id or secrets.token_hex(8), of)
        return await _answered(conversation, lambda agent: agent.achat(body.message, metadata=body.metadata))

    @router.post("/stream")
    async def stream(body: ChatBody, of: Any = whose) -> Response:
        conversation = agents.of(body.conversation_id or secrets.token_hex(8), of)
        return await _streamed(
            conversation, lambda agent: agent.astream_events(body.message, metadata=body.metadata)
        )

    @router.post("/resume")
    async def resume(body: ResumeBody, of: Any = whose) -> Response:
        conversation = agents.of(body.conversation_id, of)
        if body.stream:
            return await _streamed(
                conversation, lambda agent: agent.resume_events(body.question_id, body.answer)
            )
        return await _answered(conversation, lambda agent: agent.aresume(body.question_id, body.answer))

    @router.get("/history/{conversation_id}")
    async def history(conversation_id: str, of: Any = whose) -> Response:
        return await _told(agents.of(conversation_id, of))

    return router


class _Agents:
    """The agents of the latest conversations. One that is in use is never dropped.

    Requests may come from several event loops, as those of a test client do that threads share.
    """

    def __init__(self, factory: AgentFactory, keep: int, *, owned: bool) -> None:
        self._factory = factory
        self._keep = keep
        self._owned = owned
        self._idle: OrderedDict[tuple[Any, str], ChatAgent] = OrderedDict()
        self._used: dict[tuple[Any, str], tuple[Future[ChatAgent], int]] = {}
        self._guard = threading.Lock()

    def of(self, conversation_id: str, owner: Any) -> _Conversation:
        return _Conversation(self, owner, conversation_id)

    @asynccontextmanager
    async def use(self, key: tuple[Any, str]) -> AsyncIterator[ChatAgent]:
        """The agent of one owner's conversation: the same one, however many requests use it."""
        loop = asyncio.get_running_loop()
        with self._guard:
            used = self._used.get(key)
            making, users = used or (asyncio.run_coroutine_threadsafe(self._agent(key), loop), 0)
            self._used[key] = making, users + 1
        try:
            yield await asyncio.shield(asyncio.wrap_future(making))
        finally:
            with self._guard:
                self._release(key)

    async def _agent(self, key: tuple[Any, str]) -> ChatAgent:
        kept = self._idle.pop(key, None)
        if kept is not None:
            return kept
        owner, conversation_id = key
        made = self._factory(*((conversation_id, owner) if self._owned else (conversation_id,)))
        agent = await made if inspect.isawaitable(made) else made
        if not isinstance(agent, ChatAgent):
            raise ConfigError(f"agent_factory must make a ChatAgent, not {type(agent).__name__}")
        return agent

    def _release(self, key: tuple[Any, str]) -> None:
        making, users = self._used.pop(key)
        if users > 1:
            self._used[key] = making, users - 1
        elif making.done() and not making.cancelled() and making.exception() is None:
            self._idle[key] = making.result()
            while len(self._idle) > self._keep:
                self._idle.popitem(last=False)
        else:
            making.cancel()


@dataclass(frozen=True, slots=True)
class _Conversation:
    """One owner's conversation, as a request names it."""

    agents: _Agents
    owner: Any
    id: str

    def agent(self) -> AbstractAsyncContextManager[ChatAgent]:
        return self.agents.use((self.owner, self.id))


async def _answered(
    conversation: _Conversation, ask: Callable[[ChatAgent], Awaitable[ChatResponse]]
) -> Response:
    try:
        async with conversation.agent() as agent:
            response = await ask(agent)
    except (AIForgeError, ValueError) as error:
        return _failure(error)
    return JSONResponse({**response.model_dump(mode="json"), "conversation_id": conversation.id})


async def _told(conversation: _Conversation) -> Response:
    try:
        async with conversation.agent() as agent:
            messages = await agent.ahistory()
    except (AIForgeError, ValueError) as error:
        return _failure(error)
    if not messages:
        return _error(404, f"conversation {conversation.id!r} does not exist", "not_found")
    return JSONResponse({"conversation_id": conversation.id, "messages": messages})


async def _streamed(conversation: _Conversation, ask: Asked) -> Response:
    events = _events(conversation, ask)
    coming = asyncio.ensure_future(_next(events))
    try:
        await _settled(coming, events)
    except (AIForgeError, ValueError) as error:  # before anything was said there can be a status
        return _failure(error)
    return StreamingResponse(
        _lines(coming, events),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-conversation-id": conversation.id},
    )


async def _events(conversation: _Conversation, ask: Asked) -> AsyncGenerator[Event, None]:
    async with conversation.agent() as agent, aclosing(ask(agent)) as events:
        async for event in events:
            yield event


async def _settled(coming: asyncio.Future[Event | None], events: AsyncGenerator[Event, None]) -> None:
    """Wait a while for the first event; raises what the turn raises when that is an error."""
    done, _ = await asyncio.wait([coming], timeout=PING_SECONDS)
    if done and isinstance(coming.result(), Error):
        await _next(events)


async def _lines(
    coming: asyncio.Future[Event | None], events: AsyncGenerator[Event, None]
) -> AsyncGenerator[bytes, None]:
    """The stream as server-sent events, with a comment while nothing happens.

    A reader that goes away ends the turn.
    """
    number, event = 0, None
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=PING_SECONDS)
            if not done:
                yield b": ping\n\n"
                continue
            event = coming.result()
            if event is None:
                return
            number += 1
            yield _line(number, event)
            coming = asyncio.ensure_future(_next(events))
    except (AIForgeError, ValueError) as error:
        if not isinstance(event, Error):  # most failures were told by an event of their own
            yield _line(number + 1, Error(_code(error), str(error), getattr(error, "retryable", False)))
    finally:
        coming.cancel()
        await asyncio.wait([coming])
        await events.aclose()


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)


def _line(number: int, event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name(event).encode(), encode(event))


def _failure(error: Exception) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    retry_after = getattr(error, "retry_after", None)
    headers = {"retry-after": f"{retry_after:.0f}"} if retry_after is not None else None
    return _error(status, str(error), _code(error), headers)


def _code(error: Exception) -> str:
    return error.code if isinstance(error, AIForgeError) else "invalid_input"


def _error(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    content = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(content, status, dict(headers or {}))


async def _nobody() -> None:
    """The owner where there are none."""
