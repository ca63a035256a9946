"""What the tests of the clients share: a scripted service, and either client to ask it with."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from aiforge.client import AsyncClient, Client
from tests.aiforge.client.service import Service

Ask = Callable[..., Any]


@pytest.fixture
def service() -> Iterator[Service]:
    with Service().running() as running:
        yield running


def ask_sync(
    url: str, method: str, *args: Any, token: str | None = None, retries: int = 2, **kwargs: Any
) -> Any:
    with Client(url, token=token, retries=retries) as client:
        answer = getattr(client, method)(*args, **kwargs)
        return list(answer) if inspect.isgenerator(answer) else answer


def ask_async(
    url: str, method: str, *args: Any, token: str | None = None, retries: int = 2, **kwargs: Any
) -> Any:
    async def go() -> Any:
        async with AsyncClient(url, token=token, retries=retries) as client:
            answer = getattr(client, method)(*args, **kwargs)
            if isinstance(answer, AsyncIterator):
                return [part async for part in answer]
            return await answer

    return asyncio.run(go())


@pytest.fixture(params=[ask_sync, ask_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found
