"""Which reply a call gets: the first rule that fits, else the next of the script, else the default."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

import msgspec

from aiforge.testing.answer import steps_of
from aiforge.testing.calls import RecordedCall, last_question
from aiforge.testing.script import Cut, Faults, Reply, Rule, Script, failure, rate_limited
from aiforge.testing.text import default_answer
from aiforge.testing.wire import ChatRequest

Answer: TypeAlias = Reply | str | Callable[[RecordedCall], Reply | str]
"""A reply, the text of one, or a function that makes one when the call is there."""


class Playbook:
    """Everything a provider was told to answer. Used on the server's loop only."""

    def __init__(
        self,
        script: Sequence[Answer] = (),
        default: Answer | None = None,
        *,
        tokens: int = 20,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        self._first = tuple(script), default
        self._tokens = tokens
        self._faults = faults or Faults()
        self._seed = seed
        self.reset()

    def reset(self) -> None:
        """Back to what it was made with; the random faults begin anew."""
        script, self._default = self._first
        self._queue: deque[Answer] = deque(script)
        self._rules: list[tuple[Rule, count[int]]] = []
        self._random = random.Random(self._faults.seed)  # noqa: S311  # reproducible, not secret
        self._cuts = self._faults.cut

    def push(self, answers: Sequence[Answer]) -> None:
        self._queue.extend(answers)

    def extend(self, script: Script) -> int:
        """Take a whole script; returns how many replies wait now."""
        self._queue.extend(script.replies)
        for rule in script.rules:
            self.add(rule)
        if script.default is not None:
            self._default = script.default
        return len(self._queue)

    def add(self, rule: Rule) -> None:
        self._rules.append((rule, count()))

    def choose(self, call: RecordedCall, request: ChatRequest) -> Reply:
        """Raises whatever a scripted function raises."""
        if self._rules:
            question = last_question(request.messages)
            for rule, used in self._rules:
                if rule.contains in question and (rule.times is None or next(used) < rule.times):
                    return rule.reply
        answer = self._queue.popleft() if self._queue else self._default
        if answer is None:
            return self._unscripted(request)
        if callable(answer):
            answer = answer(call)
        return Reply(text=answer) if isinstance(answer, str) else answer

    def _unscripted(self, request: ChatRequest) -> Reply:
        faults = self._faults
        drawn = self._random.random()
        if drawn < faults.rate_429:
            return rate_limited(faults.retry_after, fault="429")
        if drawn < faults.rate_429 + faults.rate_500:
            return failure(500, fault="500")
        limit = request.max_completion_tokens or request.max_tokens
        tokens = self._tokens if limit is None else min(self._tokens, limit)
        words = default_answer(last_question(request.messages), tokens, self._seed)
        reply = Reply(chunks=words, finish_reason="length" if tokens < self._tokens else "stop")
        if not self._cuts:
            return reply
        self._cuts -= 1
        steps = steps_of(reply, request)
        middle = (len(steps) + 1) // 2
        return msgspec.structs.replace(reply, chunks=[*steps[:middle], Cut()], fault="cut")
