"""The contract's scripts: each with the shared steps that it names, and no others.

Redis runs all of a script's text with every call, so a step that it does not need would cost time there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from typing import Final

_STEP: Final = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_STRING: Final = re.compile(r"'[^'\n]*'")
_COMMENT: Final = re.compile(r"('[^'\n]*')| *--.*")
_WORD: Final = re.compile(r"\w+")


class Script:
    """One Lua script, ready to run, and its digest."""

    __slots__ = ("digest", "name", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def load_scripts(folder: Traversable | None = None) -> dict[str, Script]:
    """Every script of the contract by its name; the steps that they share stand in the folder's `steps`."""
    folder = folder or files("worker.contract").joinpath("scripts")
    return linked(_texts(folder), _texts(folder.joinpath("steps")).values())


def linked(scripts: Mapping[str, str], shared: Iterable[str]) -> dict[str, Script]:
    """Scripts by name, from what stands in their files and in those of the steps."""
    steps = {name: text for file in shared for name, text in steps_of(file)}
    return {name: Script(name, "".join(_parts(_code(body), steps))) for name, body in scripts.items()}


def steps_of(file: str) -> list[tuple[str, str]]:
    """The functions and constants of a file, by name."""
    code = _code(file)
    begins = [*(step.start() for step in _STEP.finditer(code)), len(code)]
    parts = [code[begin:end] for begin, end in pairwise(begins)]
    return [(_STEP.findall(part)[0], part) for part in parts]


def _texts(folder: Traversable) -> dict[str, str]:
    return {
        path.name.removesuffix(".lua"): path.read_text(encoding="utf-8")
        for path in folder.iterdir()
        if path.name.endswith(".lua")
    }


def _code(text: str) -> str:
    """Without comments and empty lines."""
    lines = (_COMMENT.sub(lambda found: found[1] or "", line) for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def _parts(body: str, steps: Mapping[str, str]) -> list[str]:
    """The steps that are named, each behind those that it names itself, and the body."""
    known: set[str] = set()
    parts: list[str] = []

    def add(text: str) -> None:
        for word in _WORD.findall(_STRING.sub("", text)):
            if word in steps and word not in known:
                known.add(word)
                add(steps[word])
        parts.append(text)

    add(body)
    return parts
