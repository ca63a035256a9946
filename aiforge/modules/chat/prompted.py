"""Tools in words, for models without tool calling: what is said to the model, and what it says back.

A turn keeps its messages in one form only, that of native tool calls; here they are put into words
when they are sent, and the model's words become calls when they arrive. So memory, stores and the
graph know nothing of this protocol, and a conversation can go on with either kind of model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from langchain_core.language_models import BaseChatModel

from aiforge.core.deltas import AssembledCall
from aiforge.core.foreign_chat import ForeignChat
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.modules.chat.prompts import TOOL_RESULTS, TOOL_RESULTS_LAST, TOOL_USE_SYSTEM
from aiforge.modules.chat.quote import quote

NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
"""What providers refuse in a tool's name, even in one that the model made up."""

_MARKED: Final = re.compile(r"TOOL_CALL:[ \t]*([^\s{}]+)\s*(?=\{)")
_FENCE: Final = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*```", re.DOTALL)
_BEGINNINGS: Final = ("TOOL_CALL:", '{"tool"', '{"input"', '[{"tool"', '[{"input"')
LONGEST_DOUBT: Final = 40
"""Characters or pieces after which no reply has to be looked at once more to see whether it is a call."""
_KEYS: Final = frozenset({"tool", "input"})
_decoder: Final = json.JSONDecoder()


def takes_tools(model: BaseChatModel) -> bool:
    """Whether `model` has tool calling of its own, so that the prompted protocol is not needed."""
    if isinstance(model, OpenAIChat):
        return not model.minimal
    inner = model.inner if isinstance(model, ForeignChat) else model
    return type(inner).bind_tools is not BaseChatModel.bind_tools


def with_instructions(system_prompt: str, schemas: Sequence[Mapping[str, Any]]) -> str:
    """`system_prompt` and how to use the tools of these schemas; without tools nothing is added."""
    if not schemas:
        return system_prompt
    lines = [
        f"- {function['name']}: {function.get('description') or ''} "
        f"Input: {msgspec.json.encode(function.get('parameters') or {}).decode()}"
        for function in (schema["function"] for schema in schemas)
    ]
    instructions = TOOL_USE_SYSTEM.format(tools="\n".join(lines))
    return f"{system_prompt}\n\n{instructions}" if system_prompt else instructions


def in_words(
    messages: Sequence[Mapping[str, Any]], schemas: Sequence[Mapping[str, Any]], *, last: bool
) -> list[dict[str, Any]]:
    """The messages as a model takes them that knows no tools, every turn a message of its own.

    System messages become one, because that is all that some chat templates take. `last` says that
    no tool is offered any more.
    """
    system = [str(message["content"]) for message in messages if message["role"] == "system"]
    prompt = with_instructions("\n\n".join(system), () if last else schemas)
    said: list[dict[str, Any]] = [{"role": "system", "content": prompt}] if prompt else []
    names = {valid_name(name): name for name in _names(schemas)}
    results: list[str] = []
    asked: dict[str, str] = {}
    for message in messages:
        if message["role"] == "tool":
            name = asked.get(message["tool_call_id"], "unknown")
            results.append(f'<result tool="{name}">\n{quote(message["content"], "result")}\n</result>')
            continue
        _say_results(said, results, TOOL_RESULTS)
        if message.get("tool_calls"):
            asked = {
                call["id"]: names.get(call["function"]["name"], call["function"]["name"])
                for call in message["tool_calls"]
            }
            said.append({"role": "assistant", "content": _calls_in_words(message, asked)})
        elif message["role"] == "user" and said and said[-1]["role"] == "user":
            # The results are of a turn that did not go on; two such messages in a row are often refused.
            said[-1]["content"] = _joined(said[-1]["content"], message["content"])
        elif message["role"] != "system":
            said.append(dict(message))
    _say_results(said, results, TOOL_RESULTS_LAST if last else TOOL_RESULTS)
    return said


def _joined(results: str, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return f"{results}\n\n{content}"
    return [{"type": "text", "text": results}, *content]


def _say_results(said: list[dict[str, Any]], results: list[str], template: str) -> None:
    if results:
        said.append({"role": "user", "content": template.format(results="\n".join(results))})
        results.clear()


def _calls_in_words(message: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """What the model itself wrote, or the same in the documented form when it called natively."""
    text = message.get("content") or ""
    if text and read_calls(text, names.values())[0]:
        return str(text)
    calls = [
        f'{{"tool": {json.dumps(names[call["id"]], ensure_ascii=False)}, '
        f'"input": {call["function"]["arguments"]}}}'
        for call in message["tool_calls"]
    ]
    return "\n".join(calls)


def valid_name(name: str) -> str:
    """A tool's name as every provider accepts it."""
    return NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


def _names(schemas: Sequence[Mapping[str, Any]]) -> list[str]:
    return [schema["function"]["name"] for schema in schemas]


def read_reply(text: str, schemas: Sequence[Mapping[str, Any]]) -> tuple[list[AssembledCall], str]:
    """The calls that a reply is, and its text up to the end of the last one. No calls: it is an answer."""
    return read_calls(text, _names(schemas))


def read_calls(text: str, known: Any) -> tuple[list[AssembledCall], str]:
    """See `read_reply`; `known` are the names of the tools.

    A reply is a call when it is nothing else, bare or in one fence, or when it begins with
    `TOOL_CALL:`; models like to make up the result behind that, which is not kept.
    """
    stripped = text.strip()
    fence = _FENCE.fullmatch(stripped)
    body = fence.group(1).strip() if fence else stripped
    if body.startswith("TOOL_CALL:"):
        found, end = _read_marked(body)
    else:
        found, end = _read_objects(body, frozenset(known)), len(body)
    calls = [AssembledCall(f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(found)]
    return calls, stripped if fence else body[:end]


def _read_marked(body: str) -> tuple[list[tuple[str, str]], int]:
    """`TOOL_CALL: name {json}` as often as it stands at the beginning."""
    found: list[tuple[str, str]] = []
    end = 0
    while match := _MARKED.match(body, _past_blanks(body, end)):
        try:
            value, end = _decoder.raw_decode(body, match.end())
        except (ValueError, RecursionError):
            # Not JSON: the model is told so, which it only is if this counts as a call.
            end = len(body)
            found.append((match.group(1), body[match.end() :]))
            break
        found.append((match.group(1), _json(value)))
    return found, end


def _past_blanks(body: str, position: int) -> int:
    while position < len(body) and body[position].isspace():
        position += 1
    return position


def _read_objects(body: str, known: frozenset[str]) -> list[tuple[str, str]]:
    """One `{"tool": …, "input": …}` after the other, or a list of them, and nothing else."""
    values: list[Any] = []
    position = 0
    while position < len(body):
        if body[position] not in "{[":
            return []
        try:
            value, position = _decoder.raw_decode(body, position)
        except (ValueError, RecursionError):
            return []
        values.extend(value if isinstance(value, list) else [value])
        position = _past_separator(body, position)
    if not all(_is_call(value, known) for value in values):
        return []
    return [(value["tool"], _json(value.get("input", {}))) for value in values]


def _past_separator(body: str, position: int) -> int:
    position = _past_blanks(body, position)
    if body[position : position + 1] in {",", ";"}:
        position = _past_blanks(body, position + 1)
    return position


def _is_call(value: Any, known: frozenset[str]) -> bool:
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("tool"), str)
        or not value["tool"].isprintable()
    ):
        return False
    return bool(value["tool"]) and (
        value.keys() == _KEYS or (value.keys() == {"tool"} and value["tool"] in known)
    )


def _json(value: Any) -> str:
    return json.dumps(value)


class Held:
    """Holds back a reply that may still turn out to be a call: nobody wants to read one as it is typed.

    `give` gets the text as soon as it can only be an answer.
    """

    __slots__ = ("_give", "_open", "_waiting")

    def __init__(self, give: Callable[[str], None]) -> None:
        self._give = give
        self._waiting: list[str] = []
        self._open = False

    def add(self, text: str) -> None:
        if self._open:
            self._give(text)
            return
        self._waiting.append(text)
        if len(self._waiting) <= LONGEST_DOUBT and not _may_be_call("".join(self._waiting)):
            self.release()

    def release(self) -> None:
        """It is an answer."""
        self._open = True
        if self._waiting:
            self._give("".join(self._waiting))
            self._waiting.clear()


def _may_be_call(text: str) -> bool:
    """Whether a reply that begins so can be a call, as far as its first characters tell."""
    start = text.lstrip()
    if start.startswith("`"):
        header, newline, start = start.partition("\n")
        if not newline:
            return "```".startswith(header[:3]) and len(header) < LONGEST_DOUBT
    compact = "".join(start[:LONGEST_DOUBT].split())
    return any(compact[: len(mark)] == mark[: len(compact)] for mark in _BEGINNINGS)
