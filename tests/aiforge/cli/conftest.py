"""What the tests of single commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aiforge.cli.command import Room


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Room:
    return Room(tmp_path, monkeypatch, capsys)
