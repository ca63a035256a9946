"""The API's documentation page in a real browser, without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import Start

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-sync",
    "--virtual-time-budget=8000",
    "--dump-dom",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="chromium is not installed")
def test_the_documentation_renders_from_our_own_assets(api_process: Start, tmp_path: Path) -> None:
    assert CHROMIUM is not None, "CI must have chromium"
    url = api_process().ready()["url"]
    page = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path}", f"{url}/docs"],
        capture_output=True, text=True, timeout=90, check=True,
    ).stdout  # fmt: skip
    assert "Post a turn to a conversation" in page
    assert "https://cdn." not in page
