"""The turns that items of batches are: which these are, and how they wait for room in a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from aiforge.core.types import ProviderCall
from worker.contract import records
from worker.contract.batch.batches import SOON_MS
from worker.contract.claims import Claim
from worker.contract.places import Place, keyed_place
from worker.contract.schemas import BatchState, Stop
from worker.contract.server.link import Argument
from worker.contract.store import TurnStore
from worker.contract.upkeep import WAKE_MS


def item_place(tenant: str, conversation_id: str, batch_id: str, index: int, retried: int) -> Place:
    """The turn that an item of a batch is; each time it is run again it is another one."""
    return keyed_place(tenant, conversation_id, f"{batch_id}.{index}.{retried}")


async def postpone(
    store: TurnStore, claim: Claim, seconds: float, *, calls: Sequence[ProviderCall]
) -> tuple[Literal["ok", "refused"] | Stop, str | None]:
    """Let a running turn leave its conversation's line for `seconds`; the conversation's next turn.

    A Stop says that someone wants it to end instead.
    """
    waits_ms = max(SOON_MS, math.ceil(seconds * 1000))
    arguments: list[Argument] = [claim.place.turn_id, claim.fence, waits_ms, WAKE_MS, len(calls)]
    answer, following = await store.connection.run(
        "postpone", store.keys.of_turn(*claim.place), [*arguments, *records.settled(calls)]
    )
    return answer.decode(), following.decode() or None


async def goes_on(store: TurnStore, batch_id: str) -> bool:
    """Whether a batch still wants the answers of items that have not begun."""
    state = await store.connection.command("HGET", store.keys.batch(batch_id), "state")
    return records.text(state) == BatchState.IN_PROGRESS


async def seconds_until(store: TurnStore, moment: float) -> float:
    """From now to a moment in Unix seconds, by Redis's clock."""
    now, _ = await store.connection.command("TIME")
    return max(0.0, moment - int(now))
