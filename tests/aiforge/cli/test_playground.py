"""What `aiforge playground` refuses; the page itself is in tests/browser and tests/aiforge/chat."""

from __future__ import annotations

import socket

from tests.aiforge.cli.command import Room


def test_a_port_that_cannot_be(room: Room) -> None:
    assert room.run("playground", "--port=0", AIFORGE_PROVIDER="offline").code == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = room.run("playground", f"--port={port}", AIFORGE_PROVIDER="offline")
    assert ended.code == 3
    assert f"--port: {port} is taken" in ended.err


def test_an_endpoint_of_ones_own_needs_a_key(room: Room) -> None:
    ended = room.run("playground", AIFORGE_OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    assert ended.code == 3
    assert "set OPENAI_API_KEY" in ended.err


def test_a_wrong_setting(room: Room) -> None:
    ended = room.run("playground", AIFORGE_TEMPERATURE="hot")
    assert ended.code == 3
    assert "AIFORGE_TEMPERATURE" in ended.err
