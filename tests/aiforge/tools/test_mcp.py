"""Tools of a real MCP server, over stdio and over HTTP."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiforge import ChatAgent, ConfigError
from aiforge.core.settings import AIForgeSettings
from aiforge.testing import ScriptedModel, ToolCall
from aiforge.tools.binding import bind
from aiforge.tools.mcp import load_mcp_tools, open_mcp
from tests.aiforge.chat.support import run
from tests.support.waiting import wait_until

SERVER = str(Path(__file__).with_name("mcp_server.py"))
STDIO: dict[str, Any] = {"command": sys.executable, "args": [SERVER]}


def settings_of(**servers: dict[str, Any]) -> AIForgeSettings:
    return AIForgeSettings.load(MCP_SERVERS=servers, TOOL_TIMEOUT=30)


@pytest.fixture(scope="module")
def over_http() -> Iterator[dict[str, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port, process), 30)
        yield {"url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the MCP server ended"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def chat(settings: AIForgeSettings, *calls: ToolCall) -> list[str | None]:
    """What the tools give to an agent that makes these calls one after the other, over one session."""

    async def chatting() -> list[str | None]:
        async with open_mcp(settings) as tools:
            agent = ChatAgent(llm=ScriptedModel(replies=[*calls, "done"]), tools=tools, max_tool_iterations=9)
            return [record.output for record in (await agent.achat("Go")).tool_calls]

    return run(chatting())


CALLS = (
    ToolCall("tides_tide", {"place": "Brest"}),
    ToolCall("tides_tide", {"place": "Brest", "day": 3}),
    ToolCall("tides_fail", {}),
    ToolCall("tides_picture", {}),
)
OUTPUTS = ["at Brest on day 1: six", "at Brest on day 3: six", "no water today", "[image]"]


def _expect(outputs: list[str | None]) -> None:
    assert all(wanted in (output or "") for output, wanted in zip(outputs, OUTPUTS, strict=True)), outputs


def test_over_stdio() -> None:
    _expect(chat(settings_of(tides=STDIO), *CALLS))


def test_over_http(over_http: dict[str, Any]) -> None:
    _expect(chat(settings_of(tides=over_http), *CALLS))


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_session_for_each_call(transport: str, over_http: dict[str, Any]) -> None:
    """The tools then serve agents of any event loop, those of plain functions too."""
    tools = load_mcp_tools(settings_of(tides=STDIO if transport == "stdio" else over_http))
    assert [tool.name for tool in tools] == ["tides_tide", "tides_fail", "tides_variable", "tides_picture"]
    agent = ChatAgent(llm=ScriptedModel(replies=[CALLS[0], "done"]), tools=tools)
    assert agent.chat("Go").tool_calls[0].output == OUTPUTS[0]


def test_the_model_is_told_the_arguments() -> None:
    (tide,) = bind(load_mcp_tools(settings_of(tides={**STDIO, "tools": ["tide"]})))
    function = tide.schema["function"]
    assert function["description"] == "When the tide comes."
    assert function["parameters"]["required"] == ["place"]
    assert function["parameters"]["properties"]["day"]["type"] == "integer"


def test_one_session_for_all_calls() -> None:
    async def pids() -> tuple[str, str]:
        async with open_mcp(settings_of(tides={**STDIO, "tools": ["variable"]})) as (tool,):
            return await tool.invoke({"name": "X"}), await tool.invoke({"name": "X"})

    first, second = run(pids())
    assert first == second


def test_what_goes_wrong_in_the_block_comes_out_as_it_is() -> None:
    async def failing() -> None:
        async with open_mcp(settings_of(tides={**STDIO, "tools": ["tide"]})):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(failing())


def test_a_server_gets_its_own_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("SEA", "north")
    settings = settings_of(tides={**STDIO, "env": {"TOKEN": "canary", "WHERE": "${SEA}"}})
    calls = [ToolCall("tides_variable", {"name": name}) for name in ("OPENAI_API_KEY", "TOKEN", "WHERE")]
    outputs = chat(settings, *calls)
    assert [str(output).split()[0] for output in outputs] == ["None", "canary", "north"]
    assert "canary" not in repr(settings)


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ({"command": "/no/such/program"}, "cannot be used"),
        ({"url": "http://127.0.0.1:1/mcp"}, "cannot be used"),
        ({"command": sys.executable, "args": ["-c", "pass"]}, "cannot be used"),
        ({**STDIO, "tools": ["ebb"]}, "has no tool 'ebb'; it has tide"),
    ],
)
def test_a_server_that_is_none(server: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"MCP server 'tides' {problem}"):
        load_mcp_tools(settings_of(tides=server))

    async def opened() -> None:
        async with open_mcp(settings_of(tides=server)):
            pass

    with pytest.raises(ConfigError, match=f"MCP server 'tides' {problem}"):
        run(opened())


@pytest.mark.parametrize("server", [{}, {"command": "a", "url": "http://b"}, {"command": "a", "port": 1}])
def test_a_setting_that_is_wrong(server: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="MCP_SERVERS"):
        settings_of(tides=server)
    with pytest.raises(ConfigError, match="MCP_SERVERS"):
        load_mcp_tools(settings_of(**{"a b": STDIO}))


def test_servers_come_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aiforge.yaml").write_text(
        f"MCP_SERVERS:\n  tides:\n    command: {sys.executable}\n    args: ['{SERVER}']\n    tools: [tide]\n"
    )
    assert [tool.name for tool in load_mcp_tools()] == ["tides_tide"]
