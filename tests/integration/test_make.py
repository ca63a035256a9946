"""Ctrl-C while `make` installs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not on the PATH")
def test_ctrl_c_ends_the_installation_without_a_traceback(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    make = subprocess.Popen(
        ["make", "venv"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # From here on the new environment's own installer runs, which takes seconds.
        wait_until((tmp_path / ".venv" / "bin" / "python").exists, 30)
        os.killpg(make.pid, signal.SIGINT)
        _, said = make.communicate(timeout=20)
    finally:
        if make.poll() is None:
            os.killpg(make.pid, signal.SIGKILL)
    assert make.returncode != 0
    assert "making .venv with" in said
    assert "Traceback" not in said
    assert "Terminated" not in said
