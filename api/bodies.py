"""Request bodies: what may be posted, and how it is read.

They are decoded straight into the contract's structs: a batch of 50,000 items takes tens of
milliseconds, and what does not fit is named by its path.
"""

from __future__ import annotations

import functools
import re
from decimal import Decimal
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec

from api import wording
from api.errors import LONGEST_PARAM, Problem
from worker.contract.memory.transfer import ConversationExport
from worker.contract.schedule.schemas import ScheduleChange, ScheduleRequest
from worker.contract.schemas import (
    BatchItem,
    BatchRequest,
    ConversationChanges,
    ConversationSettings,
    StoredMessage,
    TurnRequest,
)

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
_FIELD: Final = re.compile(r"(unknown|required) field `([^`]*)`")
_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_DECIMAL: Final = {"format": "decimal"}
_DIGITS: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\Z"
"""Python would also read `1_0`, ` 10` and digits of other scripts."""
_Usd = Annotated[str, msgspec.Meta(pattern=_DIGITS, extra_json_schema=_DECIMAL)]
_WholeUsd = Annotated[int, msgspec.Meta(extra_json_schema=_DECIMAL)]
_PartUsd = Annotated[float, msgspec.Meta(extra_json_schema=_DECIMAL)]


Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


def _part(kind: type[S], whole: msgspec.Struct) -> S:
    """Those fields of a body that its request has."""
    return kind(**{name: getattr(whole, name) for name in kind.__struct_fields__})


class TurnBody(TurnRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn as it is posted."""

    client_message_id: str | None = None

    def request(self) -> TurnRequest:
        return _part(TurnRequest, self)


class ConversationBody(ConversationSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation as it is posted."""

    conversation_id: str | None = None

    def settings(self) -> ConversationSettings:
        return _part(ConversationSettings, self)


class BatchBody(BatchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch as it is posted: an item may be just its message."""

    items: list[BatchItem | str] = msgspec.field(default_factory=list)  # type: ignore[assignment]  # wider
    max_cost: _Usd | _WholeUsd | _PartUsd | None = None  # type: ignore[assignment]  # in plain digits

    def request(self) -> BatchRequest:
        items = [BatchItem(message=item) if isinstance(item, str) else item for item in self.items]
        fields = {name: getattr(self, name) for name in BatchRequest.__struct_fields__}
        cost = None if self.max_cost is None else Decimal(str(self.max_cost))
        kept = msgspec.UNSET if self.cache_ttl is None else self.cache_ttl
        return BatchRequest(**{**fields, "items": items, "cache_ttl": kept, "max_cost": cost})


class ScheduleBody(ScheduleRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule as it is posted, with a batch as that is posted."""

    batch: BatchBody | None = None

    def request(self) -> ScheduleRequest:
        fields = {name: getattr(self, name) for name in ScheduleRequest.__struct_fields__}
        return ScheduleRequest(**{**fields, "batch": self.batch and self.batch.request()})


class ResumeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a turn's question."""

    question_id: str
    answer: str


class QueueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waiting turns as they were seen, and the order they are to have."""

    expected: list[str]
    turns: list[str]


class MessageBody(StoredMessage, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message of a conversation that comes in."""


class ImportBody(ConversationExport, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exported conversation as it is posted."""

    version: int
    messages: list[MessageBody]


class ChangeBody(ConversationChanges, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that are to change, if nobody has changed any since they were at `if_revision`."""

    if_revision: Number | None = None

    def changes(self) -> ConversationChanges:
        return _part(ConversationChanges, self)


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


TURN: Final = msgspec.json.Decoder(TurnBody)
CONVERSATION: Final = msgspec.json.Decoder(ConversationBody)
BATCH: Final = msgspec.json.Decoder(BatchBody)
SCHEDULE: Final = msgspec.json.Decoder(ScheduleBody)
SCHEDULE_CHANGE: Final = msgspec.json.Decoder(ScheduleChange)
RESUME: Final = msgspec.json.Decoder(ResumeBody)
QUEUE: Final = msgspec.json.Decoder(QueueBody)
IMPORT: Final = msgspec.json.Decoder(ImportBody)
CHANGE: Final = msgspec.json.Decoder(ChangeBody)
CHECKOUT: Final = msgspec.json.Decoder(CheckoutBody)
BRANCH: Final = msgspec.json.Decoder(BranchBody)
COMPACT: Final = msgspec.json.Decoder(CompactBody)


def decode(body: bytes, decoder: msgspec.json.Decoder[T], *, default: T | None = None) -> T:
    """The body as a struct, or the default of one that need not be sent; raises Problem 400 naming the field
    that is wrong."""
    if default is not None and not body:
        return default
    if not body.strip():
        raise _bad_json("the body is empty; a JSON object is expected")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse(str(error), decoder.type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad_json(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise _bad_json("the body is nested too deeply") from None


def _bad_json(message: str) -> Problem:
    return Problem(400, "invalid_json", message)


def _refuse(message: str, kind: Any) -> NoReturn:
    """Say what is right where msgspec says what is wrong."""
    path, found, schema = _PATH.search(message), _FIELD.search(message), _schema(kind)
    place = path[1] if path else ""
    if found is None:
        param, right = place.removesuffix("[...]"), wording.of_field(schema, place)
        said = f"must be {right}" if right else _PATH.sub("", message)
        raise Problem(400, "invalid_value", f"{param or 'the body'}: {said}", param=param or None)
    param = (f"{place}.{found[2]}" if place else found[2])[:LONGEST_PARAM]
    if found[1] == "required":
        right = wording.of_field(schema, param)
        raise Problem(
            400, "missing_field", f"{param}: this field is required; it must be {right}", param=param
        )
    known = ", ".join(wording.fields(schema, place))
    raise Problem(400, "unknown_field", f"{param}: there is no such field; known: {known}", param=param)


@functools.cache
def _schema(kind: Any) -> dict[str, Any]:
    return msgspec.json.schema(kind)
