"""`aiforge playground` in a real browser: a streamed answer, a tool, the list and the costs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from aiforge.testing import FakeProvider, Gate, Reply, ToolCall
from tests.support.chromium import CHROMIUM, tab
from tests.support.waiting import wait_until


@pytest.fixture
def playground(provider: FakeProvider, tmp_path: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIFORGE_", "OPENAI_"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "aiforge.cli", "playground", f"--port={port}"],
        cwd=tmp_path,
        env={**kept, "AIFORGE_OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": "sk-test"},
        stdin=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: process.poll() is not None or _answers(url), 60)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/_stcore/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="chromium is not installed")
def test_a_chat_in_the_browser(playground: str, provider: FakeProvider, tmp_path: Path) -> None:
    assert CHROMIUM is not None, "CI must have chromium"
    provider.push(
        Reply(chunks=["The tide ", "comes ", Gate("rest"), "at six."]),
        Reply(tool_calls=[ToolCall("calculator", {"expression": "249.99 * 0.85"})]),
        "It costs 212.49 after the discount.",
    )
    with tab(playground, tmp_path / "browser") as page:
        page.type("textarea", "When does the tide come?")
        page.wait_for("The tide comes")
        assert "at six." not in page.text
        provider.open("rest")
        page.wait_for("The tide comes at six.")
        page.wait_for("gpt-4o-mini ·")
        page.click("calculator")
        page.type("textarea", "What is 249.99 less 15 percent?")
        page.wait_for("It costs 212.49 after the discount.")
        page.wait_for("212.4915")
        page.wait_for("Cost")
        page.picture(Path(os.environ.get("PLAYGROUND_PICTURES", tmp_path)) / "playground.png")
        shown = page.text
    assert shown.count("When does the tide come?") == 2, "in the conversation and in the list"
    assert [tool["function"]["name"] for tool in provider.calls[1].body["tools"]] == ["calculator"]
