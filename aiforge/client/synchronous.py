"""The client for plain code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Literal, Unpack

from aiforge.client import calls, history, ledger_calls, provider_calls, schedule_calls
from aiforge.client.batch_methods import BatchMethods
from aiforge.client.ledger_calls import LedgerRow
from aiforge.client.options import (
    ConversationChanges,
    ConversationOptions,
    Group,
    Options,
    ScheduledOptions,
    ScheduleOptions,
    State,
    TurnOptions,
)
from aiforge.client.provider_calls import ModelHealth
from aiforge.client.results import (
    Content,
    Conversation,
    Diff,
    Erasure,
    Export,
    Item,
    Message,
    Queue,
    Schedule,
    Turn,
    UsageReport,
    Version,
)
from aiforge.client.retry import waits
from aiforge.client.stream import Reading
from aiforge.core.events import Event


class Client(BatchMethods):
    """Speaks to the service at `base_url`; every method raises ClientError. Close it, or use `with`."""

    def submit(
        self,
        message: Content,
        *,
        conversation_id: str | None = None,
        if_not_exists: str | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
        on_disconnect: Literal["continue", "cancel"] | None = None,
        **options: Unpack[TurnOptions],
    ) -> Turn:
        """Store a turn and return it; with `wait`, finished if it is so within that many seconds.

        With `on_disconnect="cancel"` a turn that is waited for ends when this connection does.
        """
        return self._send(
            calls.submit(
                message,
                conversation_id=conversation_id,
                if_not_exists=if_not_exists,
                idempotency_key=idempotency_key,
                wait=wait,
                on_disconnect=on_disconnect,
                fields=options,
            )
        )

    def turn(self, turn_id: str) -> Turn:
        return self._send(calls.turn(turn_id))

    def find_turn(self, idempotency_key: str, *, conversation_id: str | None = None) -> Turn:
        """The turn that was submitted under a key, to that conversation if one was named."""
        return self._send(calls.find_turn(idempotency_key, conversation_id))

    def wait(self, turn_id: str, seconds: float) -> Turn:
        """The finished turn, one that asks a human, or the turn as it is when the time is over."""
        for part in waits(seconds):
            turn = self._send(calls.turn(turn_id, part))
            if turn.finished or turn.question is not None:
                break
        return turn

    def stream(self, turn_id: str, *, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Events with their numbers, from `after` on to the end; a broken connection is resumed.

        A question to a human that nobody has answered ends it, too. After `resume`, go on from that
        event's number.
        """
        yield from self._events(Reading(turn_id, after, self.base_url))

    def cancel(self, turn_id: str, *, if_state: State | None = None) -> Turn:
        """Cancel a turn; one that runs ends shortly. ConflictError unless it is in that state."""
        return self._send(calls.cancel(turn_id, if_state))

    def resume(self, turn_id: str, question_id: str, answer: str) -> Turn:
        """Answer what a turn asks; `approved` or `yes` lets a tool call run.

        The same answer again changes nothing, another one is a ConflictError.
        """
        return self._send(calls.resume(turn_id, question_id, answer))

    def dead_letters(self, *, limit: int = 100) -> list[Turn]:
        """Turns that were given up because every worker that ran them died, the latest first."""
        return (self._send(calls.dead_letters(limit))).data

    def requeue_dead(self, turn_id: str) -> Turn:
        """Post a dead letter again; the new turn."""
        return self._send(calls.requeue_dead(turn_id))

    def drop_dead(self, turn_id: str) -> None:
        """Take a turn from the dead letters; it stays failed."""
        self._send(calls.drop_dead(turn_id))

    def create_conversation(
        self, conversation_id: str | None = None, **options: Unpack[ConversationOptions]
    ) -> Conversation:
        return self._send(calls.create_conversation(conversation_id, options))

    def conversation(self, conversation_id: str) -> Conversation:
        return self._send(calls.conversation(conversation_id))

    def conversations(
        self, *, busy: bool | None = None, metadata: Mapping[str, str] | None = None
    ) -> Iterator[Conversation]:
        """All conversations, by their latest turn, the newest first.

        Only those that are busy, or not, and have these notes among their metadata, if that is asked for.
        """
        before: str | None = None
        while True:
            page = self._send(calls.conversations(before, busy, metadata))
            yield from page.data
            if page.next is None:
                break
            before = page.next

    def change_conversation(
        self,
        conversation_id: str,
        *,
        if_revision: int | None = None,
        **changes: Unpack[ConversationChanges],
    ) -> Conversation:
        """Change settings; what is left out stays. ConflictError unless they are at `if_revision`."""
        return self._send(history.change(conversation_id, changes, if_revision))

    def versions(self, conversation_id: str, *, after: int = 0) -> Iterator[Version]:
        """The versions that are kept behind number `after`, oldest first."""
        more = True
        while more:
            page = self._send(history.versions(conversation_id, after))
            yield from page.data
            more = page.has_more
            after = page.data[-1].version if page.data else after

    def checkout(self, conversation_id: str, version: int, *, if_version: int | None = None) -> Conversation:
        """Make a conversation again what it was at a version; what came after can be checked out again.

        ConflictError while a turn runs or waits, or unless `if_version` is the latest version.
        """
        return self._send(history.checkout(conversation_id, version, if_version))

    def branch(
        self,
        conversation_id: str,
        *,
        version: int | None = None,
        new_id: str | None = None,
        **changes: Unpack[ConversationChanges],
    ) -> Conversation:
        """A new conversation that begins as this one is at a version, with its settings but for `changes`."""
        return self._send(history.branch(conversation_id, version, new_id, changes))

    def diff(self, conversation_id: str, old: int, new: int) -> Diff:
        """The messages that version `new` lacks and has, compared with `old`."""
        return self._send(history.diff(conversation_id, old, new))

    def compact(
        self, conversation_id: str, *, version: int | None = None, keep: int | None = None
    ) -> Conversation:
        """Fold all versions up to this one into one, or all but the latest `keep`; messages stay."""
        return self._send(history.compact(conversation_id, version, keep))

    def queue(self, conversation_id: str) -> Queue:
        """The conversation's running turn and those that wait, in order."""
        return self._send(calls.queue(conversation_id))

    def reorder(self, conversation_id: str, expected: Sequence[str], turns: Sequence[str]) -> Queue:
        """Put waiting turns into another order; ConflictError unless they wait as `expected`."""
        return self._send(calls.reorder(conversation_id, expected, turns))

    def erase(self, conversation_id: str) -> Erasure:
        """Erase a conversation and all its turns."""
        return self._send(calls.erase(conversation_id))

    def export(self, conversation_id: str) -> Export:
        """The whole conversation as one document."""
        return self._send(calls.export(conversation_id))

    def import_conversation(self, document: Export, *, conversation_id: str | None = None) -> Conversation:
        """Make an exported conversation anew, under another id if one is given."""
        return self._send(calls.import_conversation(document, conversation_id))

    def usage(
        self, *, group_by: Sequence[Group] = (), first: date | None = None, last: date | None = None
    ) -> UsageReport:
        """Provider calls, tokens and cost of some days (UTC, both included), by model if by nothing else."""
        return self._send(calls.usage(group_by, first, last))

    def ledger(
        self,
        *,
        turn_id: str | None = None,
        batch_id: str | None = None,
        conversation_id: str | None = None,
        first: date | None = None,
        last: date | None = None,
    ) -> Iterator[LedgerRow]:
        """Provider calls of a turn, a batch or a conversation, the oldest first; without one of these all
        there are, turn by turn. `first` and `last` are days (UTC, both included)."""
        after: str | None = None
        while True:
            page = self._send(
                ledger_calls.page(
                    turn_id=turn_id,
                    batch_id=batch_id,
                    conversation_id=conversation_id,
                    first=first,
                    last=last,
                    after=after,
                )
            )
            yield from page.data
            if page.next is None:
                break
            after = page.next

    def providers(self) -> list[ModelHealth]:
        """How the models fare that were limited or not well within the last hour, by name."""
        return (self._send(provider_calls.providers())).data

    def reset_provider(self, name: str) -> None:
        """Close a model's circuit and end its cool-down; NotFoundError when nothing is known of it."""
        self._send(provider_calls.reset(name))

    def history(self, conversation_id: str, *, after: int = 0) -> Iterator[Message]:
        """The stored messages from number `after` on, oldest first."""
        more = True
        while more:
            page = self._send(calls.messages(conversation_id, after, calls.PAGE_MESSAGES))
            yield from page.data
            after, more = after + len(page.data), page.has_more

    def schedule_turn(
        self,
        cron: str,
        message: Content,
        *,
        idempotency_key: str | None = None,
        turn: ScheduledOptions | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Post a turn whenever the expression says so; `turn` is what it says beside its message."""
        template = {"message": message, **(turn or {})}
        return self._send(schedule_calls.make(cron, "turn", template, options, idempotency_key))

    def schedule_batch(
        self,
        cron: str,
        items: Iterable[str | Item],
        *,
        idempotency_key: str | None = None,
        batch: Options | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Post a batch whenever the expression says so; `batch` is what holds for all its items."""
        template = {"items": list(items), **(batch or {})}
        return self._send(schedule_calls.make(cron, "batch", template, options, idempotency_key))

    def schedule(self, schedule_id: str) -> Schedule:
        return self._send(schedule_calls.read(schedule_id))

    def schedules(self, *, conversation_id: str | None = None) -> Iterator[Schedule]:
        """All schedules, or those that post to one conversation, the newest first."""
        before: str | None = None
        while True:
            page = self._send(schedule_calls.page(conversation_id, before))
            yield from page.data
            if page.next is None:
                break
            before = page.next

    def change_schedule(
        self,
        schedule_id: str,
        *,
        cron: str | None = None,
        timezone: str | None = None,
        paused: bool | None = None,
    ) -> Schedule:
        """Pause or resume a schedule, or let it fire at other times."""
        return self._send(schedule_calls.change(schedule_id, cron, timezone, paused))

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule; what it has posted stays."""
        self._send(schedule_calls.delete(schedule_id))

    def ready(self) -> None:
        """Raises ServerError saying why the service cannot serve, or UnreachableError."""
        self._send(calls.ready())
