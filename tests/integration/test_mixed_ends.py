"""Turns that end in every way there is, again and again in one process: it is afterwards as it was before."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import pytest

from aiforge.core.events import Token
from aiforge.testing import FakeProvider, Gate, Reply, ToolCall, failure
from tests.support.processes import Service, Start, children
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import TurnRequest, TurnState

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
POOLS: Final = (
    "greenlets",
    pytest.param("prefork", marks=pytest.mark.soak),
    pytest.param("threads", marks=pytest.mark.soak),
    pytest.param("solo", marks=pytest.mark.soak),
)
WIDTH: Final = 14
"""Turns under way at a time, two of each kind."""
SLACK: Final = 3
"""Descriptors that come and go: a connection that a provider has just closed, a scrape."""
HELD: Final = "never"
TROUBLE: Final = re.compile(
    r"Traceback|never retrieved|never awaited|loop is closed|Unclosed|Exception ignored|Warning"
    r'|"level":"(?:warning|error|critical)"'
)
CANCELLED: Final = TurnState.CANCELLED


class Scene:
    """Posts a turn of each kind and sees how it ends."""

    def __init__(self, client: TurnClient, http: httpx.AsyncClient, provider: FakeProvider) -> None:
        self.client = client
        self.http = http
        self.provider = provider
        self.ended: Counter[tuple[str, str]] = Counter()
        self._numbers = itertools.count()

    async def run(self, rounds: int) -> None:
        """So many turns of each kind, `WIDTH` at a time."""
        places = asyncio.Semaphore(WIDTH)

        async def one(kind: str) -> None:
            async with places:
                state = await KINDS[kind](self, f"{kind}-{next(self._numbers)}.")
                self.ended[kind, state] += 1

        await asyncio.gather(*(one(kind) for _ in range(rounds) for kind in KINDS))

    async def posted(self, message: str, **options: Any) -> str:
        return (await self.client.submit(TurnRequest(message=message, **options))).turn_id

    async def over(self, turn_id: str) -> TurnState:
        turn = await eventually(lambda: self._finished(turn_id), 60)
        return TurnState(turn.state)

    async def _finished(self, turn_id: str) -> Any:
        turn = await self.client.wait(turn_id, 5)
        return turn if turn.finished else None

    async def completed(self, message: str) -> TurnState:
        return await self.over(await self.posted(message))

    async def failed(self, message: str) -> TurnState:
        self.provider.when(message, failure(400), times=1)
        return await self.over(await self.posted(message))

    async def retried(self, message: str) -> TurnState:
        self.provider.when(message, failure(503), times=1)
        return await self.over(await self.posted(message))

    async def with_tools(self, message: str) -> TurnState:
        self.provider.when(message, Reply(tool_calls=[ToolCall("look_up", {"order": "A1"})]), times=1)
        return await self.over(await self.posted(message, tools=["look_up"]))

    async def expired(self, message: str) -> TurnState:
        self.provider.when(message, Reply(tool_calls=[ToolCall("refund", {"order": "A1"})]), times=1)
        return await self.over(await self.posted(message, tools=["refund"]))

    async def cancelled(self, message: str) -> TurnState:
        self.provider.when(message, Reply(chunks=["One ", Gate(HELD)]), times=1)
        turn_id = await self.posted(message)
        async with contextlib.aclosing(self.client.events(turn_id)) as events:  # type: ignore[type-var]
            async for _, event in events:
                if isinstance(event, Token):
                    break
        await self.client.cancel(turn_id)
        return await self.over(turn_id)

    async def left(self, message: str) -> TurnState:
        self.provider.when(message, Reply(chunks=["One ", Gate(HELD)]), times=1)
        async with self.http.stream(
            "POST",
            "/v1/turns?on_disconnect=cancel",
            json={"message": message},
            headers={"Accept": "text/event-stream"},
        ) as reply:
            async for line in reply.aiter_lines():
                if line == "event: token":
                    break
        return await self.over(reply.headers["x-turn-id"])


KINDS: Final[dict[str, Callable[[Scene, str], Coroutine[Any, Any, TurnState]]]] = {
    "completed": Scene.completed,
    "failed": Scene.failed,
    "retried": Scene.retried,
    "with tools": Scene.with_tools,
    "expired": Scene.expired,
    "cancelled": Scene.cancelled,
    "left": Scene.left,
}
ENDS: Final = {
    "completed": TurnState.COMPLETED,
    "failed": TurnState.FAILED,
    "retried": TurnState.COMPLETED,
    "with tools": TurnState.COMPLETED,
    "expired": TurnState.EXPIRED,
    "cancelled": CANCELLED,
    "left": CANCELLED,
}


def descriptors(service: Service) -> int:
    """How many files, sockets and pipes a service's processes have open."""
    first = service.process.pid
    second = children(first)
    third = [process for child in second for process in children(child)]
    return sum(len(list(Path(f"/proc/{process}/fd").iterdir())) for process in (first, *second, *third))


@pytest.fixture
async def scene(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connect: Connect, provider: FakeProvider
) -> AsyncIterator[Callable[[Service], Scene]]:
    """Makes a scene in front of an API; what Python has to complain about stands in the services' output."""
    monkeypatch.setenv("AIFORGE_TOOLS", "tests.support.till:tools")
    monkeypatch.setenv("PYTHONWARNINGS", "always::ResourceWarning,always::RuntimeWarning")
    (tmp_path / "done.txt").touch()
    client = await connect()
    async with contextlib.AsyncExitStack() as stack, httpx.AsyncClient(trust_env=False, timeout=60) as http:

        def made(api: Service) -> Scene:
            http.base_url = httpx.URL(api.url)
            return Scene(client, http, provider)

        yield made
        await stack.aclose()


@pytest.mark.parametrize(
    ("before", "rounds"), [(1, 1), pytest.param(4, 139, marks=pytest.mark.soak)], ids=["14", "1001"]
)
@pytest.mark.parametrize("pool", POOLS)
async def test_nothing_is_left_of_turns_however_they_end(
    pool: Literal["greenlets", "threads", "prefork", "solo"],
    before: int,
    rounds: int,
    *,
    scene: Callable[[Service], Scene],
    worker_process: Start,
    api_process: Start,
    tmp_path: Path,
) -> None:
    width = "1" if pool in ("prefork", "solo") else str(WIDTH)
    worker = worker_process(
        pool=pool,
        concurrency=width,
        tools="tests.support.till:tools",
        workspace=str(tmp_path),
        action_timeout_seconds="0.3",
        log_format="json",
    )
    api = api_process(log_format="json")
    here = scene(api)
    await here.run(before)
    at_first = {service.module: descriptors(service) for service in (worker, api)}
    await here.run(rounds)
    assert here.ended == {(kind, ENDS[kind]): before + rounds for kind in KINDS}
    for service in (worker, api):
        limit = at_first[service.module] + SLACK
        await eventually(lambda: descriptors(service) <= limit, 30)  # noqa: B023  # waited for here
        assert service.terminate() == 0
        assert [line for line in service.output.splitlines() if TROUBLE.search(line)] == []
