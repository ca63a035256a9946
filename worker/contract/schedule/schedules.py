"""The one door to schedules in Redis: made, changed, read, and taken on from tick to tick."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from typing import Any, Final, NamedTuple

import msgspec

from worker.contract import records
from worker.contract.batch.files import FileStore
from worker.contract.checks import check_batch, check_conversation_id, check_key, check_turn
from worker.contract.errors import Conflict, Gone, InvalidInput, KeyReused, NotFound
from worker.contract.ids import SHARDS, is_schedule_id, schedule_id_of
from worker.contract.index import Index, Position
from worker.contract.keys import Keys
from worker.contract.memory.conversations import GONE_MS
from worker.contract.places import keyed_place
from worker.contract.schedule.schemas import (
    MOST_OF_A_CONVERSATION,
    SCHEDULE_VERSION,
    Fire,
    Schedule,
    ScheduleChange,
    ScheduleRequest,
    Terms,
)
from worker.contract.schedule.ticks import Timing, check_timing, first_tick
from worker.contract.schemas import (
    BATCH_VERSION,
    CONVERSATION_VERSION,
    DEFAULT_MEMORY_K,
    TURN_VERSION,
    BatchRequest,
    Caller,
    TurnRequest,
)
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings

EARLIEST_START: Final = 366 * 86_400
LATEST_START: Final = 10 * 366 * 86_400
"""Seconds before and after now that a schedule's start may lie."""
_ROUNDS: Final = 10
"""How often a change is tried anew because others change the same schedule."""
_LISTED: Final = (
    "tenant", "terms", "cron", "timezone", "conversation_id", "paused", "created_at", "next_ms", "last_fire",
)  # fmt: skip
"""A record without its template, which may be long."""


class Owed(NamedTuple):
    """A schedule that is due, with its template, and the time of the store that says so."""

    schedule: Schedule
    caller: Caller
    """Who made it."""
    expected: int
    """The tick that it stands at, Unix seconds."""
    now: float


