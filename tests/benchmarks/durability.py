"""What it costs that no turn is lost: the scripts of a turn, and a claim on a long conversation.

`python -m tests.benchmarks.durability`, half a minute; a server of its own, no provider and no Celery.
A turn is submitted, claimed and committed by one event loop, steadily, `RATE` times a second. The bare
equivalent stores the same question, reads it, and stores the same answer: as many round trips over the
same kind of connection, and no promise. Both are begun in turns, so that what else the machine does hits
both. Claims are measured by the server's own clock (SLOWLOG), in turns, too.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec
import redis
import uvloop

from tests.benchmarks.measure import quantile, show
from tests.support.servers import RedisServer
from tests.support.turns import Running, claim, submit
from worker.contract.client import TurnClient
from worker.contract.schemas import ConversationSettings, StoredMessage
from worker.contract.settings import ContractSettings

RATE: Final = 100
TURNS: Final = 2_000
QUESTION: Final = "What are your opening hours on public holidays? " * 4
ANSWER: Final = "We are open from nine to five. " * 16
LENGTHS: Final = (10, 1_000, 100_000)
CLAIMS: Final = 500
MEMORY_K: Final = 10
PART: Final = 5_000


async def durable(client: TurnClient, number: int) -> float:
    """Seconds from the call of submit to the committed answer; the wake-up is sent beside it."""
    began = time.perf_counter()
    running = await claim(client.turns, await submit(client, f"{QUESTION}{number}"))
    finished = await running.answer(ANSWER)
    assert finished.accepted
    return time.perf_counter() - began


async def bare(client: TurnClient, number: int) -> float:
    began = time.perf_counter()
    for command in (
        ("SET", f"bare:{number}", f"{QUESTION}{number}", "EX", 60),
        ("GET", f"bare:{number}"),
        ("SET", f"bare:{number}", ANSWER, "EX", 60),
    ):
        await client.connection.command(*command)
    return time.perf_counter() - began


async def latencies(url: str) -> tuple[list[float], list[float]]:
    """Those of the durable path and of the bare one, without the first second of each."""
    ours = ContractSettings(redis_url=url, namespace="durable")
    theirs = ContractSettings(redis_url=url, namespace="bare")
    async with await TurnClient.connect(ours) as client, await TurnClient.connect(theirs) as other:
        began = time.perf_counter()

        async def arrive(number: int) -> float:
            await asyncio.sleep(max(0.0, began + number / 2 / RATE - time.perf_counter()))
            return await (bare(other, number) if number % 2 else durable(client, number))

        took = await asyncio.gather(*(arrive(number) for number in range(2 * TURNS)))
    return took[2 * RATE :: 2], took[2 * RATE + 1 :: 2]


class Claims:
    """Claims on conversations of different lengths, timed by the server."""

    def __init__(self, client: TurnClient, server: RedisServer) -> None:
        self._client = client
        self._redis = redis.Redis(port=server.port)
        self._digest = client.connection.scripts["claim"].digest.encode()

    async def run(self) -> dict[int, list[float]]:
        """Microseconds by the conversation's length."""
        places = {length: await self._conversation(length) for length in LENGTHS}
        self._redis.config_set("slowlog-log-slower-than", 0)
        took: dict[int, list[float]] = {length: [] for length in LENGTHS}
        for _ in range(CLAIMS):
            for length, place in places.items():
                self._redis.slowlog_reset()
                running: Running = await claim(self._client.turns, place)
                took[length].append(self._last_claim())
                assert len(running.claim.window) == MEMORY_K
                await running.hand_back()
        self._redis.close()
        return took

    async def _conversation(self, length: int) -> Any:
        name = f"of-{length}"
        await self._client.create_conversation(ConversationSettings(memory_k=MEMORY_K), conversation_id=name)
        message = msgspec.json.encode(StoredMessage(role="user", content=QUESTION))
        key = self._client.turns.keys.messages("default", name)
        for start in range(0, length, PART):
            self._redis.rpush(key, *[message] * min(PART, length - start))
        place = await submit(self._client, conversation_id=name)
        await (await claim(self._client.turns, place)).hand_back()  # by then the script is loaded
        return place

    def _last_claim(self) -> float:
        entries: Any = self._redis.slowlog_get(16)
        (took,) = [
            entry["duration"] for entry in entries if entry["command"].startswith(b"EVALSHA " + self._digest)
        ]
        return float(took)


async def claims(server: RedisServer) -> dict[int, list[float]]:
    settings = ContractSettings(redis_url=server.url, namespace="claims")
    async with await TurnClient.connect(settings) as client:
        return await Claims(client, server).run()


def main() -> None:
    with RedisServer() as server:
        ours, theirs = uvloop.run(latencies(server.url))
    shares = (0.5, 0.95, 0.99)
    floor = [quantile(theirs, share) * 1000 for share in shares]
    whole = [quantile(ours, share) * 1000 for share in shares]
    added = [mine - least for mine, least in zip(whole, floor, strict=True)]
    names = ("three bare commands", "submit, claim, finish", "added")
    rows = [
        [name, *(f"{value:.2f}" for value in values)]
        for name, values in zip(names, (floor, whole, added), strict=True)
    ]
    show(f"Durability, {RATE} turns/s", ("a turn's round trips", "p50 ms", "p95 ms", "p99 ms"), rows)
    with RedisServer() as server:
        took = uvloop.run(claims(server))
    least = quantile(took[LENGTHS[0]], 0.5)
    rows = [
        [
            f"{length:,} messages",
            f"{quantile(micros, 0.5):.0f}",
            f"{quantile(micros, 0.95):.0f}",
            f"{quantile(micros, 0.5) / least:.2f} ×",
        ]
        for length, micros in took.items()
    ]
    columns = (f"a claim with the last {MEMORY_K} messages", "p50 µs", "p95 µs", f"of {LENGTHS[0]} messages")
    show("Claims, the server's own time", columns, rows)


if __name__ == "__main__":
    main()
