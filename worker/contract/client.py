"""Turns, conversations and batches for callers: checks the input, stores the work, wakes a worker."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import date, timedelta
from typing import Literal, Self

import msgspec

from aiforge.core.events import Event
from worker.contract import records
from worker.contract.batch.client import BatchClient
from worker.contract.batch.erasing import BatchErasure
from worker.contract.calls.budgets import BudgetStore, Rules
from worker.contract.calls.providers import Providers
from worker.contract.calls.rows import Ledgers
from worker.contract.calls.usage import Group, UsageRow, read_usage, today
from worker.contract.checks import (
    check_conversation,
    check_conversation_id,
    check_key,
    check_message,
    check_run_after,
    check_settings,
    check_turn,
)
from worker.contract.errors import Conflict, ContractError, InvalidInput, LimitExceeded, NotFound
from worker.contract.ids import is_turn_id
from worker.contract.memory.conversations import ConversationStore
from worker.contract.memory.history import HistoryStore
from worker.contract.memory.transfer import ConversationExport, check_head, packed
from worker.contract.places import Place, keyed_place, new_place
from worker.contract.readers import Reader
from worker.contract.schedule.erasing import ScheduleErasure
from worker.contract.schedule.schedules import ScheduleStore
from worker.contract.schemas import (
    Caller,
    Conversation,
    ConversationSettings,
    Erasure,
    Line,
    StoredMessage,
    Turn,
    TurnRequest,
    TurnState,
)
from worker.contract.server.connection import Connection
from worker.contract.settings import ContractSettings
from worker.contract.stats import Stats, read_stats
from worker.contract.store import TurnStore
from worker.contract.wakeups.broker import on_redis
from worker.contract.wakeups.knock import Knocker
from worker.contract.wakeups.wake import Waker


class TurnClient(BatchClient):
    """Straight to Redis. One client serves one event loop; every method raises ContractError."""

    def __init__(self, settings: ContractSettings, waker: Waker | Knocker) -> None:
        assert settings.redis_url is not None
        super().__init__(Connection(settings.redis_url), settings, waker)
        self.turns = TurnStore(self.connection, settings)
        self._budgets, self._rules = BudgetStore(self.connection, settings), Rules(settings)
        self.conversations = ConversationStore(self.connection, settings)
        self._reader = Reader(self.connection, self.turns.keys)
        self.providers = Providers(self.connection, settings.namespace)
        self._serve(self.caller)

    @classmethod
    async def connect(cls, settings: ContractSettings) -> Self:
        """Raises Unavailable when Redis does not answer."""
        client = cls(settings, Knocker(settings) if on_redis(settings.broker) else Waker(settings))
        await client.connection.command("EXISTS", client.turns.keys.workers())
        return client

    def of(self, caller: Caller) -> Self:
        """The same client for another caller; it is closed with this one."""
        bound = copy.copy(self)
        bound._serve(caller)
        return bound

    def _serve(self, caller: Caller) -> None:
        self.caller = caller
        self.history = HistoryStore(self.conversations, self._tools, caller.tenant)
        self.schedules = ScheduleStore(self.connection, self.settings, self._tools, self.files, caller)
        self.ledger = Ledgers(self.connection, self.turns.keys, caller.tenant)

    async def close(self) -> None:
        await self._reader.close()
        await self._waker.close()
        await self.conversations.close()
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def submit(
        self,
        request: TurnRequest,
        *,
        conversation_id: str | None = None,
        if_not_exists: Literal["create", "reject"] = "create",
        idempotency_key: str | None = None,
    ) -> Turn:
        """Store a turn and wake a worker when its conversation is idle.

        With the same `idempotency_key` and body, the same turn is returned, marked `replayed`. Raises
        Conflict (`conversation_busy`, `idempotency_mismatch`), NotFound, Gone, LimitExceeded or InvalidInput.
        """
        check_turn(request, self._tools)
        if conversation_id is not None:
            check_conversation_id(conversation_id)
        place = self._place(conversation_id, idempotency_key)
        await self._check_moment(place, request.run_after, keyed=idempotency_key is not None)
        digest = hashlib.sha256(records.encode(request)).hexdigest()[:32]
        answer, turn = await self.turns.submit(
            place,
            request,
            digest=digest,
            create=if_not_exists == "create" or conversation_id is None,
            keyed=idempotency_key is not None,
            api_key=self.caller.api_key,
        )
        # A repetition may be of a call whose reply was lost, and then nobody was told of the turn.
        if answer == "ready" or (answer == "replayed" and turn.state is TurnState.QUEUED):
            self._waker.wake(turn.turn_id)
        # Without a key only this very call can have stored it.
        if answer == "scheduled" and request.run_after is not None:
            await self.keep_budgets(place.conversation_id, request.run_after)
        if answer == "replayed" and idempotency_key is not None:
            return msgspec.structs.replace(turn, replayed=True)
        return turn

    async def _check_moment(self, place: Place, run_after: float | None, *, keyed: bool) -> None:
        """Raises InvalidInput or LimitExceeded for what cannot begin now; a repetition always passes."""
        budgets = self._rules.of(
            self.caller.tenant, api_key=self.caller.api_key, conversation_id=place.conversation_id
        )
        try:
            check_run_after(run_after)
            if budgets:
                await self._budgets.check(self.caller.tenant, budgets)
        except (InvalidInput, LimitExceeded):
            name = self.turns.keys.turn(place.turn_id)
            if not (keyed and await self.connection.command("EXISTS", name)):
                raise

    async def keep_budgets(self, conversation_id: str, until: float) -> None:
        """Remember what a conversation has used at least until its turn of then (Unix seconds) is over."""
        if self._rules.of_conversations:
            await self._budgets.keep(self.caller.tenant, conversation_id, until)

    async def turn(self, turn_id: str) -> Turn:
        return await self.turns.turn(_turn(turn_id), self.caller.tenant)

    async def wait(self, turn_id: str, seconds: float) -> Turn:
        """The finished turn, one that asks a human, or the turn as it is when `seconds` have passed."""
        turn = await self.turn(turn_id)
        if turn.finished:
            return turn
        await self._reader.wait(turn_id, seconds)
        return await self.turn(turn_id)

    async def last_event(self, turn_id: str) -> int:
        """The number of the turn's last event so far: no reader can have got further."""
        return await self._reader.last(_turn(turn_id), self.caller.tenant)

    def events(self, turn_id: str, *, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """Every event behind sequence number `after`, as it happens; ends after the terminal event.

        A turn that is over always yields its terminal event; what is no longer kept is named by a Gap.
        """
        return self._reader.events(_turn(turn_id), self.caller.tenant, after)

    async def keyed(self, key: str, *, conversation_id: str | None = None) -> Turn:
        """The turn that was submitted under an idempotency key; NotFound when none was."""
        place = self._place(conversation_id, key)
        try:
            return await self.turn(place.turn_id)
        except NotFound:
            where = "without a conversation" if conversation_id is None else f"to {conversation_id!r}"
            raise NotFound(f"no turn was posted {where} under the idempotency key {key!r}") from None

    async def cancel(self, turn_id: str, *, expected: TurnState | None = None) -> Turn:
        """Cancel a turn that does not run at once, a running one through its worker.

        A finished one stays as it is. Raises Conflict (`turn_changed`) unless it is in the `expected` state.
        """
        place = await self.turns.place(_turn(turn_id), self.caller.tenant)
        following = await self.turns.cancel(place, expected=expected)
        if following is not None:
            self._waker.wake(following)
        return await self.turn(turn_id)

    async def resume(self, turn_id: str, question_id: str, answer: str) -> Turn:
        """Answer what a paused turn asks. The same answer again changes nothing.

        Raises NotFound for an unknown turn or question, Conflict (`already_answered`, `not_waiting`).
        """
        check_message(answer, "answer")
        place = await self.turns.place(_turn(turn_id), self.caller.tenant)
        if await self.turns.resume(place, question_id, answer):
            self._waker.wake(turn_id)
        return await self.turn(turn_id)

    async def dead_letters(self, *, limit: int = 100) -> list[Turn]:
        """Turns that were given up because every worker that ran them died, the latest first."""
        letters = []
        for turn_id in await self.conversations.dead(self.caller.tenant, limit):
            with contextlib.suppress(NotFound):
                letters.append(await self.turn(turn_id))
        return letters

    async def dead_letter(self, turn_id: str) -> Turn:
        """One of them. Raises NotFound when the turn is none."""
        turn = await self.turn(turn_id)
        if not await self.conversations.is_dead(turn_id):
            raise _no_letter(turn_id)
        return turn

    async def requeue_dead(self, turn_id: str) -> Turn:
        """Post a dead letter's request again as a new turn of its conversation; the letter is dropped.

        A repetition gives the same new turn. Raises NotFound when there is no such letter.
        """
        place = await self.turns.place(_turn(turn_id), self.caller.tenant)
        key = f"dead:{turn_id}"
        if not await self.conversations.is_dead(turn_id):
            with contextlib.suppress(NotFound):
                return await self.keyed(key, conversation_id=place.conversation_id)
            raise _no_letter(turn_id)
        request = await self.turns.request(turn_id)
        turn = await self.submit(
            msgspec.structs.replace(request, on_busy="enqueue", run_after=None),
            conversation_id=place.conversation_id,
            idempotency_key=key,
        )
        await self.conversations.bury(turn_id)
        return turn

    async def drop_dead(self, turn_id: str) -> None:
        """Take a turn from the dead letters; it stays failed. Raises NotFound when it is none."""
        await self.turns.place(_turn(turn_id), self.caller.tenant)
        if not await self.conversations.bury(turn_id):
            raise _no_letter(turn_id)

    async def create_conversation(
        self,
        settings: ConversationSettings,
        *,
        conversation_id: str | None = None,
    ) -> Conversation:
        """Raises Conflict when the tenant has the conversation already."""
        check_conversation(settings, self._tools)
        if conversation_id is not None:
            check_conversation_id(conversation_id)
        return await self.conversations.open(
            self.caller.tenant, conversation_id or secrets.token_hex(8), settings
        )

    async def conversation(self, conversation_id: str) -> Conversation:
        check_conversation_id(conversation_id)
        return await self.conversations.get(self.caller.tenant, conversation_id)

    async def export(self, conversation_id: str) -> ConversationExport:
        """The whole conversation as one document; raises NotFound."""
        check_conversation_id(conversation_id)
        return await self.conversations.export(self.caller.tenant, conversation_id)

    async def import_conversation(self, document: ConversationExport) -> Conversation:
        """Make an exported conversation anew. Raises InvalidInput naming what is wrong, or Conflict."""
        check_conversation_id(document.conversation_id)
        check_head(document)
        check_settings(document.settings, self._tools)
        # A hundred thousand messages take half a second, in which a loop with open streams must go on.
        messages = await asyncio.to_thread(packed, document.messages, check_message)
        return await self.conversations.open(
            self.caller.tenant,
            document.conversation_id,
            document.settings,
            created_at=document.created_at,
            messages=messages,
            summary=document.summary,
        )

    async def messages(
        self, conversation_id: str, *, after: int = 0, limit: int = 100
    ) -> list[StoredMessage]:
        """Stored messages in order, without the first `after`."""
        check_conversation_id(conversation_id)
        return await self.conversations.messages(self.caller.tenant, conversation_id, after, limit)

    async def line(self, conversation_id: str) -> Line:
        """The conversation's running turn and those that wait, in order."""
        check_conversation_id(conversation_id)
        return await self.conversations.line(self.caller.tenant, conversation_id)

    async def reorder(self, conversation_id: str, seen: list[str], wanted: list[str]) -> Line:
        """Put waiting turns into another order; Conflict (`line_changed`) unless they are as `seen`."""
        check_conversation_id(conversation_id)
        if sorted(seen) != sorted(wanted) or len(set(wanted)) != len(wanted):
            raise InvalidInput("the same turns in another order, each once", param="turns")
        await self.conversations.get(self.caller.tenant, conversation_id)
        if not await self.conversations.reorder(self.caller.tenant, conversation_id, seen, wanted):
            raise Conflict("the waiting turns have changed; read the queue again", code="line_changed")
        return await self.line(conversation_id)

    async def erase(self, conversation_id: str) -> Erasure:
        """Erase a conversation, its turns, its items in batches and in those that schedules post; what runs
        leaves nothing."""
        check_conversation_id(conversation_id)
        try:
            # First the items: none is posted or handed out any more that could bring the conversation back.
            planned = await ScheduleErasure(self.batches).erase(self.caller.tenant, conversation_id)
            found = await BatchErasure(self.batches).erase(self.caller.tenant, conversation_id)
            items, turns = planned.items + found.items, planned.turns + found.turns
            return await self.conversations.erase(
                self.caller.tenant, conversation_id, items=items, item_turns=turns, files=found.files
            )
        finally:
            # Also of one that is gone by now: who erased it may have come no further.
            await self._budgets.forget(self.caller.tenant, f"conversation:{conversation_id}")

    async def usage(
        self,
        *,
        first: date | None = None,
        last: date | None = None,
        group_by: Sequence[Group] = ("model",),
    ) -> list[UsageRow]:
        """Provider calls, tokens and cost of some days (UTC, both included; the last 30 when left out)."""
        until = last or today()
        since = first or until - min(timedelta(days=29), until - date.min)
        return await read_usage(
            self.connection, self.turns.keys, self.caller.tenant, first=since, last=until, group_by=group_by
        )

    async def ready(self) -> str | None:
        """None, or one line why Redis cannot serve."""
        try:
            # A key, because a node of a cluster answers a PING also when the cluster is down.
            await self.connection.command("EXISTS", self.turns.keys.workers())
        except ContractError as error:
            return str(error)
        return None

    async def stats(self) -> Stats:
        """Figures for a metrics scrape."""
        return await read_stats(self.connection, self.turns.keys, self._waker)

    def _place(self, conversation_id: str | None, key: str | None) -> Place:
        if key is None:
            return new_place(self.caller.tenant, conversation_id or secrets.token_hex(8))
        check_key(key)
        return keyed_place(self.caller.tenant, conversation_id, key)


def _turn(identifier: str) -> str:
    if not is_turn_id(identifier):
        raise NotFound(f"turn {identifier[:64]!r} does not exist")
    return identifier


def _no_letter(turn_id: str) -> NotFound:
    return NotFound(f"turn {turn_id!r} is no dead letter")