class ScheduleStore:
    """Typed access to schedules; safe to share within one event loop."""

    def __init__(
        self,
        connection: Connection,
        settings: ContractSettings,
        tools: frozenset[str],
        files: FileStore,
        caller: Caller,
    ) -> None:
        self.connection = connection
        self._files = files
        self._caller = caller
        self.keys = Keys(settings.namespace)
        self._index = Index(connection)
        self._lives_ms = int(settings.conversation_ttl_seconds * 1000)
        self._tools = tools

    async def open(self, request: ScheduleRequest, *, idempotency_key: str | None = None) -> Schedule:
        """Make a schedule, and its conversation if there is none.

        With the same `idempotency_key` and body the same one is returned, marked `replayed`. Raises
        InvalidInput, Conflict (`idempotency_mismatch`, `too_many_schedules`) or Gone.
        """
        check_schedule(request, self._tools)
        conversation = request.conversation_id
        schedule_id = schedule_id_of(
            self._caller.tenant, conversation, _digits(self._caller.tenant, conversation, idempotency_key)
        )
        now, known = await self._read(schedule_id)
        # What was accepted before may be over by now.
        tick = None if known else _first(request, now)
        if not known:
            await self._check_input(request.batch)
        arguments: list[Argument] = [
            schedule_id, hashlib.sha256(records.encode(request)).hexdigest()[:32], int(request.paused),
            *_upcoming(schedule_id, self._caller.tenant, conversation, None if request.paused else tick),
            MOST_OF_A_CONVERSATION, conversation or "", CONVERSATION_VERSION, DEFAULT_MEMORY_K,
            self._lives_ms, *_fields(request, self._caller),
        ]  # fmt: skip
        answer, *_ = await self._run(
            "schedule_open", schedule_id, self._caller.tenant, conversation, arguments
        )
        match records.text(answer):
            case "made" | "replayed" as how:
                made = await self.get(schedule_id)
                replayed = how == "replayed" and idempotency_key is not None
                return msgspec.structs.replace(made, replayed=replayed)
            case "mismatch":
                raise KeyReused
            case "full":
                raise Conflict(
                    f"conversation {conversation!r} has {MOST_OF_A_CONVERSATION} schedules already",
                    code="too_many_schedules",
                )
            case _:
                raise Gone(f"schedule {schedule_id!r} was deleted")

    async def get(self, schedule_id: str) -> Schedule:
        """Raises NotFound when the tenant has no such schedule."""
        _, record = await self._of(schedule_id)
        return _schedule(schedule_id, record)

    async def page(
        self,
        *,
        conversation_id: str | None = None,
        before: Position | None = None,
        limit: int = 100,
    ) -> list[tuple[int, Schedule]]:
        """Schedules without their templates, the newest first, with when they were made (Unix milliseconds).

        `before` is time and id of the last one of the page before.
        """
        names = [self.keys.schedules(self._caller.tenant, shard) for shard in range(SHARDS)]
        if conversation_id is not None:
            check_conversation_id(conversation_id)
            names = [self.keys.planned(self._caller.tenant, conversation_id)]
        kept: list[tuple[int, Schedule]] = []
        while found := await self._index.page(names, before, limit - len(kept)):
            rows = await self.connection.commands(
                [("HMGET", self.keys.schedule(name), *_LISTED) for _, name in found]
            )
            kept += [
                (when, _schedule(name, _known(zip(_LISTED, row, strict=True))))
                for (when, name), row in zip(found, rows, strict=True)
                if row[0] is not None
            ]
            # Of those that are deleted between the two steps others take the place: a short page is the last.
            if all(row[0] is not None for row in rows):
                break
            before = found[-1]
        return kept

    async def change(self, schedule_id: str, change: ScheduleChange) -> Schedule:
        """Pause, resume, or fire at other times. Ticks that pass while it is paused are left out.

        Raises NotFound, InvalidInput, or Conflict (`newer_version`, `schedule_changed`).
        """
        if change == ScheduleChange():
            raise InvalidInput("nothing is to be changed: say cron, timezone or paused", param="cron")
        for _ in range(_ROUNDS):
            now, record = await self._of(schedule_id)
            if not _is_ours(record):
                raise Conflict(f"schedule {schedule_id!r} is of a newer version", code="newer_version")
            known = _schedule(schedule_id, record)
            timing = Timing(
                known.cron if change.cron is None else change.cron,
                known.timezone if change.timezone is None else change.timezone,
                known.ends_at,
            )
            paused = known.paused if change.paused is None else change.paused
            check_timing(timing)
            if (timing.cron, timing.timezone, paused) == (known.cron, known.timezone, known.paused):
                return known
            if not paused:
                await self._check_input(known.batch)
            after = now if known.starts_at is None else max(now, math.ceil(known.starts_at) - 1)
            tick = None if paused else first_tick(timing, after)
            arguments: list[Argument] = [
                schedule_id, record["revision"], timing.cron, timing.timezone, int(paused),
                *_upcoming(schedule_id, self._caller.tenant, known.conversation_id, tick),
            ]  # fmt: skip
            await self._run(
                "schedule_change", schedule_id, self._caller.tenant, known.conversation_id, arguments
            )
        raise Conflict(f"schedule {schedule_id!r} is being changed by others", code="schedule_changed")

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule; turns and batches that it has posted stay. Raises NotFound."""
        _, record = await self._of(schedule_id)
        conversation = records.text(record["conversation_id"]) or None
        await self._run(
            "schedule_delete", schedule_id, self._caller.tenant, conversation, [schedule_id, GONE_MS]
        )

    async def owed(self, schedule_id: str) -> Owed | None:
        """A schedule whose time has come; None when it has not, and for one of a newer version."""
        now, record = await self._read(schedule_id)
        if not record or not _is_ours(record) or not record["next_ms"] or int(record["next_ms"]) > now * 1000:
            return None
        schedule = _schedule(schedule_id, record)
        assert schedule.next_at is not None
        return Owed(schedule, _caller(record), schedule.next_at, now)

    async def advance(self, owed: Owed, expected: int, following: int | None, fire: Fire | None) -> bool:
        """Take a schedule on from a tick to the following one; False when somebody else has done so."""
        schedule_id, conversation = owed.schedule.schedule_id, owed.schedule.conversation_id
        tenant = owed.caller.tenant
        arguments: list[Argument] = [
            schedule_id, expected * 1000, *_upcoming(schedule_id, tenant, conversation, following),
            secrets.token_hex(8), "" if fire is None else fire.tick * 1000,
            "" if fire is None else records.encode(fire),
        ]  # fmt: skip
        return bool(await self._run("schedule_advance", schedule_id, tenant, conversation, arguments))

    async def _check_input(self, batch: BatchRequest | None) -> None:
        """Raises InvalidInput when a batch is to be made of a file that is not there."""
        if batch is not None and batch.input_file_id is not None:
            try:
                await self._files.check_input(batch.input_file_id, self._caller.tenant)
            except InvalidInput as error:
                raise InvalidInput(f"batch.{error}", param=f"batch.{error.param}") from None

    async def _run(
        self, script: str, schedule_id: str, tenant: str, conversation: str | None, arguments: list[Argument]
    ) -> Any:
        keys = self.keys.of_schedule(schedule_id, tenant, conversation)
        return await self.connection.run(script, keys, arguments)

    async def _read(self, schedule_id: str) -> tuple[float, dict[str, bytes]]:
        """The store's time in Unix seconds, and a schedule's record, which may be empty."""
        now, *flat = await self.connection.run("schedule_read", [self.keys.schedule(schedule_id)], [])
        return int(now) / 1000, records.fields(flat)

    async def _of(self, schedule_id: str) -> tuple[float, dict[str, bytes]]:
        if is_schedule_id(schedule_id):
            now, record = await self._read(schedule_id)
            if record.get("tenant") == self._caller.tenant.encode():
                return now, record
        raise NotFound(f"schedule {schedule_id[:64]!r} does not exist")


def check_schedule(request: ScheduleRequest, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field that is wrong."""
    if (request.turn is None) == (request.batch is None):
        raise InvalidInput("a schedule posts either a turn or a batch: say one of them", param="turn")
    if request.conversation_id is not None:
        if request.batch is not None:
            raise InvalidInput("a batch belongs to no conversation", param="conversation_id")
        check_conversation_id(request.conversation_id)
    check_timing(Timing(request.cron, request.timezone))
    _check_times(request)
    template = "turn" if request.batch is None else "batch"
    try:
        if request.turn is not None:
            if request.turn.run_after is not None:
                raise InvalidInput("run_after: a schedule's turns run when it says", param="run_after")
            check_turn(request.turn, tools)
        if request.batch is not None:
            check_batch(request.batch, tools)
    except InvalidInput as error:
        raise InvalidInput(f"{template}: {error}", param=f"{template}.{error.param}") from None


