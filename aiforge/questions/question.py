"""One row as a question: what is sent for it, its id, its options, and what else stands there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec

from aiforge.core.content import ContentError, check_content
from aiforge.core.names import CONVERSATION_ID, CONVERSATION_WORDS
from aiforge.core.parameters import ParameterError, check_parameters
from aiforge.questions.errors import BadRow
from aiforge.questions.lines import SURROGATE
from aiforge.questions.template import Template

Content = str | list[dict[str, Any]]
DIGEST_BYTES: Final = 12


class LineOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a line of JSON may say beside its question, under these names."""

    system_prompt: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    metadata: dict[str, str] | None = None


OPTIONS: Final = frozenset(LineOptions.__struct_fields__)
_ELSEWHERE: Final = "; `aiforge batch submit` takes OpenAI's lines as they are"
_BODY_KEYS: Final = frozenset({"messages", "model", "temperature", "max_tokens", "max_completion_tokens"})


@dataclass(frozen=True, slots=True)
class Question:
    """`text` is the question as it stands in the file, `message` what is sent, `extra` its other columns."""

    line: int
    id: str | None
    text: Content
    message: Content
    options: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    conversation: str | None = None
    """The conversation that it goes on with; None where it stands alone."""

    def digest(self, shared: Mapping[str, Any]) -> str:
        """Of all that decides the answer, the options of the whole run included; hexadecimal."""
        options = {name: value for name, value in {**shared, **self.options}.items() if value is not None}
        within = [] if self.conversation is None else [self.conversation]
        whole = msgspec.json.encode([self.message, sorted(options.items()), *within])
        return blake2b(whole, digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Form:
    """Which columns mean what; `has_options` where a line's keys can be options (JSON, not CSV)."""

    column: str
    id_column: str | None
    template: Template | None
    has_options: bool
    conversation_column: str | None = None
    tools: frozenset[str] | None = None
    """Names of the tools that there are, None where that is not known here."""


def is_chat(row: Mapping[str, Any]) -> bool:
    """Whether this is an object with messages, or OpenAI's batch line around one."""
    return isinstance(row.get("messages"), list) or (
        isinstance(row.get("body"), dict) and bool({"custom_id", "method", "url"} & row.keys())
    )


def from_row(line: int, row: Mapping[str, Any], form: Form) -> Question:
    """The question of a row; raises BadRow for one that cannot be asked."""
    if form.has_options and form.column not in row and is_chat(row):
        return _from_chat(line, row, form)
    if form.column not in row:
        raise BadRow(f"has no {form.column!r}")
    text = cast(Content, _floats(row[form.column]))
    _must_be_content(text, form.column)
    message = text
    if form.template is not None:
        if not isinstance(text, str):
            raise BadRow(f"{form.column!r} holds parts, which no prompt template can hold")
        message = form.template.fill(row)
        _must_be_content(message, "the prompt")
    taken = OPTIONS if form.has_options else frozenset[str]()
    taken |= {form.column, form.id_column or form.column}
    extra = {name: value for name, value in row.items() if name not in taken}
    options = {}
    if form.has_options:
        options = _options({name: row[name] for name in OPTIONS & row.keys()}, form.tools)
    must_be_whole(extra)
    conversation = _conversation(row, form.conversation_column)
    return Question(line, _id(row, form.id_column), text, message, options, extra, conversation)


def _from_chat(line: int, row: Mapping[str, Any], form: Form) -> Question:
    """A chat request with one user message: an item holds that, and a system prompt before it."""
    body = row["body"] if isinstance(row.get("body"), dict) else row
    if body is not row:
        _must_be_chat_line(row, body)
    if not isinstance(body.get("messages"), list):
        raise BadRow("'body' has no list of 'messages'")
    system, text = _messages(body["messages"])
    _must_be_content(text, "messages")
    if form.template is not None:
        raise BadRow("holds 'messages', which no prompt template can hold")
    options = {name: body[name] for name in OPTIONS & body.keys()}
    if body.get("max_completion_tokens") is not None:
        options["max_tokens"] = body["max_completion_tokens"]
    if system is not None:
        if options.get("system_prompt") is not None:
            raise BadRow("has a system message and a 'system_prompt'")
        options["system_prompt"] = system
    known = OPTIONS | {"messages", "max_completion_tokens", "body", "method", "url"}
    id_name = form.id_column or ("custom_id" if "custom_id" in row else "id")
    extra = {name: value for name, value in row.items() if name not in known | {id_name}}
    must_be_whole(extra)
    conversation = _conversation(row, form.conversation_column)
    return Question(line, _id(row, id_name), text, text, _options(options, form.tools), extra, conversation)


def _must_be_chat_line(row: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    if row.get("method", "POST") != "POST":
        raise BadRow("'method' must be POST")
    if row.get("url", "/v1/chat/completions") != "/v1/chat/completions":
        raise BadRow(f"'url' must be /v1/chat/completions{_ELSEWHERE}")
    if unknown := sorted(body.keys() - _BODY_KEYS):
        raise BadRow(f"'body' has {unknown[0]!r}, which a question cannot carry{_ELSEWHERE}")


def _messages(messages: Sequence[Any]) -> tuple[str | None, Content]:
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    if roles not in (["user"], ["system", "user"], ["developer", "user"]):
        raise BadRow("'messages' must be one user message, with at most a system message before it")
    system = messages[0].get("content") if len(messages) == 2 else None
    if len(messages) == 2 and not isinstance(system, str):
        raise BadRow("'messages'[0].content must be a string")
    return system, cast(Content, _floats(messages[-1].get("content")))


def _options(given: Mapping[str, Any], tools: frozenset[str] | None) -> dict[str, Any]:
    if not given:
        return {}
    try:
        options = msgspec.convert({name: given[name] for name in given}, LineOptions)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise BadRow(f"{where.rstrip('`')!r} {what[:1].lower()}{what[1:]}") from None
    try:
        check_parameters(
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            model=options.model,
            tools=options.tools,
            known_tools=tools,
        )
    except ParameterError as error:
        raise BadRow(f"{error.name!r} {error}") from None
    found = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    must_be_whole(found)
    return found


def _must_be_content(text: object, name: str) -> None:
    try:
        check_content(text)
    except ContentError as error:
        raise BadRow(f"{name!r}{error.where} {error}") from None
    must_be_whole({name: text})


def must_be_whole(values: Mapping[str, Any]) -> None:
    """Raises BadRow for a half character or a NUL in names or values."""
    for name, value in values.items():
        if isinstance(value, str):
            text = value
        elif value is None or isinstance(value, int | float | Decimal):
            continue
        else:
            text = _flat(value)
        if "\0" in text or "\0" in name:
            raise BadRow(f"{name!r} holds a NUL, which is no text")
        if not (text.isascii() and name.isascii()) and SURROGATE.search(name + text):
            raise BadRow(f"{name!r} holds a lone surrogate, which is no character")


def _floats(value: Any) -> Any:
    """What is sent; other columns keep their numbers as they stand there."""
    if isinstance(value, dict):
        return {name: _floats(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_floats(each) for each in value]
    return float(value) if isinstance(value, Decimal) else value


def _flat(value: Any) -> str:
    """All texts in a value, names included."""
    if isinstance(value, dict):
        return "".join(key + _flat(each) for key, each in value.items())
    if isinstance(value, list):
        return "".join(map(_flat, value))
    return value if isinstance(value, str) else ""


def _conversation(row: Mapping[str, Any], column: str | None) -> str | None:
    value = _id(row, column)
    if value is not None and not CONVERSATION_ID.fullmatch(value):
        raise BadRow(
            f"{column!r} must be {CONVERSATION_WORDS}; --conversation-column '' reads no conversations"
        )
    return value


def _id(row: Mapping[str, Any], id_column: str | None) -> str | None:
    value = row.get(id_column) if id_column is not None else None
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise BadRow(f"{id_column!r} must be text or a whole number")
    must_be_whole({id_column or "": value})
    return str(value)
