"""Which column holds the question, and which the caller's own id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from unicodedata import normalize

from aiforge.questions.errors import UnclearError

_OTHER_NAMES: Final = frozenset({
    "questions", "questiontext", "frage", "fragen", "pregunta", "preguntas", "domanda", "domande",
    "pergunta", "perguntas", "vraag", "vragen", "spørgsmål", "spørsmål", "fråga", "frågor",
    "kysymys", "pytanie", "otázka", "kérdés", "întrebare", "pitanje", "vprašanje", "soru", "вопрос",
    "вопросы", "питання", "въпрос", "ερώτηση", "سؤال", "السؤال", "שאלה", "質問", "问题", "問題", "질문",
})  # fmt: skip
"""Names of a column of questions where there is none of the others."""
QUESTION_NAMES: Final = frozenset({"question", "prompt", "query", "q", "text", "input", "message", "qen"})
"""As `plain` has them: any case, without spaces, `_` and `-`."""
ID_NAMES: Final = ("id", "customid")
CONVERSATION_NAMES: Final = ("conversation", "conversationid")


_LONGEST: Final = 1000
"""Of a name so many characters are looked at: what is longer is a text that may have 10 MB."""


_UNSEEN: Final = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
"""What no one sees: marks of direction, joiners, soft hyphens, byte order marks."""
_WRITTEN_DIFFERENTLY: Final = re.compile(rf"[\s_?¿:*{_UNSEEN}-]+")


def plain(name: str) -> str:
    """A column's name without what people write differently."""
    return _WRITTEN_DIFFERENTLY.sub("", normalize("NFKC", name[:_LONGEST])).casefold()


def shown(columns: Iterable[str]) -> str:
    """Names of columns as one line for people."""
    return ", ".join(" ".join(name.split()) for name in columns)


def is_question(name: str) -> bool:
    return plain(name) in QUESTION_NAMES or plain(name) in _OTHER_NAMES


def question_column(columns: Sequence[str], wanted: str | None, name: str) -> str:
    """The column that was asked for, or the only one that is known to hold questions, or the only one."""
    if wanted is not None:
        return existing(columns, wanted, "--column")
    found = [column for column in columns if plain(column) in QUESTION_NAMES]
    found = found or [column for column in columns if is_question(column)]
    if len(found) == 1:
        return found[0]
    if not found and len(columns) == 1:
        if any(map(is_question, words := re.split(r"""[^\w -]+""", columns[0]))) and len(words) > 1:
            raise UnclearError(
                f"{name}: {columns[0]!r} could be one column or several; name it with --column,"
                " or say --delimiter"
            )
        return columns[0]
    which = "several columns could hold" if found else "no column is known to hold"
    raise UnclearError(f"{name}: {which} the question; name one with --column: {shown(found or columns)}")


def id_column(columns: Sequence[str], wanted: str | None, question: str) -> str | None:
    """The column that was asked for, or the first that is known to hold ids, or none."""
    if wanted is not None:
        return existing(columns, wanted, "--id-column")
    others = [column for column in columns if column != question]
    return next((column for known in ID_NAMES for column in others if plain(column) == known), None)


def conversation_column(
    columns: Sequence[str], wanted: str | None, taken: Sequence[str | None]
) -> str | None:
    """The column that was asked for, none for '', or the first that is known to name conversations."""
    if wanted == "":
        return None
    if wanted is not None:
        return existing(columns, wanted, "--conversation-column")
    others = [column for column in columns if column not in taken]
    known = (column for name in CONVERSATION_NAMES for column in others if plain(column) == name)
    return next(known, None)


def existing(columns: Sequence[str], wanted: str, option: str) -> str:
    """The column of that name, or the only one that differs in case, spaces, `_` and `-` alone."""
    if wanted in columns:
        return wanted
    alike = [column for column in columns if plain(column) == plain(wanted)]
    if len(alike) == 1:
        return alike[0]
    raise UnclearError(f"{option}: there is no column {wanted!r}; there are: {shown(columns)}")