def _check_times(request: ScheduleRequest) -> None:
    now = time.time()
    for name, value in (("starts_at", request.starts_at), ("ends_at", request.ends_at)):
        if value is not None and not now - EARLIEST_START < value < now + LATEST_START:
            raise InvalidInput(
                f"{name} must be a time of the past 366 days or the next ten years, in Unix seconds",
                param=name,
            )
    if request.starts_at is not None and request.ends_at is not None and request.ends_at < request.starts_at:
        raise InvalidInput("ends_at lies before starts_at", param="ends_at")


def _first(request: ScheduleRequest, now: float) -> int:
    """The first tick of a schedule that is made now; raises InvalidInput when there is none."""
    timing = Timing(request.cron, request.timezone, request.ends_at)
    tick = first_tick(timing, now if request.starts_at is None else math.ceil(request.starts_at) - 1)
    if tick is not None:
        return tick
    if request.ends_at is not None:
        raise InvalidInput("there is no tick before ends_at", param="ends_at")
    raise InvalidInput("cron: this expression never comes due", param="cron")


def fire_key(schedule_id: str, tick: int) -> str:
    """What the ids of a tick's turn or batch follow from, so that a repeated fire meets the same one."""
    return f"{schedule_id}.{tick}"


def _upcoming(schedule_id: str, tenant: str, conversation: str | None, tick: int | None) -> list[Argument]:
    """The next tick as the scripts take it, with the turn that a conversation gets then."""
    if tick is None:
        return ["", ""]
    if conversation is None:
        return [tick * 1000, ""]
    return [tick * 1000, keyed_place(tenant, conversation, fire_key(schedule_id, tick)).turn_id]


