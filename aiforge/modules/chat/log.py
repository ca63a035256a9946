"""A conversation's whole log: what it was at each version.

A version is the number of an entry. Its parent is the version before, or the one that a checkout
names; so going back rewrites nothing, and what was left behind stays reachable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from aiforge.core.request import Action
from aiforge.modules.chat.entries import (
    CheckoutEntry,
    DeliveredEntry,
    Entry,
    PausedEntry,
    SnapshotEntry,
    TurnEntry,
)


class Diff(msgspec.Struct, frozen=True):
    """What has to be taken from one version of a conversation, and then added, to get another."""

    removed: list[dict[str, Any]]
    added: list[dict[str, Any]]


class VersionInfo(msgspec.Struct, frozen=True):
    """One version: what made it, and when (Unix seconds). `turn` and `turn_id` are a turn's."""

    version: int
    kind: str
    at: float
    turn: int | None = None
    turn_id: str | None = None
    metadata: dict[str, str] = {}


class Log:
    """All entries of one conversation. Raises ValueError on versions and turns that it does not have."""

    def __init__(self, entries: Sequence[tuple[int, Entry]]) -> None:
        self._entries = dict(entries)
        self.last = max(self._entries, default=0)
        first = min(self._entries, default=0)
        self.baseline = first if isinstance(self._entries.get(first), SnapshotEntry) else 0
        """The oldest version that is still known; 0 is the empty conversation."""

    def path(self, version: int) -> list[tuple[int, Entry]]:
        """The entries that made this version, oldest first."""
        self._check(version)
        steps: list[tuple[int, Entry]] = []
        while version:
            entry = self._entries[version]
            if isinstance(entry, CheckoutEntry):
                version = entry.to
                continue
            steps.append((version, entry))
            version = 0 if isinstance(entry, SnapshotEntry) else version - 1
        return steps[::-1]

    def messages(self, version: int) -> list[dict[str, Any]]:
        """The whole conversation at this version."""
        return _messages(self.path(version))

    def diff(self, old: int, new: int) -> Diff:
        before, after = self.path(old), self.path(new)
        common = 0
        while common < min(len(before), len(after)) and before[common][0] == after[common][0]:
            common += 1
        return Diff(removed=_messages(before[common:]), added=_messages(after[common:]))

    def turn(self, turn_id: str) -> TurnEntry | PausedEntry:
        """The latest entry of this turn."""
        for _, entry in reversed(self._entries.items()):
            if isinstance(entry, TurnEntry | PausedEntry) and entry.turn_id == turn_id:
                return entry
        raise ValueError(f"there is no turn {turn_id!r} in this conversation")

    def versions(self) -> list[VersionInfo]:
        return [_info(number, entry) for number, entry in self._entries.items()]

    def highest_turn(self) -> int:
        """Turn numbers are taken from all that was ever recorded, so that none comes twice."""
        numbered = (TurnEntry, PausedEntry, SnapshotEntry)
        return max((entry.turn for entry in self._entries.values() if isinstance(entry, numbered)), default=0)

    def undelivered(self, upto: int | None = None) -> dict[str, Action]:
        """Committed actions that were not dispatched, by id."""
        actions: dict[str, Action] = {}
        for number, entry in self._entries.items():
            if upto is not None and number > upto:
                break
            match entry:
                case TurnEntry() | SnapshotEntry():
                    actions.update((action.id, action) for action in entry.actions)
                case DeliveredEntry():
                    for id_ in entry.ids:
                        actions.pop(id_, None)
        return actions

    def check_compaction(self, version: int) -> None:
        """Raises ValueError when what is newer than `version` builds on what is older."""
        if any(isinstance(entry, PausedEntry) for _, entry in self.path(version)[-1:]):
            raise ValueError(f"at version {version} a turn waits for an answer, which would be lost")
        for number, entry in self._entries.items():
            if number > version and isinstance(entry, CheckoutEntry) and entry.to < version:
                raise ValueError(
                    f"version {number} goes back to version {entry.to}: compact at most up to that one, "
                    f"or at least up to version {number}"
                )

    def _check(self, version: int) -> None:
        if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= self.last:
            raise ValueError(f"there is no version {version!r}; there are {self.baseline} to {self.last}")
        if version < self.baseline:
            raise ValueError(f"version {version} is gone: history was compacted up to {self.baseline}")


def _messages(path: Sequence[tuple[int, Entry]]) -> list[dict[str, Any]]:
    return [
        message
        for _, entry in path
        if isinstance(entry, TurnEntry | SnapshotEntry)
        for message in entry.messages
    ]


def _info(number: int, entry: Entry) -> VersionInfo:
    kind = str(entry.__struct_config__.tag)
    if isinstance(entry, TurnEntry | PausedEntry):
        return VersionInfo(number, kind, entry.at, entry.turn, entry.turn_id, entry.metadata)
    return VersionInfo(number, kind, entry.at)


def remembered(path: Sequence[tuple[int, Entry]]) -> tuple[int, str | None]:
    """How many of the last messages no summary stands for, and the summary of the others."""
    count, summary = 0, None
    for _, entry in path:
        match entry:
            case SnapshotEntry():
                count, summary = entry.remembered, entry.summary
            case TurnEntry() | PausedEntry():
                for step in entry.summarized:
                    count, summary = count - step.messages, step.summary
                count += len(entry.messages) if isinstance(entry, TurnEntry) else 0
            case _:
                pass
    return count, summary
