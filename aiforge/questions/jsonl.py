"""Lines of JSON: a question as a string, or an object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from aiforge.questions.errors import BadRow, Problems, UnclearError
from aiforge.questions.lines import TextFile, must_be_text

STRING_COLUMN: Final = "question"
"""What a line that is only a string is the value of."""
_SHOWN: Final = 80
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_LINE_BREAKS: Final = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def as_json(value: object) -> str:
    """One line of JSON that every reader takes for one line."""
    return _encode(value).decode().translate(_LINE_BREAKS)


def rows(file: TextFile, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and objects, with fractions as Decimals; what is none goes to the problems."""
    for number, line in _lines(file):
        try:
            must_be_text(line, file.encoding)
            yield number, _object_of(line)
        except BadRow as error:
            problems.add(number, str(error))


def _lines(file: TextFile) -> Iterator[tuple[int, str]]:
    """Those that are not blank, without the byte order marks that files have where they were put together."""
    for number, whole in file.lines():
        if (line := whole.removeprefix("\ufeff")).strip(" \t\r\n"):
            yield number, line


def must_be_lines(file: TextFile, name: str) -> None:
    """Raises UnclearError where the first line shows that lines are not what the file is made of."""
    line = next((line for _, line in _lines(file)), "")[:_SHOWN].strip()
    if line.startswith("["):
        raise UnclearError(f"{name}: is one list of JSON; write one question a line: jq -c '.[]' FILE")
    if line == "{":
        raise UnclearError(f"{name}: its JSON is spread over lines; write one question a line: jq -c . FILE")
    if line and not line.startswith(("{", '"')):
        raise UnclearError(f"{name}: {line!r} is no line of JSONL; name a table .csv or .tsv")


def _object_of(line: str) -> dict[str, Any]:
    try:
        value = _decode(line)
    except json.JSONDecodeError as error:
        raise BadRow(f"is not JSON: {error.msg} at character {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise BadRow(f"is not JSON: {error}") from None
    if isinstance(value, str):
        return {STRING_COLUMN: value}
    if not isinstance(value, dict):
        raise BadRow("is neither a JSON object nor a string")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadRow(f"has {twice([name for name, _ in pairs])!r} twice")
    return found


def twice(names: Sequence[str]) -> str:
    """The first name that stands there again."""
    return next(name for name in names if names.count(name) > 1)


def _fraction(word: str) -> Decimal:
    try:
        return Decimal(word)
    except InvalidOperation:
        raise ValueError(f"{word[:80]} is too large a number") from None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


_decode: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_number, parse_float=_fraction
).decode