def _digits(tenant: str, conversation: str | None, key: str | None) -> str:
    if key is None:
        return secrets.token_hex(10)
    check_key(key)
    named = "\x00".join(("schedule", tenant, conversation or "", key))
    return hashlib.sha256(named.encode()).hexdigest()[:20]


def _fields(request: ScheduleRequest, caller: Caller) -> list[Argument]:
    """A new record, but for what its script adds."""
    template = request.turn or request.batch
    terms = Terms(
        kind="turn" if request.turn is not None else "batch", catch_up=request.catch_up,
        starts_at=request.starts_at, ends_at=request.ends_at, metadata=request.metadata,
    )  # fmt: skip
    fields: dict[str, Argument] = {
        "version": SCHEDULE_VERSION,
        "template_version": TURN_VERSION if request.turn is not None else BATCH_VERSION,
        "tenant": caller.tenant,
        "terms": records.encode(terms),
        "template": records.encode(template),
        "cron": request.cron,
        "timezone": request.timezone,
    }
    if caller.api_key is not None:
        fields["api_key"] = caller.api_key
    return [part for name, value in fields.items() for part in (name, value)]


def _is_ours(record: dict[str, bytes]) -> bool:
    """Whether this version understands a schedule, and its template."""
    if int(record["version"]) > SCHEDULE_VERSION:
        return False
    kind = msgspec.json.decode(record["terms"], type=Terms).kind
    return int(record["template_version"]) <= (TURN_VERSION if kind == "turn" else BATCH_VERSION)


def _caller(record: dict[str, bytes]) -> Caller:
    return Caller(records.text(record["tenant"]), records.text(record.get("api_key")) or None)


def _known(fields: Any) -> dict[str, bytes]:
    return {name: value for name, value in fields if value is not None}


def _schedule(schedule_id: str, record: dict[str, bytes]) -> Schedule:
    terms = msgspec.json.decode(record["terms"], type=Terms)
    shown = "template" in record and _is_ours(record)
    last_fire = record.get("last_fire")
    return Schedule(
        schedule_id=schedule_id,
        cron=records.text(record["cron"]),
        timezone=records.text(record["timezone"]),
        conversation_id=records.text(record["conversation_id"]) or None,
        kind=terms.kind,
        turn=_template(record, TurnRequest) if shown and terms.kind == "turn" else None,
        batch=_template(record, BatchRequest) if shown and terms.kind == "batch" else None,
        catch_up=terms.catch_up,
        starts_at=terms.starts_at,
        ends_at=terms.ends_at,
        paused=record["paused"] == b"1",
        metadata=terms.metadata,
        created_at=int(record["created_at"]) / 1000,
        next_at=int(record["next_ms"]) // 1000 if record["next_ms"] else None,
        last_fire=None if last_fire is None else msgspec.json.decode(last_fire, type=Fire),
    )


def _template(record: dict[str, bytes], kind: type[Any]) -> Any:
    return msgspec.json.decode(record["template"], type=kind)
