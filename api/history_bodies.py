"""What is posted to change a conversation and its history."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from api.errors import Problem
from worker.contract.schemas import ConversationChanges

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ChangeBody(ConversationChanges, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that are to change, if nobody has changed any since they were at `if_revision`."""

    if_revision: Number | None = None

    def changes(self) -> ConversationChanges:
        return ConversationChanges(
            **{name: getattr(self, name) for name in ConversationChanges.__struct_fields__}
        )


class CheckoutBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version to go back to, if the latest one is still `if_version`."""

    version: Number
    if_version: Number | None = None


class BranchBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to branch off, None is the latest version, and what is to be different."""

    version: Number | None = None
    conversation_id: str | None = None
    settings: ConversationChanges = ConversationChanges()


class CompactBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version that becomes the baseline, or how many of the latest are to stay beside it."""

    version: Number | None = None
    keep: Number | None = None

    def check(self) -> None:
        """Raises Problem when both are given."""
        if self.version is not None and self.keep is not None:
            raise Problem(400, "invalid_value", "keep: give a version or keep, not both", param="keep")


CHANGE: Final = msgspec.json.Decoder(ChangeBody)
CHECKOUT: Final = msgspec.json.Decoder(CheckoutBody)
BRANCH: Final = msgspec.json.Decoder(BranchBody)
COMPACT: Final = msgspec.json.Decoder(CompactBody)
