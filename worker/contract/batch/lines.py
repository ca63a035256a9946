"""Lines of OpenAI's batch files: requests are checked as they come, answers are written as lines."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from aiforge.core.line_bodies import CHAT, NEVER, RESPONSES, unread
from aiforge.core.texts import one_line
from worker.contract import records
from worker.contract.batch.entries import Repeats, continued, repeated
from worker.contract.batch.line_schemas import MAX_BATCH_LINES, LineError, LineErrors, LineItem, Wrong
from worker.contract.batch.reading import check_once, whole
from worker.contract.batch.sameness import line_question
from worker.contract.batch.turn_lines import turn_item
from worker.contract.schemas import BatchRequest, BatchRow, TurnFailure

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
ERRORS_KEPT: Final = 100
REFUSED: Final = b"!"
"""The entry of a line that is left out; its row is known from the start."""
_BOM: Final = b"\xef\xbb\xbf"
_PACKED: Final = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "a ZIP archive", b"\x28\xb5\x2f\xfd": "zstd"}
"""How packed files begin."""
_ENVELOPE: Final = ("custom_id", "method", "url", "body", "conversation")
_ASKED: Final = {CHAT: "messages", RESPONSES: "input"}


class _Line(msgspec.Struct):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw()
    conversation: Any = None


class _OnlyLine(_Line, forbid_unknown_fields=True):
    """A line without anything else in it."""


_line: Final = msgspec.json.Decoder(_OnlyLine).decode
_any_line: Final = msgspec.json.Decoder(_Line).decode
_UNKNOWN: Final = re.compile(r"unknown field `(.*)`")


class Splitter:
    """Cuts bytes at LF and nowhere else; U+2028 and its like are ordinary characters."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that this completes. Of one that is too long only the beginning is kept."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[: MAX_LINE_BYTES + 1]
        return lines

    def close(self) -> list[bytes]:
        """The last line of a file that does not end in one."""
        return [self._rest] if self._rest else []


