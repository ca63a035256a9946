"""Fires what is due: posts the template of a schedule once for each of its ticks.

A tick's turn or batch has an id that follows from the schedule and the tick, so that whoever fires it again,
because a worker died or was asleep, posts nothing new. Only then is the schedule taken on to its next tick.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import islice
from typing import Final

from worker import metrics
from worker.contract.client import TurnClient
from worker.contract.errors import ContractError, InvalidInput, Unavailable
from worker.contract.ids import keyed_batch_id
from worker.contract.schedule.erasing import ScheduleErasure
from worker.contract.schedule.schedules import Owed, fire_key
from worker.contract.schedule.schemas import Fire
from worker.contract.schedule.ticks import Timing, due
from worker.contract.schemas import TurnFailure
from worker.upkeep.contained import Contained

TOGETHER: Final = 32
"""Schedules that fire at a time."""
ROUND_SECONDS: Final = 1.0
"""After so long the rest waits for the reaper's next tick: leases that run out do not wait for schedules."""
_log = logging.getLogger(__name__)


class Schedules:
    """The part of a reaper that fires schedules."""

    def __init__(self, client: TurnClient) -> None:
        self._client = client
        self._contained = Contained()
        self._erasure = ScheduleErasure(client.batches)

    async def fire(self, schedule_ids: Sequence[str]) -> None:
        """Fire what these schedules owe; raises Unavailable, and what is left is still due then."""
        limit, waiting = time.monotonic() + ROUND_SECONDS, iter(schedule_ids)
        while (some := list(islice(waiting, TOGETHER))) and time.monotonic() < limit:
            await asyncio.gather(*(self._contained.take(schedule_id, self._fire) for schedule_id in some))

    async def _fire(self, schedule_id: str) -> None:
        owed = await self._client.schedules.owed(schedule_id)
        if owed is None:
            return
        schedule = owed.schedule
        timing = Timing(schedule.cron, schedule.timezone, schedule.ends_at)
        ticks, following = due(timing, schedule.catch_up, owed.expected, owed.now)
        steps = [*ticks, following]
        # Only the tick that a schedule stands at is fired: an erasure leaves a tombstone for its turn.
        if steps[0] != owed.expected and not await self._advance(owed, owed.expected, steps[0], None):
            return
        before = schedule.last_fire
        for tick, then in zip(ticks, steps[1:], strict=True):
            fire = await self._post(owed, tick)
            if not await self._advance(owed, tick, then, fire):
                return
            _tell(schedule.schedule_id, before, fire)
            before = fire

    async def _advance(self, owed: Owed, expected: int, following: int | None, fire: Fire | None) -> bool:
        advanced = await self._client.schedules.advance(owed, expected, following, fire)
        if fire is not None:
            outcome = "refused" if fire.error else "posted"
            metrics.FIRES.labels(outcome if advanced else "repeated").inc()
        conversation_id = owed.schedule.conversation_id
        if following is not None and conversation_id is not None:
            await self._client.of(owed.caller).keep_budgets(conversation_id, following)
        return advanced

    async def _post(self, owed: Owed, tick: int) -> Fire:
        """Post a tick's turn or batch. What is refused is not tried again: the next tick is a new one."""
        schedule, key = owed.schedule, fire_key(owed.schedule.schedule_id, tick)
        client, tenant = self._client.of(owed.caller), owed.caller.tenant
        try:
            if schedule.turn is not None:
                turn = await client.submit(
                    schedule.turn, conversation_id=schedule.conversation_id, idempotency_key=key
                )
                return Fire(tick=tick, turn_id=turn.turn_id)
            assert schedule.batch is not None
            batch_id = keyed_batch_id(tenant, key)
            batch = await client.submit_batch(schedule.batch, batch_id=batch_id)
            await self._erasure.posted(schedule.schedule_id, batch_id, tenant)
            return Fire(tick=tick, batch_id=batch.batch_id)
        except Unavailable:
            raise
        except ContractError as error:
            return Fire(tick=tick, error=TurnFailure(error.code, str(error), error.retryable))


def _tell(schedule_id: str, before: Fire | None, fire: Fire) -> None:
    """Log where a schedule begins to be refused, is refused for another reason, or is taken again."""
    if _reason(fire) == _reason(before):
        return
    if fire.error is None:
        _log.info("schedule_taken_again", extra={"schedule": schedule_id})
    else:
        _log.warning("schedule_refused", extra={"schedule": schedule_id, "reason": fire.error.code})


def _reason(fire: Fire | None) -> str | None:
    """Why a tick was refused, without the figures that change with each."""
    if fire is None or fire.error is None:
        return None
    return fire.error.message if fire.error.code == InvalidInput.code else fire.error.code
