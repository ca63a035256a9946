"""The client for asyncio; the same methods as `Client`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Literal, Unpack

from aiforge.client import (
    batch_calls,
    conversation_calls,
    file_calls,
    schedule_calls,
    service_calls,
    turn_calls,
)
from aiforge.client.options import (
    BatchOptions,
    ConversationChanges,
    ConversationOptions,
    FileOptions,
    Group,
    Options,
    ScheduledOptions,
    ScheduleOptions,
    State,
    TurnOptions,
)
from aiforge.client.results import (
    Batch,
    Content,
    Conversation,
    Diff,
    Erasure,
    Export,
    File,
    Item,
    LedgerRow,
    Message,
    ModelHealth,
    Queue,
    Row,
    Schedule,
    Turn,
    UsageReport,
    Version,
)
from aiforge.client.retry import waits
from aiforge.client.sender import AsyncSender
from aiforge.client.stream import BatchReading, Reading
from aiforge.core.events import Event


class AsyncClient(AsyncSender):
    """Speaks to the service at `base_url`; every method raises ClientError. Close it, or use `async with`."""

    async def submit(
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
        return await self._send(
            turn_calls.submit(
                message,
                conversation_id=conversation_id,
                if_not_exists=if_not_exists,
                idempotency_key=idempotency_key,
                wait=wait,
                on_disconnect=on_disconnect,
                fields=options,
            )
        )

    async def turn(self, turn_id: str) -> Turn:
        return await self._send(turn_calls.turn(turn_id))

    async def find_turn(self, idempotency_key: str, *, conversation_id: str | None = None) -> Turn:
        """The turn that was submitted under a key, to that conversation if one was named."""
        return await self._send(turn_calls.find(idempotency_key, conversation_id))

    async def wait(self, turn_id: str, seconds: float) -> Turn:
        """The finished turn, one that asks a human, or the turn as it is when the time is over."""
        for part in waits(seconds):
            turn = await self._send(turn_calls.turn(turn_id, part))
            if turn.finished or turn.question is not None:
                break
        return turn

    def stream(self, turn_id: str, *, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """Events with their numbers, from `after` on to the end; a broken connection is resumed.

        A question to a human that nobody has answered ends it, too. After `resume`, go on from that
        event's number.
        """
        return self._events(Reading(turn_id, after, self.base_url))

    async def cancel(self, turn_id: str, *, if_state: State | None = None) -> Turn:
        """Cancel a turn; one that runs ends shortly. ConflictError unless it is in that state."""
        return await self._send(turn_calls.cancel(turn_id, if_state))

    async def resume(self, turn_id: str, question_id: str, answer: str) -> Turn:
        """Answer what a turn asks; `approved` or `yes` lets a tool call run.

        The same answer again changes nothing, another one is a ConflictError.
        """
        return await self._send(turn_calls.resume(turn_id, question_id, answer))

    async def dead_letters(self, *, limit: int = 100) -> list[Turn]:
        """Turns that were given up because every worker that ran them died, the latest first."""
        return (await self._send(turn_calls.dead_letters(limit))).data

    async def dead_letter(self, turn_id: str) -> Turn:
        """One of them."""
        return await self._send(turn_calls.dead_letter(turn_id))

    async def requeue_dead(self, turn_id: str) -> Turn:
        """Post a dead letter again; the new turn."""
        return await self._send(turn_calls.requeue_dead(turn_id))

    async def drop_dead(self, turn_id: str) -> None:
        """Take a turn from the dead letters; it stays failed."""
        await self._send(turn_calls.drop_dead(turn_id))

    async def create_conversation(
        self, conversation_id: str | None = None, **options: Unpack[ConversationOptions]
    ) -> Conversation:
        return await self._send(conversation_calls.create(conversation_id, options))

    async def conversation(self, conversation_id: str) -> Conversation:
        return await self._send(conversation_calls.read(conversation_id))

    def conversations(
        self, *, busy: bool | None = None, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[Conversation]:
        """All conversations, by their latest turn, the newest first.

        Only those that are busy, or not, and have these notes among their metadata, if that is asked for.
        """
        return self._all(conversation_calls.latest(busy, metadata))

    async def change_conversation(
        self,
        conversation_id: str,
        *,
        if_revision: int | None = None,
        **changes: Unpack[ConversationChanges],
    ) -> Conversation:
        """Change settings; what is left out stays. ConflictError unless they are at `if_revision`."""
        return await self._send(conversation_calls.change(conversation_id, changes, if_revision))

    def versions(self, conversation_id: str, *, after: int = 0) -> AsyncIterator[Version]:
        """The versions that are kept behind number `after`, oldest first."""
        return self._all(conversation_calls.versions(conversation_id, after))

    async def checkout(
        self, conversation_id: str, version: int, *, if_version: int | None = None
    ) -> Conversation:
        """Make a conversation again what it was at a version; what came after can be checked out again.

        ConflictError while a turn runs or waits, or unless `if_version` is the latest version.
        """
        return await self._send(conversation_calls.checkout(conversation_id, version, if_version))

    async def branch(
        self,
        conversation_id: str,
        *,
        version: int | None = None,
        new_id: str | None = None,
        **changes: Unpack[ConversationChanges],
    ) -> Conversation:
        """A new conversation that begins as this one is at a version, with its settings but for `changes`."""
        return await self._send(conversation_calls.branch(conversation_id, version, new_id, changes))

    async def diff(self, conversation_id: str, old: int, new: int) -> Diff:
        """The messages that version `new` lacks and has, compared with `old`."""
        return await self._send(conversation_calls.diff(conversation_id, old, new))

    async def compact(
        self, conversation_id: str, *, version: int | None = None, keep: int | None = None
    ) -> Conversation:
        """Fold all versions up to this one into one, or all but the latest `keep`; messages stay."""
        return await self._send(conversation_calls.compact(conversation_id, version, keep))

    async def queue(self, conversation_id: str) -> Queue:
        """The conversation's running turn and those that wait, in order."""
        return await self._send(conversation_calls.queue(conversation_id))

    async def reorder(self, conversation_id: str, expected: Sequence[str], turns: Sequence[str]) -> Queue:
        """Put waiting turns into another order; ConflictError unless they wait as `expected`."""
        return await self._send(conversation_calls.reorder(conversation_id, expected, turns))

    async def erase(self, conversation_id: str) -> Erasure:
        """Erase a conversation and all its turns."""
        return await self._send(conversation_calls.erase(conversation_id))

    async def export(self, conversation_id: str) -> Export:
        """The whole conversation as one document."""
        return await self._send(conversation_calls.export(conversation_id))

    async def import_conversation(
        self, document: Export, *, conversation_id: str | None = None
    ) -> Conversation:
        """Make an exported conversation anew, under another id if one is given."""
        return await self._send(conversation_calls.import_document(document, conversation_id))

    async def usage(
        self, *, group_by: Sequence[Group] = (), first: date | None = None, last: date | None = None
    ) -> UsageReport:
        """Provider calls, tokens and cost of some days (UTC, both included), by model if by nothing else."""
        return await self._send(service_calls.usage(group_by, first, last))

    def ledger(
        self,
        *,
        turn_id: str | None = None,
        batch_id: str | None = None,
        conversation_id: str | None = None,
        first: date | None = None,
        last: date | None = None,
    ) -> AsyncIterator[LedgerRow]:
        """Provider calls of a turn, a batch or a conversation, the oldest first; without one of these all
        there are, turn by turn. `first` and `last` are days (UTC, both included)."""
        return self._all(
            service_calls.ledger(
                turn_id=turn_id, batch_id=batch_id, conversation_id=conversation_id, first=first, last=last
            )
        )

    async def providers(self) -> list[ModelHealth]:
        """How the models fare that were limited or not well within the last hour, by name."""
        return (await self._send(service_calls.providers())).data

    async def reset_provider(self, name: str) -> None:
        """Close a model's circuit and end its cool-down; NotFoundError when nothing is known of it."""
        await self._send(service_calls.reset_provider(name))

    def history(self, conversation_id: str, *, after: int = 0) -> AsyncIterator[Message]:
        """The stored messages from number `after` on, oldest first."""
        return self._all(conversation_calls.messages(conversation_id, after))

    async def submit_batch(
        self,
        items: Iterable[str | Item],
        *,
        idempotency_key: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        return await self._send(batch_calls.submit(items, options, idempotency_key))

    async def submit_batch_file(
        self,
        input_file_id: str,
        *,
        endpoint: str = "/v1/chat/completions",
        completion_window: str = "24h",
        idempotency_key: str | None = None,
        **options: Unpack[FileOptions],
    ) -> Batch:
        """Run the requests of a file, one a line; its results are files, too."""
        return await self._send(
            batch_calls.submit_file(input_file_id, endpoint, completion_window, options, idempotency_key)
        )

    def batches(self) -> AsyncIterator[Batch]:
        """All batches, the newest first."""
        return self._all(batch_calls.latest())

    async def batch(self, batch_id: str) -> Batch:
        return await self._send(batch_calls.read(batch_id))

    def results(self, batch_id: str, *, after: int = 0) -> AsyncIterator[Row]:
        """Rows in input order from index `after` on, up to the first unfinished one while the batch runs."""
        return self._all(batch_calls.results(batch_id, after))

    def batch_events(self, batch_id: str, *, after: int = 0) -> AsyncIterator[tuple[int, Row | Batch]]:
        """Rows as they come, numbered in that order and without the first `after`, and the batch whenever
        its counts have changed; the last one is the batch that is over. A broken connection is resumed."""
        return self._events(BatchReading(batch_id, after, self.base_url))

    async def cancel_batch(self, batch_id: str) -> Batch:
        return await self._send(batch_calls.steer(batch_id, "cancel"))

    async def pause_batch(self, batch_id: str) -> Batch:
        """Let no further item begin; ConflictError unless it is in progress."""
        return await self._send(batch_calls.steer(batch_id, "pause"))

    async def resume_batch(self, batch_id: str) -> Batch:
        """Let a paused batch go on."""
        return await self._send(batch_calls.steer(batch_id, "resume"))

    async def retry_batch(self, batch_id: str) -> Batch:
        """Run again what has failed or was never run; ConflictError while it runs, or when nothing has."""
        return await self._send(batch_calls.steer(batch_id, "retry"))

    async def delete_batch(self, batch_id: str) -> None:
        """Forget a batch that is over; its files stay."""
        await self._send(batch_calls.delete(batch_id))

    async def forget_answers(self) -> int:
        """Erase the answers that are kept for later batches; how many there were."""
        return await self._send(batch_calls.forget_answers())

    async def upload(
        self, path: str | PathLike[str], *, filename: str | None = None, expires_after: int | None = None
    ) -> File:
        """Send a file of requests, read while it is sent; it lives so many seconds. Raises OSError, too."""
        with file_calls.upload(Path(path), filename, expires_after) as call:
            return await self._send(call)

    def download(self, file_id: str) -> AsyncIterator[bytes]:
        """A file's bytes, piece by piece."""
        return self._bytes(file_calls.content(file_id))

    def files(self) -> AsyncIterator[File]:
        """All files, the newest first."""
        return self._all(file_calls.latest())

    async def file(self, file_id: str) -> File:
        return await self._send(file_calls.read(file_id))

    async def delete_file(self, file_id: str) -> None:
        await self._send(file_calls.delete(file_id))

    async def schedule_turn(
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
        return await self._send(schedule_calls.make(cron, "turn", template, options, idempotency_key))

    async def schedule_batch(
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
        return await self._send(schedule_calls.make(cron, "batch", template, options, idempotency_key))

    async def schedule(self, schedule_id: str) -> Schedule:
        return await self._send(schedule_calls.read(schedule_id))

    def schedules(self, *, conversation_id: str | None = None) -> AsyncIterator[Schedule]:
        """All schedules, or those that post to one conversation, the newest first."""
        return self._all(schedule_calls.latest(conversation_id))

    async def change_schedule(
        self,
        schedule_id: str,
        *,
        cron: str | None = None,
        timezone: str | None = None,
        paused: bool | None = None,
    ) -> Schedule:
        """Pause or resume a schedule, or let it fire at other times."""
        return await self._send(schedule_calls.change(schedule_id, cron, timezone, paused))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule; what it has posted stays."""
        await self._send(schedule_calls.delete(schedule_id))

    async def ready(self) -> None:
        """Raises ServerError saying why the service cannot serve, or UnreachableError."""
        await self._send(service_calls.ready())
