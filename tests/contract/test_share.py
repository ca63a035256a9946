"""Batches share slots: by tenant, then by batch, whoever comes, goes and comes back."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.support.servers import RedisServer
from tests.support.turns import Connect
from worker.contract.batch.share import HEAD_START, KEEP_MS, NEW_MS, Share
from worker.contract.client import TurnClient

pytestmark = pytest.mark.anyio


@pytest.fixture
async def share(client: TurnClient) -> Share:
    return Share(client.connection, client.settings)


async def picks(share: Share, count: int) -> Counter[str]:
    picked: Counter[str] = Counter()
    for _ in range(count):
        one = await share.pick()
        assert one is not None
        picked[one.batch_id] += 1
    return picked


async def over(share: Share, **tenants: str) -> None:
    for batch_id, tenant in tenants.items():
        await share.leave(batch_id, tenant, for_good=True)
    assert await share.pick() is None


async def test_without_batches_nobody_is_next(share: Share) -> None:
    assert await share.pick() is None


async def test_batches_of_one_tenant_have_the_same_share(share: Share) -> None:
    for name in ("a", "b", "c"):
        await share.join(name, "t")
    assert await picks(share, 300) == {"a": 100, "b": 100, "c": 100}
    await over(share, a="t", b="t", c="t")


async def test_a_tenant_gains_nothing_by_many_batches(share: Share) -> None:
    for number in range(9):
        await share.join(f"many-{number}", "many")
    await share.join("one", "single")
    picked = await picks(share, 200)
    assert picked["one"] == pytest.approx(100, abs=1)
    await over(share, one="single", **{f"many-{number}": "many" for number in range(9)})


async def test_weights_of_batches(share: Share) -> None:
    await share.join("heavy", "t", weight=3)
    await share.join("light", "t", weight=1)
    await picks(share, 4 * HEAD_START)
    picked = await picks(share, 400)
    assert picked["heavy"] == pytest.approx(300, abs=2)
    await over(share, heavy="t", light="t")


async def test_weights_of_tenants(connect: Connect) -> None:
    client = await connect(tenant_weights={"acme": 4})
    share = Share(client.connection, client.settings)
    await share.join("big", "acme")
    await share.join("small", "other")
    assert (await picks(share, 100))["big"] == pytest.approx(80, abs=1)
    await over(share, big="acme", small="other")


async def test_a_newcomer_is_served_soon_and_takes_no_arrears(share: Share) -> None:
    await share.join("long", "t")
    await picks(share, 10_00)
    await share.join("short", "t")
    first = await picks(share, HEAD_START)
    assert first["short"] >= HEAD_START - 1
    later = await picks(share, 200)
    assert later["long"] == pytest.approx(100, abs=2)
    await over(share, long="t", short="t")


async def test_a_newcomer_expects_as_many_slots_as_it_is_ahead(share: Share) -> None:
    await share.join("long", "t")
    await picks(share, HEAD_START)
    assert await share.newcomers() == {}
    await share.join("short", "t")
    await share.join("short", "t")
    assert await share.newcomers() == {"short": HEAD_START}
    await picks(share, 3)
    assert await share.newcomers() == {"short": HEAD_START - 3}
    await picks(share, HEAD_START)
    assert await share.newcomers() == {}
    await over(share, long="t", short="t")


async def test_who_leaves_expects_nothing_any_more_also_when_it_comes_back(share: Share) -> None:
    await share.join("a", "t")
    await share.leave("a", "t", for_good=False)
    await share.join("a", "t")
    assert await share.newcomers() == {}
    await over(share, a="t")


async def test_newcomers_that_nobody_serves_are_none_after_a_while(
    share: Share, client: TurnClient, server: RedisServer
) -> None:
    await share.join("a", "t")
    left = server.ask("PTTL", client.turns.keys.newcomers())
    assert 0 < left <= NEW_MS
    await over(share, a="t")


async def test_who_leaves_for_a_while_gains_nothing_by_it(share: Share) -> None:
    await share.join("steady", "t")
    await share.join("jumpy", "t")
    await picks(share, 2 * HEAD_START)
    picked: Counter[str] = Counter()
    for _ in range(100):
        await share.leave("jumpy", "t", for_good=False)
        await share.join("jumpy", "t")
        picked += await picks(share, 2)
    assert picked["jumpy"] <= 101
    await over(share, steady="t", jumpy="t")


async def test_near_its_end_a_batch_weighs_more(share: Share) -> None:
    await share.join("urgent", "t", expires_at=time.time() + 0.001)
    await share.join("calm", "t", expires_at=time.time() + 86_400)
    await picks(share, 6 * HEAD_START)
    picked = await picks(share, 500)
    assert picked["urgent"] == pytest.approx(400, abs=4)
    await over(share, urgent="t", calm="t")


async def test_joining_twice_changes_nothing(share: Share) -> None:
    await share.join("a", "t")
    await picks(share, 50)
    await share.join("a", "t")
    await share.join("b", "t")
    await picks(share, 3 * HEAD_START)
    assert (await picks(share, 100))["a"] == pytest.approx(50, abs=1)
    await over(share, a="t", b="t")


async def test_what_is_remembered_goes_by_itself(
    share: Share, client: TurnClient, server: RedisServer
) -> None:
    await share.join("a", "t")
    await share.leave("a", "t", for_good=False)
    left = server.ask("PTTL", client.turns.keys.entry("a"))
    assert 0 < left <= KEEP_MS
    await over(share, a="t")
