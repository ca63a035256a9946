"""The contract's scripts: each with the shared steps that it names, and no others.

Redis runs all of a script's text with every call, so a step that it does not need would cost time there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final, NamedTuple

_STEP: Final = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_WORD: Final = re.compile(r"\w+")
_SHARED: Final = "prelude"


class Script:
    """One Lua script, ready to run, and its digest."""

    __slots__ = ("digest", "name", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class _Step(NamedTuple):
    """A function or constant that scripts share."""

    name: str
    text: str


def load_scripts() -> dict[str, Script]:
    """Every script of the contract by its name."""
    return linked(
        {
            path.name.removesuffix(".lua"): path.read_text(encoding="utf-8")
            for path in files("worker.contract").joinpath("scripts").iterdir()
            if path.name.endswith(".lua")
        }
    )


def linked(texts: Mapping[str, str]) -> dict[str, Script]:
    """Scripts by name from what stands in their files."""
    steps = list(_steps(texts[_SHARED]))
    return {
        name: Script(name, f"{_needed(body, steps)}\n{body}")
        for name, body in texts.items()
        if name != _SHARED
    }


def _steps(shared: str) -> Iterator[_Step]:
    found = list(_STEP.finditer(shared))
    for one, following in zip(found, [*found[1:], None], strict=True):
        yield _Step(one[1], shared[one.start() : following.start() if following else len(shared)])


def _needed(body: str, steps: list[_Step]) -> str:
    """The steps that are named, in order; a step is named only behind where it stands."""
    words = set(_WORD.findall(body))
    chosen: list[str] = []
    for step in reversed(steps):
        if step.name in words:
            chosen.append(_code(step.text))
            words.update(_WORD.findall(chosen[-1]))
    return "\n".join(reversed(chosen))


def _code(text: str) -> str:
    """Without the comments between steps."""
    return "\n".join(line for line in text.splitlines() if line and not line.startswith("--"))
