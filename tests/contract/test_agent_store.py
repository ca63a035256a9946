"""The store of library agents in the service's Redis, against the suite of all stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aiforge import ChatAgent, ConfigError, ConversationMovedError
from aiforge.core.types import StoreError
from aiforge.modules.chat.stores.protocol import Store
from aiforge.testing import ScriptedModel, ToolCall
from tests.aiforge.chat.store_suite import StoreSuite
from tests.aiforge.chat.support import DuckTool, run
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from worker.contract.client import TurnClient
from worker.contract.ids import shard_of
from worker.contract.keys import Keys
from worker.contract.memory.agent_store import RedisStore
from worker.contract.schemas import ConversationSettings


class TestRedisStore(StoreSuite):
    @pytest.fixture
    def open_store(self, server: RedisServer, namespace: str) -> Callable[[], Store]:
        return lambda: RedisStore(server.url, namespace=namespace)


@pytest.fixture
def store(server: RedisServer, namespace: str) -> RedisStore:
    return RedisStore(server.url, namespace=namespace)


def agent_of(store: Store, *replies: object) -> ChatAgent:
    model = ScriptedModel(replies=list(replies) or ["yes"], repeat_last=True)
    return ChatAgent("s", llm=model, store=store, conversation_id="user-42")


def test_a_conversation_goes_on_in_another_agent(
    store: RedisStore, server: RedisServer, namespace: str
) -> None:
    first = agent_of(store, "one", "two")
    first.chat("1")
    first.chat("2")
    second = agent_of(RedisStore(server.url, namespace=namespace), "three")
    asyncio.run(second.achat("3"))
    assert [message["content"] for message in first.history()] == ["1", "one", "2", "two", "3", "three"]
    branch = second.branch(1)
    assert [message["content"] for message in branch.history()] == ["1", "one"]
    first.compact()
    assert [info.version for info in second.versions()] == [3]
    assert len(first.history()) == 6


def test_a_turn_that_another_process_forestalled_changes_nothing(store: RedisStore) -> None:
    quick = agent_of(store)

    def forestall(_arguments: dict[str, object]) -> str:
        quick.chat("meanwhile")
        return "done"

    slow = ChatAgent(
        "s",
        llm=ScriptedModel(replies=[ToolCall("forestall", {}), "late"]),
        tools=[DuckTool("forestall", forestall)],
        store=store,
        conversation_id="user-42",
    )
    with pytest.raises(ConversationMovedError):
        slow.chat("first")
    assert [message["content"] for message in slow.history()] == ["meanwhile", "yes"]


def test_a_turn_costs_what_it_changes(store: RedisStore, server: RedisServer, namespace: str) -> None:
    """Neither the next entry nor a look at the latest ones moves what was there before."""

    def moved() -> int:
        traffic = server.ask("INFO", "stats")
        return int(traffic["total_net_output_bytes"]) + int(traffic["total_net_input_bytes"])

    async def scenario() -> None:
        for number in range(1, 1_501):
            await store.append("long", number, b"x" * 2_000)
        before = moved()
        await store.append("long", 1_501, b"y")
        assert await store.read("long", after=1_500) == [(1_501, b"y")]
        assert moved() - before < 20_000
        assert len(await store.read("long")) == 1_501
        await store.compact("long", 1_400, b"z")
        assert [number for number, _ in await store.read("long")] == list(range(1_400, 1_502))
        assert server.ask("HLEN", Keys(namespace).versions("default", "long")) == 102 + len({"first", "last"})
        await store.close()

    run(scenario())


def test_a_write_whose_reply_was_lost_is_written_once(server: RedisServer, namespace: str) -> None:
    async def scenario() -> None:
        async with Proxy(server.port) as proxy:
            store = RedisStore(proxy.url, namespace=namespace)
            assert await store.read("a") == []
            lost = iter(["cut"])
            proxy.fate = lambda _frame: next(lost, "pass")  # type: ignore[arg-type]
            await store.append("a", 1, b"one")
            assert next(lost, None) is None
            with pytest.raises(ConversationMovedError):
                await store.append("a", 1, b"one")
            assert await store.read("a") == [(1, b"one")]
            await store.close()

    run(scenario())


def test_tenants_do_not_meet(store: RedisStore, server: RedisServer, namespace: str) -> None:
    names = (f"tenant-{number}" for number in range(10_000))
    on_its_shard = next(name for name in names if shard_of("default", "c") == shard_of(name, "c"))
    other = RedisStore(server.url, namespace=namespace, tenant=on_its_shard)

    async def scenario() -> None:
        await store.append("c", 1, b"mine")
        assert await other.read("c") == []
        assert await other.conversations() == []
        await other.append("c", 1, b"theirs")
        await other.delete("c")
        assert await store.read("c") == [(1, b"mine")]
        assert await store.conversations() == ["c"]
        for each in (store, other):
            await each.close()

    run(scenario())


@pytest.mark.anyio
async def test_one_id_in_both_worlds(client: TurnClient, store: RedisStore) -> None:
    await client.create_conversation(ConversationSettings(), conversation_id="c")
    await store.append("c", 1, b"one")
    assert (await client.conversation("c")).messages == 0
    await store.delete("c")
    assert (await client.conversation("c")).conversation_id == "c"
    await store.close()


def test_a_server_that_is_away_is_a_store_error(namespace: str) -> None:
    async def scenario() -> None:
        store = RedisStore("redis://127.0.0.1:1/0", namespace=namespace)
        with pytest.raises(StoreError, match="does not answer"):
            await store.append("a", 1, b"x")
        await store.close()

    run(scenario())


def test_what_it_is_told_is_checked_at_once(monkeypatch: pytest.MonkeyPatch, server: RedisServer) -> None:
    monkeypatch.delenv("AIFORGE_REDIS_URL", raising=False)
    with pytest.raises(ConfigError, match="AIFORGE_REDIS_URL"):
        RedisStore()
    with pytest.raises(ConfigError, match="redis://"):
        RedisStore("http://x")
    with pytest.raises(ConfigError, match="NAMESPACE"):
        RedisStore(server.url, namespace="a:b")
    with pytest.raises(ConfigError, match="tenant"):
        RedisStore(server.url, tenant="a:b")
    monkeypatch.setenv("AIFORGE_REDIS_URL", server.url)
    assert run(RedisStore(namespace="nobody-s").conversations()) == []
