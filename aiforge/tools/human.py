"""The tool with which a model asks a human. The turn pauses for the answer, which is the tool's result."""

from __future__ import annotations

from typing import Final

from aiforge.tools.tool import Tool, parameters

ASK_HUMAN: Final = "ask_human"


def _ask(question: str) -> str:
    raise RuntimeError("only a turn can put a question to a human")


ask_human: Final = Tool(
    ASK_HUMAN,
    "Ask the human you work for, when only they can know or decide. Wait for the answer.",
    parameters(
        ["question"],
        question={"type": "string", "description": "one question that can be answered without the chat"},
    ),
    _ask,
)
