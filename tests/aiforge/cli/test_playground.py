"""What `aiforge playground` refuses; the page itself is in tests/browser and tests/aiforge/chat."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.aiforge.cli.command import Desk


def test_a_port_that_cannot_be(tmp_path: Path) -> None:
    desk = Desk(tmp_path, AIFORGE_PROVIDER="offline")
    assert desk.run("playground", "--port=0").code == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = desk.run("playground", f"--port={port}")
    assert ended.code == 3
    assert f"--port: {port} is taken" in ended.err


def test_an_endpoint_of_ones_own_needs_a_key(tmp_path: Path) -> None:
    ended = Desk(tmp_path, AIFORGE_OPENAI_BASE_URL="http://127.0.0.1:1/v1").run("playground")
    assert ended.code == 3
    assert "set OPENAI_API_KEY" in ended.err


def test_a_wrong_setting(tmp_path: Path) -> None:
    ended = Desk(tmp_path, AIFORGE_TEMPERATURE="hot").run("playground")
    assert ended.code == 3
    assert "AIFORGE_TEMPERATURE" in ended.err
