"""A small MCP server, over stdio or, given a port, over HTTP."""

from __future__ import annotations

import os
import sys

from mcp.server.fastmcp import FastMCP, Image

server = FastMCP("tides", port=int(sys.argv[1]) if len(sys.argv) > 1 else 0, log_level="ERROR")


@server.tool()
def tide(place: str, day: int = 1) -> str:
    """When the tide comes."""
    return f"at {place} on day {day}: six"


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("no water today")


@server.tool()
def variable(name: str) -> str:
    """A variable of the server's environment, and its process."""
    return f"{os.environ.get(name)} {os.getpid()}"


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"png", format="png")


if __name__ == "__main__":
    server.run("streamable-http" if len(sys.argv) > 1 else "stdio")
