"""What callers may do to the past of the turn machine's conversations, at any moment."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.properties.machine import ScriptMachine
from tests.properties.turn_model import ModelConversation
from tests.support import leaks
from worker.contract.errors import ContractError, NotFound
from worker.contract.memory.history import HistoryStore
from worker.contract.store import TurnStore

names = st.sampled_from("ab")
ago = st.integers(-1, 8)


class PastRules(ScriptMachine):
    """Rules of a machine that has conversations, and whose turns make versions of them."""

    history: HistoryStore
    store: TurnStore
    conversations: dict[str, ModelConversation]

    def _known(self, name: str) -> ModelConversation | None:
        """The conversation, if any turn was ever posted to it."""
        known = self.conversations[name]
        return known if known.line or known.version else None

    def _refused(self, asked: Coroutine[Any, Any, Any]) -> str | None:
        try:
            self.run(asked)
        except ContractError as error:
            return error.code
        return None

    @rule(name=names, back=ago)
    def checkout(self, name: str, back: int) -> None:
        known = self._known(name)
        if known is None:
            return
        version = max(0, known.version - back)
        refused = self._refused(self.history.checkout(name, version))
        if known.line:
            assert refused == "conversation_busy"
        elif version > known.version:
            assert refused == NotFound.code
        elif version < known.baseline:
            assert refused == "version_compacted"
        else:
            assert refused is None
            known.checkout(version)

    @rule(name=names, back=ago)
    def compact(self, name: str, back: int) -> None:
        known = self._known(name)
        if known is None:
            return
        version = max(0, known.version - back)
        refused = self._refused(self.history.compact(name, version=version))
        if version > known.version:
            assert refused == NotFound.code
        elif version > known.baseline and known.needed(version):
            assert refused == "version_needed"
        else:
            assert refused is None
            known.compact(max(version, known.baseline))

    @rule(name=names, first=ago, second=ago)
    def diff(self, name: str, first: int, second: int) -> None:
        """What is taken and added really leads from one version to the other."""
        known = self._known(name)
        old, new = (self.conversations[name].version - back for back in (first, second))
        if known is None or not {old, new} <= known.versions.keys():
            return
        found = self.run(self.history.diff(name, old, new))
        before, after = known.versions[old], known.versions[new]
        removed, added = ([message.content for message in side] for side in (found.removed, found.added))
        assert before[len(before) - len(removed) :] == removed
        assert before[: len(before) - len(removed)] + added == after

    def past_is_right(self, seen: leaks.Picture, conversation: ModelConversation) -> None:
        """Exactly the versions that are kept are stored."""
        stored = seen.hashes.get(self.store.keys.history("default", conversation.name), {})
        numbers = {int(name) for name in stored if name.isdigit()}
        assert numbers == conversation.versions.keys() - {0}
        for name in stored:
            assert name.isdigit() or name.startswith("messages:")
            assert int(name.rpartition(":")[2]) in numbers
