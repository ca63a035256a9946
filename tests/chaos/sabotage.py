"""The worker with one of its rules taken out, to see whether the oracle misses it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import worker

FENCE: Final = " or record[2] ~= ARGV[2] then return { 'refused', '' } end"
"""What refuses the commit of an attempt whose turn was given to another."""


def without_fence(folder: Path) -> Path:
    """A checkout whose commits look at the turn's state only; for `Plan.code`."""
    copy = folder / "worker"
    shutil.copytree(Path(worker.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    script = copy / "contract" / "scripts" / "finish.lua"
    whole = script.read_text(encoding="utf-8")
    assert whole.count(FENCE) == 1
    script.write_text(whole.replace(FENCE, " then return { 'refused', '' } end"), encoding="utf-8")
    return folder
