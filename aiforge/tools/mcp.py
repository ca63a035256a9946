"""Tools of MCP servers: which servers there are is a setting, never part of a request.

    agent = ChatAgent(tools=load_mcp_tools())          # each call has a session of its own
    async with open_mcp() as tools:                    # one session for all calls
        agent = ChatAgent(tools=tools)

A tool is named `server_tool`. Sessions of their own work from any event loop; a server that is a program
is then started for each call, which `open_mcp` saves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from langchain_core.tools import BaseTool

from aiforge.core import bridge
from aiforge.core.setting_types import McpServer
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers accept as the name of a tool."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of an MCP server. What it returns besides text is named, not shown."""

    name: str
    description: str
    parameters: dict[str, Any]
    inner: BaseTool

    async def invoke(self, arguments: dict[str, Any]) -> str:
        """Raises what the server says is wrong."""
        try:
            return _text(await self.inner.ainvoke(arguments))
        except BaseExceptionGroup as group:
            raise _first(group) from None


def load_mcp_tools(settings: AIForgeSettings | None = None) -> list[McpTool]:
    """`mcp_tools` outside of async code."""
    return bridge.run(mcp_tools(settings))


async def mcp_tools(settings: AIForgeSettings | None = None) -> list[McpTool]:
    """The tools of all servers of `MCP_SERVERS`, in their order.

    Raises ConfigError, naming the server, when one cannot be reached or has no such tool.
    """
    settings = settings or AIForgeSettings.load()
    adapters = _adapters(settings)
    found = [
        await _load(adapters, name, server, None, settings) for name, server in settings.MCP_SERVERS.items()
    ]
    return [tool for tools in found for tool in tools]


@asynccontextmanager
async def open_mcp(settings: AIForgeSettings | None = None) -> AsyncIterator[list[McpTool]]:
    """The same over one session a server, which ends with the block; for use in this event loop only."""
    settings = settings or AIForgeSettings.load()
    adapters = _adapters(settings)
    ended = asyncio.Event()
    holders: list[asyncio.Task[None]] = []
    try:
        tools: list[McpTool] = []
        for name, server in settings.MCP_SERVERS.items():
            session: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            connection = _connection(server, settings)
            holders.append(asyncio.create_task(_hold(adapters, connection, session, ended)))
            try:
                async with asyncio.timeout(settings.TOOL_TIMEOUT):
                    opened = await session
            except Exception as error:  # whatever the packages raise becomes one clear error
                raise _unusable(name, error) from error
            tools += await _load(adapters, name, server, opened, settings)
        yield tools
    finally:
        ended.set()
        await _collect(holders, settings.CONNECT_TIMEOUT)


async def _hold(
    adapters: _Adapters, connection: dict[str, Any], session: asyncio.Future[Any], ended: asyncio.Event
) -> None:
    """Keep one session open in a task of its own: what happens inside the caller's block stays there."""
    try:
        async with adapters.connect(connection) as opened:
            await opened.initialize()
            session.set_result(opened)
            await ended.wait()
    except Exception as error:  # noqa: BLE001  # whatever the packages raise is told to whoever waits
        if not session.done():
            session.set_exception(error)


async def _collect(holders: list[asyncio.Task[None]], seconds: float) -> None:
    """Wait for the sessions to close; those that do not are cancelled."""
    if holders:
        _, late = await asyncio.wait(holders, timeout=seconds)
        for holder in late:
            holder.cancel()
        await asyncio.gather(*holders, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Adapters:
    """The functions of the package that speaks MCP."""

    load: Any
    connect: Any


def _adapters(settings: AIForgeSettings) -> _Adapters:
    for name in settings.MCP_SERVERS:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"MCP_SERVERS: a name is made of letters, digits, _ and -, unlike {name!r}")
    try:
        # An extra, and a second of imports: loaded where servers are used.
        return _Adapters(
            import_module("langchain_mcp_adapters.tools").load_mcp_tools,
            import_module("langchain_mcp_adapters.sessions").create_session,
        )
    except ImportError:
        raise ConfigError("MCP servers need a package of their own: pip install aiforge[mcp]") from None


async def _load(
    adapters: _Adapters, name: str, server: McpServer, session: Any, settings: AIForgeSettings
) -> list[McpTool]:
    """The tools of one server, over `session` or else each call over a session of its own."""
    try:
        async with asyncio.timeout(settings.TOOL_TIMEOUT):
            found: Sequence[BaseTool] = await adapters.load(
                session, connection=_connection(server, settings), server_name=name, handle_tool_errors=False
            )
    except Exception as error:  # whatever the packages raise becomes one clear error
        raise _unusable(name, error) from error
    known = {tool.name: tool for tool in found}
    wanted = list(known) if server.tools is None else server.tools
    for tool in wanted:
        if tool not in known:
            raise ConfigError(f"MCP server {name!r} has no tool {tool!r}; it has {', '.join(known)}")
        if not _NAME.fullmatch(f"{name}_{tool}"):
            raise ConfigError(f"MCP server {name!r}: no provider takes a tool of the name {name}_{tool}")
    return [_tool(f"{name}_{tool}", known[tool]) for tool in wanted]


def _tool(name: str, inner: BaseTool) -> McpTool:
    schema = inner.args_schema
    parameters = schema if isinstance(schema, dict) else inner.get_input_jsonschema()
    return McpTool(name, inner.description, {"type": "object", "properties": {}, **parameters}, inner)


def _connection(server: McpServer, settings: AIForgeSettings) -> dict[str, Any]:
    if server.url is not None:
        return {
            "transport": "streamable_http",
            "url": server.url,
            "headers": _plain(server.headers),
            "timeout": settings.CONNECT_TIMEOUT,
            "sse_read_timeout": settings.TOOL_TIMEOUT,
        }
    return {
        "transport": "stdio",
        "command": server.command,
        "args": server.args,
        "env": _plain(server.env),
        "cwd": server.cwd,
    }


def _plain(secrets: dict[str, Any]) -> dict[str, str] | None:
    return {name: secret.get_secret_value() for name, secret in secrets.items()} or None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    return "\n".join(_block(block) for block in blocks)


def _block(block: Any) -> str:
    if isinstance(block, dict) and block.get("type") == "text":
        return str(block.get("text", ""))
    kind = block.get("type", "content") if isinstance(block, dict) else type(block).__name__
    return f"[{kind}]"


def _unusable(name: str, error: BaseException) -> ConfigError:
    cause = _first(error)
    return ConfigError(f"MCP server {name!r} cannot be used: {cause or type(cause).__name__}")


def _first(error: BaseException) -> Exception:
    """The error that a group of a task group holds, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
