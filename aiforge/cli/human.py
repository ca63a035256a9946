"""A turn that asks a human: the person at the terminal answers, or learns how to answer later."""

from __future__ import annotations

import sys
from typing import Final

from aiforge.cli.errors import EXIT_ASKED, CommandError
from aiforge.cli.output import as_json, note, screen
from aiforge.client import Question, Turn

_PROMPTS: Final = {
    "approval": "yes lets it run, anything else is told to the model: ",
    "question": "your answer: ",
}


class Asked(CommandError):
    """The turn waits for somebody's answer."""

    exit_code = EXIT_ASKED

    def __init__(self, turn_id: str, question: Question) -> None:
        details = (f"aiforge resume {turn_id} ANSWER --question {question.question_id}",)
        super().__init__(f"the turn asks: {shown(question)}; answer it with", details)


def shown(question: Question) -> str:
    """The question, and what is to be approved, in one line."""
    call = "" if question.tool is None else f" ({question.tool} {as_json(question.input)})"
    return " ".join(question.text.split()) + call


def ask(question: Question) -> str | None:
    """What the person at the terminal answers; None when nobody sits there or wants to."""
    if not sys.stdin.isatty():
        return None
    note(shown(question), style="bold")
    while True:
        screen().print(_PROMPTS.get(question.kind, _PROMPTS["question"]), end="")
        line = sys.stdin.buffer.readline().decode(errors="replace")
        if not line:
            note("")
            return None
        if line.strip():
            return line.strip()


def must_not_ask(turn: Turn) -> None:
    """Raises Asked when the turn waits for a human."""
    if turn.question is not None:
        raise Asked(turn.turn_id, turn.question)
