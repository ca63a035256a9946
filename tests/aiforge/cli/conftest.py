"""What the tests of single commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aiforge.cli.command import QUESTIONS, Desk, Room


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Room:
    return Room(tmp_path, monkeypatch, capsys)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """With a file of questions, `in.jsonl`; no process may be left of what was started here."""
    made = Desk(tmp_path)
    (made.folder / "in.jsonl").write_text(QUESTIONS)
    yield made
    made.close()
    made.must_be_empty()
