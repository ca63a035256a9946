"""Where the children of the prefork pool keep their counts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from worker.pools.prefork import held_folder, remove_abandoned_folders


def test_what_a_killed_worker_leaves_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lives, holds = held_folder()
    dead, held = held_folder()
    for folder in (lives, dead):
        (folder / "counter_1.db").touch()
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / f"{dead.name}-link").symlink_to(other)
    try:
        remove_abandoned_folders()
        assert (lives.exists(), dead.exists()) == (True, True)
        inherited = os.dup(held)
        os.close(held)
        remove_abandoned_folders()
        assert dead.exists(), "a child lives"
        os.close(inherited)
        remove_abandoned_folders()
        assert (lives.exists(), dead.exists(), other.exists()) == (True, False, True)
    finally:
        os.close(holds)
