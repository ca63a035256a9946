"""What a conversation remembers, and how much of it the model sees.

Messages are in OpenAI's form and never hold a system prompt. A window always begins with a user
message, so that no answer stands without its question and no tool result without its call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from aiforge.core.tokens import count_messages
from aiforge.modules.chat.prompts import MAY_HAVE_RUN, NOT_EXECUTED, SUMMARIZE_MEMORY_PROMPT
from aiforge.modules.chat.quote import quote

MODES: Final = ("buffer", "summary", "none")

STOPPED: Final = "stopped"
"""Marks the partial answer of a stream that was left early; no provider is told."""

MessageT = TypeVar("MessageT", bound=Mapping[str, Any])


def trim(messages: Sequence[MessageT], k: int) -> list[MessageT]:
    """The last `k` messages at most, beginning with a user message."""
    start = max(len(messages) - k, 0)
    while start < len(messages) and messages[start]["role"] != "user":
        start += 1
    return list(messages[start:])


def recent_from(messages: Sequence[Mapping[str, Any]], k: int) -> int:
    """Where the turns begin that hold the last `k` messages; a summary covers what stands before."""
    start = max(len(messages) - k, 0)
    while start > 0 and messages[start]["role"] != "user":
        start -= 1
    return start


def summarized(
    messages: Sequence[Mapping[str, Any]], k: int, *, keep: int | None, over: bool, tail: int
) -> int:
    """How many of the first messages a summary is to cover; 0 while there is no need.

    There is past `2 * k` messages, and when the request is `over` its tokens. The last `keep`
    messages stay, whatever they cost; where None is given, the last `k`, or fewer turns of them if
    they have more than `tail` tokens, or the next request would be over again.
    """
    if not over and len(messages) <= 2 * k:
        return 0
    start = recent_from(messages, k if keep is None else keep)
    if over and keep is None:
        while start < len(messages) and (start == 0 or count_messages(messages[start:]) > tail):
            start += 1
            while start < len(messages) and messages[start]["role"] != "user":
                start += 1
    return start


def settled(messages: Sequence[dict[str, Any]], *, started: Collection[str] = ()) -> list[dict[str, Any]]:
    """`messages` with a result for every call that has none, as a turn needs it that does not go on.

    `started` are the ids of the calls that may have had their effect.
    """
    done: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in [*messages, None]:
        if message is not None and message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            done.append(message)
            continue
        for call_id in waiting:
            text = MAY_HAVE_RUN if call_id in started else NOT_EXECUTED
            done.append({"role": "tool", "tool_call_id": call_id, "content": text})
        if message is not None:
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
            done.append(message)
    return done


def with_results(
    messages: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The results behind those that the last round has, all in the order of its calls."""
    asked = max(n for n, message in enumerate(messages) if message.get("tool_calls"))
    order = {call["id"]: n for n, call in enumerate(messages[asked]["tool_calls"])}
    told = [*messages[asked + 1 :], *results]
    return [*messages[: asked + 1], *sorted(told, key=lambda message: order[message["tool_call_id"]])]


class Memory:
    """The messages of one conversation under one of the three modes."""

    def __init__(self, conversation_id: str, mode: str, k: int) -> None:
        self.conversation_id = conversation_id
        self.summary: str | None = None
        self._mode = mode
        self._k = k
        self._messages: list[dict[str, Any]] = []

    @property
    def summarizes(self) -> bool:
        return self._mode == "summary"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What is remembered word for word."""
        return list(self._messages)

    def window(self) -> list[dict[str, Any]]:
        """The messages that the next request begins with."""
        return [_unmarked(message) if STOPPED in message else message for message in self._messages]

    def add(self, turn: Sequence[dict[str, Any]]) -> None:
        """Remember the messages of a whole turn."""
        if self._mode == "none":
            return
        self._messages.extend(turn)
        if self._mode == "buffer":
            self._messages = trim(self._messages, self._k)

    def to_summarize(
        self, *, over: bool = False, keep: int | None = None, tail: int = 0
    ) -> list[dict[str, Any]]:
        """The messages that a summary should take the place of; see `summarized`."""
        if not self.summarizes:
            return []
        return self._messages[: summarized(self._messages, self._k, keep=keep, over=over, tail=tail)]

    def replace(self, summarized: int, summary: str) -> None:
        """Let `summary` stand for the first `summarized` messages and the summary before it."""
        self._messages = self._messages[summarized:]
        self.summary = summary


def _unmarked(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != STOPPED}


def summary_request(quoted: Sequence[str], earlier: str | None) -> list[dict[str, Any]]:
    """What the model is asked when quoted messages, and an earlier summary, are to become one summary."""
    parts = [f"<earlier_summary>\n{quote(earlier, 'earlier_summary')}\n</earlier_summary>"] if earlier else []
    text = quote("\n".join([*parts, *quoted]), "conversation")
    return [
        {"role": "system", "content": SUMMARIZE_MEMORY_PROMPT},
        {"role": "user", "content": f"<conversation>\n{text}\n</conversation>"},
    ]


def quoted(message: Mapping[str, Any]) -> str:
    """A message as a line or more of a conversation that is only talked about."""
    content = message.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode() if content else ""
    calls = "".join(
        f"\n[asks for {call['function']['name']} {call['function']['arguments']}]"
        for call in message.get("tool_calls") or ()
    )
    return quote(f"{message['role']}: {text}{calls}", "earlier_summary")