class Lines:
    """Checks the lines of a file in order; keeps a digest of each `custom_id`, 130 bytes, one of each
    conversation, and no line."""

    def __init__(self, request: BatchRequest, foreign: str | None = None) -> None:
        """`foreign` is a provider that does not speak OpenAI's wire format."""
        assert request.endpoint is not None
        self._endpoint = request.endpoint
        self._foreign = foreign
        self._asked = _ASKED[request.endpoint]
        self._once = request.dedupe or bool(request.cache_ttl)
        self._capped = request.max_cost is not None
        self.skips = (request.metadata or {}).get("on_invalid") == "skip"
        """A wrong line is left out and becomes an error row, instead of failing the batch."""
        self.errors: list[LineError] = []
        self.wrong = 0
        """How many lines are wrong."""
        self.count = 0
        """How many lines are items."""
        self.stopped = False
        """Nothing that follows is worth reading."""
        self._number = 0
        self._ids: dict[bytes, int] = {}
        self._repeats = Repeats()
        self._latest: dict[bytes, int] = {}

    @property
    def turns(self) -> bool:
        """Whether some lines continue conversations."""
        return bool(self._latest)

    @property
    def failed(self) -> LineErrors | None:
        """Why the batch cannot run; None when it can."""
        if self.wrong and not (self.skips and self.count):
            return LineErrors(total=self.wrong, data=self.errors)
        if not self.count:
            return LineErrors(
                total=1, data=[LineError(code="empty_file", message="the file holds no request")]
            )
        return None

    def refuse(self, code: str, message: str) -> None:
        """Something is wrong that no line can be blamed for, and that leaving lines out does not mend."""
        self.skips, self.stopped = False, True
        self.wrong += 1
        self.errors.insert(0, LineError(code=code, message=message))

    def take(self, lines: Iterable[bytes]) -> tuple[list[bytes], dict[int, bytes]]:
        """The entries of some lines as they are stored, and the rows that are known of them already."""
        entries: list[bytes] = []
        rows: dict[int, bytes] = {}
        for raw in lines:
            self._number += 1
            line = self._begin(raw) if self._number == 1 else raw
            if not line or line.isspace():
                continue
            if self.count == MAX_BATCH_LINES:
                self.refuse("too_many_lines", f"a batch has at most {MAX_BATCH_LINES} lines")
            if self.stopped:
                break
            item = _Line()
            try:
                entry = self._entry(line, item)
            except Wrong as error:
                self._note(error)
                if not self.skips:
                    continue
                rows[self.count] = self._row(error, item)
                entry = REFUSED
            if self.wrong and not self.skips:
                continue
            entries.append(entry)
            self.count += 1
        return entries, rows

    def _begin(self, line: bytes) -> bytes:
        packed = next((kind for mark, kind in _PACKED.items() if line.startswith(mark)), None)
        other = packed or _wide(line)
        if other is not None:
            self.refuse("invalid_encoding", f"the file is {other}; it has to be UTF-8")
        return line.removeprefix(_BOM)

    def _note(self, error: Wrong) -> None:
        self.wrong += 1
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append(
                LineError(code=error.code, message=str(error), line=self._number, param=error.param)
            )

    def _row(self, error: Wrong, item: _Line) -> bytes:
        own = item.custom_id if isinstance(item.custom_id, str) else None
        failure = TurnFailure(error.code, f"line {self._number}: {error}")
        return records.encode(BatchRow(index=self.count, id=own, status="error", error=failure, attempts=0))

    def _entry(self, line: bytes, item: _Line) -> bytes:
        """The line as it is stored; what is read of it is put into `item`. Raises Wrong."""
        if len(line) > MAX_LINE_BYTES:
            raise Wrong("line_too_long", f"is longer than {MAX_LINE_BYTES} bytes")
        try:
            str(line, "utf-8")
            read = _line(line)
        except UnicodeDecodeError:
            raise Wrong("invalid_encoding", "is not UTF-8") from None
        except (msgspec.DecodeError, RecursionError) as error:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                item.custom_id = _any_line(line).custom_id
            raise _no_line(error) from None
        item.custom_id, item.body = read.custom_id, read.body
        check_once(line, _ENVELOPE, "")
        self._check_envelope(read)
        body = self._check_body(bytes(read.body))
        if read.conversation is not None:
            return self._turn(read)
        self._check_unique(read.custom_id)
        temperature = body.get("temperature")
        if self._once or (temperature == 0 and not isinstance(temperature, bool)):
            first = self._repeats.first(self.count, line_question(body))
            if first is not None:
                return repeated(first, read.custom_id)
        return records.encode(LineItem(id=read.custom_id, body=read.body))

    def _turn(self, line: _Line) -> bytes:
        """The entry of a line that continues a conversation, behind the latest one of it."""
        if self._capped:
            raise Wrong(
                "unsupported_parameter",
                "conversation: turns are held by the budgets of tenant and conversation, not by max_cost",
                "conversation",
            )
        item = turn_item(self._endpoint, line.custom_id, line.conversation, bytes(line.body))
        self._check_unique(line.custom_id)
        name = _digest(line.conversation)
        entry = continued(self._latest.get(name), item)
        self._latest[name] = self.count
        return entry

    def _check_envelope(self, line: _Line) -> None:
        if not isinstance(line.custom_id, str) or not line.custom_id:
            raise _missing("custom_id", "a text that is not empty")
        if line.method != "POST":
            raise Wrong("invalid_method", "method must be POST", "method")
        if line.url != self._endpoint:
            raise Wrong("mismatched_endpoint", f"url must be the batch's endpoint, {self._endpoint}", "url")

    def _check_body(self, raw: bytes) -> dict[str, Any]:
        body = whole(raw)
        model, asked = body.get("model"), body.get(self._asked)
        if not isinstance(model, str) or not model.strip():
            raise _missing("body.model", "the name of a model")
        texts = isinstance(asked, str) and self._asked == "input"
        if not texts and (not isinstance(asked, list) or not asked):
            kind = "a list that is not empty" + (", or a text" if self._asked == "input" else "")
            raise _missing(f"body.{self._asked}", kind)
        for name, why in NEVER[self._endpoint].items():
            if body.get(name):
                raise Wrong("invalid_value", f"body.{name}: {why}", f"body.{name}")
        if self._foreign is not None:
            refusal = unread(self._endpoint, body, self._foreign)
            if refusal is not None:
                param = f"body.{refusal.param[:200]}"
                raise Wrong("unsupported_parameter", f"{param}: {refusal.why}", param)
        return body

    def _check_unique(self, own: str) -> None:
        first = self._ids.setdefault(_digest(own), self._number)
        if first != self._number:
            raise Wrong(
                "duplicate_custom_id", f"custom_id {own[:200]!r} stands in line {first}, too", "custom_id"
            )


def _wide(line: bytes) -> str | None:
    """The encoding of a file that begins so, where every character has several bytes; marked or not."""
    for bits, marks in ((32, (b"\xff\xfe\0\0", b"\0\0\xfe\xff")), (16, (b"\xff\xfe", b"\xfe\xff"))):
        if line.startswith(marks):
            return f"UTF-{bits}"
    zeros = line[:4].count(0)
    return None if not zeros else "UTF-32" if zeros > 2 else "UTF-16"


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _no_line(error: Exception) -> Wrong:
    unknown = _UNKNOWN.search(str(error))
    if unknown is None:
        return Wrong("invalid_json_line", f"is not a JSON object: {error}")
    name = unknown[1][:64]
    return Wrong("unknown_field", f"{name}: a line has {', '.join(_ENVELOPE)} and nothing else", name)


def _missing(param: str, kind: str) -> Wrong:
    return Wrong("missing_required_parameter", f"{param} must be {kind}", param)


def answer_line(batch_id: str, row: BatchRow) -> bytes:
    """A row as a line of OpenAI's output or error file, safe for readers that split lines at U+2028, too."""
    error = None
    if row.response is None and row.error is not None:
        error = {"code": row.error.code, "message": row.error.message}
    line = {
        "id": f"batch_req_{batch_id.removeprefix('batch_')}{row.index:07d}",
        "custom_id": row.id,
        "response": row.response,
        "error": error,
    }
    return one_line(records.encode(line)) + b"\n"
