"""download_file_tool: a file of the web, into the workspace."""

from __future__ import annotations

import asyncio

from aiforge.core.settings import AIForgeSettings
from aiforge.tools.fetch import fetch
from aiforge.tools.tool import AsyncTool, ShippedTool, parameters
from aiforge.tools.workspace import LARGEST_FILE, Workspace


def tools(settings: AIForgeSettings) -> tuple[ShippedTool, ...]:
    """The tool that fills the folder `WORKSPACE`."""
    workspace = Workspace(settings.WORKSPACE)

    async def download(url: str, path: str) -> str:
        data = await fetch(
            url, most=LARGEST_FILE, seconds=settings.TOOL_TIMEOUT, private=settings.PRIVATE_DOWNLOADS
        )
        await asyncio.to_thread(workspace.write, path, data)
        return f"{path}: {len(data)} bytes"

    return (
        AsyncTool(
            "download_file_tool",
            "Download a file into the workspace.",
            parameters(
                ["url", "path"],
                url={"type": "string", "description": "an http or https address"},
                path={"type": "string", "description": "where in the workspace, such as papers/a.pdf"},
            ),
            download,
        ),
    )
