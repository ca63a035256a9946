"""Chat on an app of one's own, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import fastapi
import httpx
import pytest
import uvicorn

from aiforge import ChatAgent
from aiforge.integrations.fastapi import create_chat_router
from aiforge.testing import Cut, FakeProvider, Gate, Reply, ScriptedModel, ToolCall, failure
from aiforge.tools.human import ask_human
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with FakeProvider(strict=True) as fake:
        yield fake


def agent_of(provider: FakeProvider, conversation_id: str, **options: Any) -> ChatAgent:
    return ChatAgent(
        conversation_id=conversation_id,
        OPENAI_BASE_URL=provider.url,
        OPENAI_API_KEY="key",
        MAX_RETRIES=0,
        **options,
    )


@asynccontextmanager
async def served(router: fastapi.APIRouter) -> AsyncIterator[httpx.AsyncClient]:
    """The router on an app behind a real server."""
    app = fastapi.FastAPI()
    app.include_router(router)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none"))
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        await running


@pytest.fixture
async def client(provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with served(create_chat_router(lambda name: agent_of(provider, name))) as client:
        yield client


def events_of(text: str) -> list[dict[str, Any]]:
    blocks = [block.splitlines() for block in text.strip().split("\n\n") if not block.startswith(":")]
    events = [json.loads(lines[2].removeprefix("data: ")) for lines in blocks]
    assert [lines[0] for lines in blocks] == [f"id: {number + 1}" for number in range(len(blocks))]
    assert [lines[1] for lines in blocks] == [f"event: {event['type']}" for event in events]
    return events


async def test_a_conversation_goes_on(client: httpx.AsyncClient, provider: FakeProvider) -> None:
    provider.push("Hello Ada.", "You are Ada.")
    first = (await client.post("/chat", json={"message": "I am Ada."})).json()
    assert first["message"] == "Hello Ada."
    assert first["input_tokens"] > 0
    identifier = first["conversation_id"]
    second = await client.post("/chat", json={"message": "Who am I?", "conversation_id": identifier})
    assert second.json()["message"] == "You are Ada."
    told = (await client.get(f"/history/{identifier}")).json()
    assert told["conversation_id"] == identifier
    assert [message["content"] for message in told["messages"]] == [
        "I am Ada.",
        "Hello Ada.",
        "Who am I?",
        "You are Ada.",
    ]


async def test_a_stream_tells_all_events(client: httpx.AsyncClient, provider: FakeProvider) -> None:
    provider.push("one two three")
    answer = await client.post("/stream", json={"message": "Count.", "conversation_id": "c1"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-conversation-id"] == "c1"
    events = events_of(answer.text)
    assert "".join(event["text"] for event in events if event["type"] == "token") == "one two three"
    assert events[-1] == {**events[-1], "type": "message", "text": "one two three"}
    assert len((await client.get("/history/c1")).json()["messages"]) == 2


async def test_tokens_come_as_they_are_said(client: httpx.AsyncClient, provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["one ", Gate("more"), "two"]))
    async with client.stream("POST", "/stream", json={"message": "Count."}) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if line.startswith("data:"):
                break
        assert json.loads(line.removeprefix("data: "))["text"].strip() == "one"
        provider.open("more")
        rest = [line async for line in lines]
    assert any('"type":"message"' in line for line in rest)


async def test_a_reader_that_goes_away_ends_the_turn(
    client: httpx.AsyncClient, provider: FakeProvider
) -> None:
    provider.push(Reply(chunks=["one ", Gate("never"), "two"]), "again")
    body = {"message": "Count.", "conversation_id": "c1"}
    async with client.stream("POST", "/stream", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                break
    await eventually(lambda: provider.calls[0].end == "closed")
    assert (await client.get("/history/c1")).json()["messages"] == [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "one ", "stopped": True},
    ]
    assert (await client.post("/chat", json=body)).json()["message"] == "again"


@pytest.mark.parametrize("route", ["/chat", "/stream"])
@pytest.mark.parametrize(
    ("provided", "expected", "code"),
    [(401, 502, "provider_authentication"), (429, 429, "rate_limited"), (400, 400, "provider_refused")],
)
async def test_a_provider_that_fails(  # noqa: PLR0917  # a table
    client: httpx.AsyncClient, provider: FakeProvider, route: str, provided: int, expected: int, code: str
) -> None:
    provider.push(failure(provided))
    answer = await client.post(route, json={"message": "Hi", "conversation_id": "c1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (expected, code)
    assert (await client.get("/history/c1")).status_code == 404


async def test_a_stream_that_breaks_ends_with_an_error(
    client: httpx.AsyncClient, provider: FakeProvider
) -> None:
    provider.push(Reply(chunks=["one ", "two", Cut()]))
    events = events_of((await client.post("/stream", json={"message": "Hi"})).text)
    assert [event["type"] for event in events if event["type"] != "usage"] == ["token", "token", "error"]
    assert events[-1]["code"] == "provider_stream_cut"


@pytest.mark.parametrize(
    "body", [{"message": " "}, {"message": "Hi", "conversation_id": "a b"}, {"message": 5}, {}]
)
@pytest.mark.parametrize("route", ["/chat", "/stream"])
async def test_a_body_that_is_wrong(client: httpx.AsyncClient, route: str, body: dict[str, Any]) -> None:
    assert (await client.post(route, json=body)).status_code == 422


async def test_turns_of_one_conversation_come_one_after_the_other(
    client: httpx.AsyncClient, provider: FakeProvider
) -> None:
    body = {"message": "Hi", "conversation_id": "c1"}
    answers = await asyncio.gather(*(client.post("/chat", json=body) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {200}
    assert max(call.concurrency for call in provider.calls) == 1
    assert len((await client.get("/history/c1")).json()["messages"]) == 10


async def test_owners_do_not_meet(provider: FakeProvider) -> None:
    def user(request: fastapi.Request) -> str:
        return request.headers["x-user"]

    made: list[tuple[str, str]] = []

    async def factory(name: str, owner: str) -> ChatAgent:
        made.append((name, owner))
        return agent_of(provider, name)

    async with served(create_chat_router(factory, owner=user, prefix="/v1")) as client:
        body = {"message": "My secret.", "conversation_id": "c1"}
        assert (await client.post("/v1/chat", json=body, headers={"x-user": "ada"})).status_code == 200
        assert (await client.get("/v1/history/c1", headers={"x-user": "bob"})).status_code == 404
        assert (await client.get("/v1/history/c1", headers={"x-user": "ada"})).status_code == 200
    assert made == [("c1", "ada"), ("c1", "bob")]


async def test_only_the_latest_idle_agents_are_kept(provider: FakeProvider) -> None:
    router = create_chat_router(lambda name: agent_of(provider, name), keep=1)
    async with served(router) as client:
        for name in ("c1", "c2"):
            await client.post("/chat", json={"message": "Hi", "conversation_id": name})
        assert (await client.get("/history/c2")).status_code == 200
        assert (await client.get("/history/c1")).status_code == 404


async def test_a_factory_that_makes_something_else() -> None:
    async with served(create_chat_router(lambda name: "agent")) as client:
        answer = await client.post("/chat", json={"message": "Hi"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "invalid_config"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_human_answers(provider: FakeProvider, streamed: bool) -> None:
    provider.push(Reply(tool_calls=[ToolCall("ask_human", {"question": "Which one?"})]), "Blue it is.")
    router = create_chat_router(lambda name: agent_of(provider, name, tools=[ask_human]))
    async with served(router) as client:
        body = {"message": "Paint it.", "conversation_id": "c1"}
        if streamed:
            paused = events_of((await client.post("/stream", json=body)).text)[-1]
            assert (paused["type"], paused["text"]) == ("requires_action", "Which one?")
            question_id = paused["question_id"]
        else:
            response = (await client.post("/chat", json=body)).json()
            assert response["status"] == "requires_action"
            question_id = response["question"]["question_id"]
        answer = {"conversation_id": "c1", "question_id": question_id, "answer": "blue"}
        done = await client.post("/resume", json={**answer, "stream": streamed})
        if streamed:
            assert events_of(done.text)[-1]["text"] == "Blue it is."
        else:
            assert done.json()["message"] == "Blue it is."
        again = await client.post("/resume", json=answer)
        assert (again.status_code, again.json()["error"]["code"]) == (422, "invalid_input")
    assert provider.calls[1].messages[-1]["content"] == "blue"


def test_requests_of_several_event_loops_share_a_conversation() -> None:
    """What a test client does that threads share: each request has an event loop of its own."""
    made: list[str] = []

    async def factory(conversation_id: str) -> ChatAgent:
        made.append(conversation_id)
        model = await asyncio.to_thread(lambda: ScriptedModel(replies=["ok"], repeat_last=True))
        return ChatAgent(conversation_id=conversation_id, llm=model)

    app = fastapi.FastAPI()
    app.include_router(create_chat_router(factory))
    conversations = [f"c{number}" for number in range(5)] * 6

    async def ask(conversation_id: str) -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"message": "Hello", "conversation_id": conversation_id}
            return (await client.post("/chat", json=body)).status_code

    with ThreadPoolExecutor(len(conversations)) as threads:
        statuses = list(threads.map(lambda name: asyncio.run(ask(name)), conversations))
    assert set(statuses) == {200}
    assert sorted(made) == [f"c{number}" for number in range(5)]
