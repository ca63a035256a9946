"""JSON objects of lines, read so that nothing in them is lost in silence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from worker.contract.batch.line_schemas import Wrong

_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
DEEPEST: Final = 128
"""Levels of lists and objects in a body. What walks through one later has this much room on every stack."""


def whole(raw: bytes) -> dict[str, Any]:
    """A body with all that is in it; raises Wrong naming the field that is no value, too deep, or stands
    twice."""
    try:
        body = _object(raw)
    except (msgspec.DecodeError, RecursionError):
        raise _unread(raw) from None
    if raw.count(b"[") + raw.count(b"{") > DEEPEST:
        for name, value in body.items():
            _check_depth(name, value)
    check_once(raw, body, "body.")
    return body


def check_once(raw: bytes, names: Iterable[str], where: str) -> None:
    """Raises Wrong for a name that stands twice in an object whose `names` these are, each once."""
    # A name in a text has its quotes escaped. Few objects have an escaped name, or one again further in.
    if b"\\u00" not in raw and all(raw.count(b'"%b"' % name.encode()) <= 1 for name in names):
        return
    try:
        pairs = json.loads(raw, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    except RecursionError:
        raise Wrong("invalid_json_line", "is nested too deeply") from None
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            param = f"{where}{name[:64]}"
            raise Wrong("duplicate_key", f"{param} stands there {times} times", param)


def _check_depth(name: str, value: Any) -> None:
    level, depth = _inner([value]), 1
    while level:
        if depth > DEEPEST:
            param = f"body.{name[:64]}"
            raise Wrong("invalid_value", f"{param} is nested deeper than {DEEPEST} levels", param)
        level = [one for outer in level for one in _inner(outer)]
        depth += 1


def _inner(value: list[Any] | dict[str, Any]) -> list[list[Any] | dict[str, Any]]:
    values = value.values() if isinstance(value, dict) else value
    return [one for one in values if isinstance(one, dict | list)]


class _Pairs(list[tuple[str, Any]]):
    """An object as it is written."""


def _unread(raw: bytes) -> Wrong:
    try:
        fields = _fields(raw)
    except (msgspec.DecodeError, RecursionError):
        return Wrong("missing_required_parameter", "body must be an object", "body")
    for name, value in fields.items():
        param = f"body.{name[:64]}"
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            return Wrong("invalid_value", f"{param}: {error}", param)
        except RecursionError:
            return Wrong("invalid_value", f"{param} is nested too deeply", param)
    return Wrong("invalid_value", "body is nested too deeply", "body")
