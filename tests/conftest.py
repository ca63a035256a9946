"""What all tests share: real servers, a namespace for each test, real processes.

    valkey            a Valkey server of this test process (each xdist worker has its own)
    server            the server of this test: `valkey`, and Debian's Redis 7 as well in tests/contract
                      and tests/properties
    namespace         the test's own; after the test its keys are looked through for leaks
    client            a TurnClient on `server` and `namespace`
    connect           makes further TurnClients there, with other settings
    provider          a scriptable OpenAI-compatible provider (`aiforge.testing.FakeProvider`)
    worker_process    starts `python -m worker` on the same server, namespace and provider; what it imports
                      is loaded already (`tests.support.nursery`)
    api_process       starts `python -m api`, likewise

Services that a test starts are stopped before its keys are looked through; what they wrote is shown
when the test fails. Conditions are waited for with `tests.support.waiting`. A fixture with a wider scope
than one test needs a `RedisServer` of its own.

Temporary folders of a test process and of all that it starts lie below pytest's own, and ours are gone at its
end. Modules that start many processes run first, so that the last minute of a run has no long ones.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from hypothesis import settings

from aiforge.testing import FakeProvider
from tests.support import leaks
from tests.support.processes import Service, Start
from tests.support.servers import RedisServer, binary
from tests.support.turns import Connect
from worker.contract.client import TurnClient
from worker.contract.settings import ContractSettings

LONG: Final = (
    "tests/integration/test_poison.py",
    "tests/integration/test_pools.py",
    "tests/chaos/",
    "tests/aiforge/cli/test_stack.py",
    "tests/integration/",
    "tests/aiforge/cli/",
    "tests/properties/",
)
"""What takes longest, in this order."""


def pytest_configure() -> None:
    """Hypothesis' limit for an example goes: how long one takes says how busy the machine is."""
    settings.register_profile("suite", deadline=None)
    settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [not item.nodeid.startswith(room) for room in LONG])


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield
    left = [path.name for path in folder.glob("aiforge-*")]
    assert not left, f"tests have left temporary folders: {left}"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisServer]:
    with RedisServer("valkey") as server:
        yield server


@pytest.fixture(scope="session")
def redis7() -> Iterator[RedisServer]:
    """Debian's Redis; a desk without it skips, CI fails."""
    if binary("redis") is None:
        assert not os.environ.get("CI"), "redis-server is not on the PATH"
        pytest.skip("redis-server is not on the PATH")
    with RedisServer("redis") as server:
        yield server


@pytest.fixture
def server(valkey: RedisServer) -> RedisServer:
    return valkey


@pytest.fixture
def namespace(server: leaks.Server) -> Iterator[str]:
    before = leaks.names(server)
    name = f"test-{secrets.token_hex(5)}"
    yield name
    seen = leaks.picture(server, name, before)
    leaks.forget(server, name)
    found = leaks.problems(seen)
    assert not found, "keys that the test leaves behind:\n" + "\n".join(found)


@pytest.fixture
async def connect(server: RedisServer, namespace: str) -> AsyncIterator[Connect]:
    async with contextlib.AsyncExitStack() as stack:

        async def connecting(**settings: Any) -> TurnClient:
            known = {"redis_url": server.url, "namespace": namespace}
            client = await TurnClient.connect(ContractSettings(**{**known, **settings}))
            return await stack.enter_async_context(client)

        yield connecting


@pytest.fixture
async def client(connect: Connect) -> TurnClient:
    return await connect()


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider() as fake:
        yield fake


@pytest.fixture
def environment(server: RedisServer, namespace: str, provider: FakeProvider) -> dict[str, str]:
    """The settings of this test's services, without prefix."""
    return {
        "redis_url": server.url,
        "namespace": namespace,
        "provider": "openai",
        "openai_api_key": "sk-test",
        "openai_base_url": provider.url,
        "metrics_port": "0",
        "api_port": "0",
    }


@pytest.fixture
def worker_process(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    with _starting("worker", environment, tmp_path) as start:
        yield start


@pytest.fixture
def api_process(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    with _starting("api", environment, tmp_path) as start:
        yield start


@contextlib.contextmanager
def _starting(module: Literal["worker", "api"], environment: dict[str, str], folder: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:
        count = 0

        def start(*, wait: bool = True, **settings: str) -> Service:
            nonlocal count
            count += 1
            known = {f"AIFORGE_{name.upper()}": value for name, value in {**environment, **settings}.items()}
            service = Service(module, folder / f"{module}-{count}", known, loaded=True)
            stack.callback(service.close)
            if wait:
                service.ready()
            return service

        yield start
