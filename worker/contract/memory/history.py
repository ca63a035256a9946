"""The past of conversations: versions, going back, branching off, folding up; and change of settings."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from worker.contract import records
from worker.contract.checks import check_conversation, check_conversation_id, check_settings
from worker.contract.errors import Conflict, NotFound
from worker.contract.memory.conversations import ConversationStore, unknown_conversation
from worker.contract.schemas import (
    Conversation,
    ConversationChanges,
    ConversationSettings,
    Diff,
    StoredMessage,
    Summary,
    Version,
)
from worker.contract.server.link import Argument

CHUNK: Final = 200
SCANNED: Final = 5_000
"""How many conversations one page looks at when few of them are what was asked for."""
_TRIES: Final = 20


class Page(NamedTuple):
    """Conversations with the time of their latest turn in Unix milliseconds, the newest first.

    `next` is time and id of the last one that was looked at, None when there are no more.
    """

    found: list[tuple[int, Conversation]]
    next: tuple[int, str] | None


class _Stored(msgspec.Struct):
    """A version as the scripts write it."""

    kind: Literal["turn", "checkout", "snapshot"]
    at: int
    messages: int
    turn_id: str | None = None
    to: int | None = None


class HistoryStore:
    """What callers may do with the past of a conversation. Raises ContractError.

    Versions count from 1; 0 is the empty conversation. Each turn that adds messages makes one, and so does
    each checkout. NotFound names one that there is not, Conflict (`version_compacted`) one that is gone.
    """

    def __init__(self, conversations: ConversationStore, tools: frozenset[str], tenant: str) -> None:
        self._conversations = conversations
        self._tools = tools
        self._tenant = tenant

    async def versions(self, conversation_id: str, *, after: int = 0, limit: int = 100) -> list[Version]:
        """All versions that are kept behind number `after`, the oldest first."""
        _, *flat = await self._run("past", conversation_id, [after, limit])
        return [
            _version(number, stored) for number, stored in zip(flat[::2], flat[1::2], strict=True) if stored
        ]

    async def checkout(
        self, conversation_id: str, version: int, *, expected: int | None = None
    ) -> Conversation:
        """Make the conversation what it was at `version`; what came after can be checked out again.

        Conflict (`conversation_busy`) while a turn runs or waits; (`conversation_moved`) unless `expected`
        is the latest version.
        """
        arguments: list[Argument] = [version, "" if expected is None else expected, secrets.token_hex(8)]
        await self._run("checkout", conversation_id, arguments, version=version)
        return await self._conversations.get(self._tenant, conversation_id)

    async def diff(self, conversation_id: str, old: int, new: int) -> Diff:
        """The messages that version `new` lacks and has, compared with `old`."""
        _, removed, added, *_ = await self._run("diff", conversation_id, [old, new], version=(old, new))
        return Diff(_messages(removed), _messages(added))

    async def compact(
        self,
        conversation_id: str,
        *,
        version: int | None = None,
        keep: int = 0,
    ) -> Conversation:
        """Fold all versions up to this one into one, the baseline; memory itself stays whole.

        Without a version the latest `keep` stay beside it, and what they go back to. Conflict
        (`version_needed`) when a later version goes back below it.
        """
        arguments: list[Argument] = ["" if version is None else version, keep]
        await self._run("compact", conversation_id, arguments, version=version)
        return await self._conversations.get(self._tenant, conversation_id)

    async def branch(
        self,
        conversation_id: str,
        *,
        version: int | None = None,
        new_id: str | None = None,
        changes: ConversationChanges | None = None,
    ) -> Conversation:
        """A new conversation that begins as this one is at `version`, None is the latest.

        It is made in one step, with the settings of this one as they are now, changed by `changes`.
        """
        if new_id is not None:
            check_conversation_id(new_id)
        settings, _ = await self._settings(conversation_id)
        wanted = settings if changes is None else changes.applied(settings)
        check_settings(wanted, self._tools)
        upto: Argument = "" if version is None else version
        _, _, messages, summarized, summary = await self._run(
            "diff", conversation_id, ["", upto], version=version
        )
        return await self._conversations.open(
            self._tenant,
            new_id or secrets.token_hex(8),
            wanted,
            messages=messages,
            summary=Summary(summarized, summary.decode()) if summarized else None,
        )

    async def change(
        self,
        conversation_id: str,
        changes: ConversationChanges,
        *,
        expected: int | None = None,
    ) -> Conversation:
        """Change settings for the turns that are claimed from now on; what others change beside it stays.

        Conflict (`conversation_changed`) unless `expected` is the revision of the settings.
        """
        check_conversation_id(conversation_id)
        store = self._conversations
        names = store.keys.of_turn("", self._tenant, conversation_id)
        for _ in range(_TRIES):
            settings, revision = await self._settings(conversation_id)
            if expected not in (None, revision):
                break
            wanted = changes.applied(settings)
            check_conversation(wanted, self._tools)
            if wanted == settings:
                return await store.get(self._tenant, conversation_id)
            arguments: list[Argument] = [
                revision, records.encode(wanted), wanted.memory, wanted.memory_k, wanted.on_busy,
                store.lives_ms(wanted), secrets.token_hex(8),
            ]  # fmt: skip
            match await store.connection.run("change", names, arguments):
                case b"ok":
                    return await store.get(self._tenant, conversation_id)
                case b"missing":
                    raise unknown_conversation(conversation_id)
        raise Conflict(
            f"the settings of conversation {conversation_id!r} have changed; read them again",
            code="conversation_changed",
        )

    async def page(
        self,
        *,
        before: tuple[int, str] | None = None,
        limit: int = 100,
        busy: bool | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Page:
        """Conversations that are busy, or idle, and have these notes among their metadata.

        A page may be short, or empty, although there is a next one: it looks at 5,000 conversations at most.
        """
        wanted = (metadata or {}).items()
        found: list[tuple[int, Conversation]] = []
        filtered = busy is not None or bool(wanted)
        size, cursor = max(CHUNK, limit + 1) if filtered else limit + 1, before
        for _ in range(0, SCANNED if filtered else 1, size):
            chunk = await self._conversations.latest(self._tenant, cursor, size)
            for when, conversation in chunk:
                if busy in (None, conversation.busy) and wanted <= (conversation.metadata or {}).items():
                    found.append((when, conversation))
                if len(found) > limit:
                    return Page(found[:limit], _cursor(found[limit - 1]))
            if len(chunk) < size:
                return Page(found, None)
            cursor = _cursor(chunk[-1])
        return Page(found, cursor)

    async def _settings(self, conversation_id: str) -> tuple[ConversationSettings, int]:
        """A conversation's settings and their revision."""
        check_conversation_id(conversation_id)
        store = self._conversations
        settings, revision = await store.connection.command(
            "HMGET", store.keys.conversation(self._tenant, conversation_id), "settings", "revision"
        )
        if settings is None:
            raise unknown_conversation(conversation_id)
        return msgspec.json.decode(settings, type=ConversationSettings), int(revision or 0)

    async def _run(
        self,
        script: str,
        conversation_id: str,
        arguments: Sequence[Argument],
        *,
        version: int | tuple[int, int] | None = None,
    ) -> list[Any]:
        """Run a script of the history; its refusals as errors."""
        check_conversation_id(conversation_id)
        store = self._conversations
        names = store.keys.of_conversation(self._tenant, conversation_id)
        connection = store.long if script == "diff" else store.connection
        reply: list[Any] = await connection.run(script, names, arguments)
        said, *rest = reply
        match said:
            case b"ok":
                return reply
            case b"missing":
                raise unknown_conversation(conversation_id)
            case b"busy":
                raise Conflict(
                    f"conversation {conversation_id!r} is busy with turn {rest[0].decode()}",
                    code="conversation_busy",
                )
            case b"moved":
                raise Conflict(
                    f"conversation {conversation_id!r} is at version {rest[0]} by now",
                    code="conversation_moved",
                )
            case b"needed":
                raise Conflict(
                    f"version {rest[0]} goes back to version {rest[1]}: compact at most up to that one,"
                    f" or at least up to version {rest[0]}",
                    code="version_needed",
                )
        latest, baseline = rest
        asked = version if isinstance(version, tuple) else (version or 0,)
        if said == b"unknown":
            raise NotFound(f"there is no version {max(asked)}; there are {baseline} to {latest}")
        raise Conflict(
            f"version {min(asked)} is gone: history was compacted up to {baseline}", code="version_compacted"
        )


def _version(number: int, stored: bytes) -> Version:
    known = msgspec.json.decode(stored, type=_Stored)
    return Version(
        version=number,
        kind=known.kind,
        at=known.at / 1000,
        messages=known.messages,
        turn_id=known.turn_id,
        to=known.to,
    )


def _messages(stored: Sequence[bytes]) -> list[StoredMessage]:
    return [msgspec.json.decode(message, type=StoredMessage) for message in stored]


def _cursor(found: tuple[int, Conversation]) -> tuple[int, str]:
    return found[0], found[1].conversation_id
