"""Blows to what the processes depend on: Redis, the lines to it, and the line to the provider."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

import redis

from tests.chaos.evidence import Hit, Outage
from tests.chaos.plan import Fault
from tests.chaos.scene import Scene
from tests.chaos.stage import Node
from tests.support.proxy import Relay, nth
from tests.support.waiting import eventually

REPLIES: Final = 40
"""One of the next so many replies is swallowed: those of about one turn."""
DRIP: Final = 2_000.0
"""Bytes a second of a slow line: less than what the worker has to say."""
SILENT_SECONDS: Final = 2.0
"""How long the provider is not heard; a turn waits longer for it."""
Struck = tuple[list[Hit], Outage]


async def kill_redis(scene: Scene, _worker: Node) -> Struck:
    """No turn loses its attempt by this: what runs waits for the server to come back."""
    held = await scene.held("redis", None, 0.0)
    await asyncio.to_thread(scene.stage.redis.kill)
    began = time.time()
    await asyncio.to_thread(scene.stage.redis.start)
    return await _over(scene, Outage("redis", began, time.time()), held)


async def restart_redis(scene: Scene, _worker: Node) -> Struck:
    held = await scene.held("restarts", None, 0.0)
    server = scene.stage.redis
    with contextlib.suppress(redis.ConnectionError):
        await asyncio.to_thread(server.ask, "SHUTDOWN")
    await eventually(lambda: not _listens(scene), 10)
    await asyncio.to_thread(server.kill)
    began = time.time()
    await asyncio.to_thread(server.start)
    return await _over(scene, Outage("restarts", began, time.time()), held)


async def fill_redis(scene: Scene, _worker: Node) -> Struck:
    """Sometimes for longer than a lease: whoever cannot renew it may lose its turns."""
    held, began = await scene.held("full", None, 0.0), time.time()
    server = scene.stage.redis
    await asyncio.to_thread(server.ask, "CONFIG", "SET", "maxmemory", "1")
    await asyncio.sleep(scene.plan.lease * scene.random.uniform(0.2, 1.2))
    await asyncio.to_thread(server.ask, "CONFIG", "SET", "maxmemory", "0")
    return await _over(scene, Outage("full", began, time.time()), held)


async def kill_clients(scene: Scene, _worker: Node) -> Struck:
    held, began = await scene.held("clients", None, 0.0), time.time()
    for kind in ("normal", "pubsub"):
        await asyncio.to_thread(scene.stage.redis.ask, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    return await _over(scene, Outage("clients", began, time.time()), held)


async def disturb_link(scene: Scene, worker: Node) -> Struck:
    """Of a worker as often as of the API; a worker's may be silent until others have its turns."""
    node = scene.random.choice([worker, scene.stage.api])
    held, began = await scene.held("links", None, 0.0), time.time()
    way: Literal["silence", "reset", "swallow", "drip"]
    way = scene.random.choice(["silence", "reset", "swallow", "drip"])
    if way == "swallow":
        node.tap.fate = nth(scene.random.randint(1, REPLIES), "drop")
        await asyncio.sleep(SILENT_SECONDS)
    else:
        longest = 1.5 * scene.plan.lease if node is worker else SILENT_SECONDS
        await _disturb(node.tap, way, longest)
    node.tap.heal()
    return await _over(scene, Outage("links", began, time.time()), held)


async def disturb_provider(scene: Scene) -> tuple[float, float]:
    """From when until when."""
    began = time.time()
    await _disturb(scene.stage.line, scene.random.choice(["silence", "reset", "drip"]), SILENT_SECONDS)
    return began, time.time()


async def _disturb(relay: Relay, way: str, seconds: float) -> None:
    match way:
        case "reset":
            relay.reset()
            return
        case "drip":
            relay.drip(DRIP)
        case _:
            relay.blackhole()
    await asyncio.sleep(seconds)
    relay.heal()


async def _over(scene: Scene, outage: Outage, held: list[Hit]) -> Struck:
    """With all that ran at its beginning or was claimed meanwhile."""
    claimed = [
        Hit(outage.fault, claim.turn_id, claim.fence, "before the first token", outage.ended)
        for tap in scene.stage.taps
        for claim in tap.claims
        if outage.began <= claim.at <= outage.ended
    ]
    return [*(hit._replace(at=outage.ended) for hit in held), *claimed], outage


def _listens(scene: Scene) -> bool:
    try:
        return bool(scene.stage.redis.ask("PING"))
    except redis.RedisError:
        return False


OUTAGE: Final[Mapping[Fault, Callable[[Scene, Node], Awaitable[Struck]]]] = {
    "redis": kill_redis,
    "restarts": restart_redis,
    "full": fill_redis,
    "clients": kill_clients,
    "links": disturb_link,
}
