"""The API's documentation page in a real browser, without a network."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.processes import Start

DUMP = ("--virtual-time-budget=8000", "--dump-dom")


@pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="chromium is not installed")
def test_the_documentation_renders_from_our_own_assets(api_process: Start, tmp_path: Path) -> None:
    assert CHROMIUM is not None, "CI must have chromium"
    url = api_process().ready()["url"]
    page = subprocess.run(
        [CHROMIUM, *FLAGS, *DUMP, f"--user-data-dir={tmp_path}", f"{url}/docs"],
        capture_output=True, text=True, timeout=90, check=True,
    ).stdout  # fmt: skip
    assert "Post a turn to a conversation" in page
    assert "https://cdn." not in page
