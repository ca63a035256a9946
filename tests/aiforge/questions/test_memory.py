"""A file is never held: reading, continuing and ordering take the same memory for any number of rows."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from aiforge.questions.reading import opened
from tests.aiforge.questions.support import answer

MEBIBYTES = 1024 * 1024
ROWS = 4_000


@pytest.mark.soak
def test_a_large_file_is_read_answered_and_continued_in_little_memory(tmp_path: Path) -> None:
    """12 MB of questions; holding only their texts would take as much."""
    with (tmp_path / "in.csv").open("w") as file:
        file.write("id,question\n")
        file.writelines(f"n{number},{'word ' * 600}{number}?\n" for number in range(ROWS))
    assert (tmp_path / "in.csv").stat().st_size > 11 * MEBIBYTES
    tracemalloc.start()
    try:
        with opened(str(tmp_path / "in.csv")) as found:
            assert len(answer(tmp_path / "out.csv", found, limit=ROWS // 2)) == ROWS // 2
            assert len(answer(tmp_path / "out.csv", found)) == ROWS // 2
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * MEBIBYTES, peak
