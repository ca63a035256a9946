"""A workspace for the tests of tools, with a secret beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from aiohttp import web

from aiforge.core.settings import AIForgeSettings
from aiforge.tools.binding import bind
from aiforge.tools.registry import names, resolve
from tests.aiforge.chat.support import run

SECRET = "the secret beside the workspace"
FAMILIES = ("FILE_TOOLS", "EXPERIENCE_TOOLS", "COMMAND_TOOLS", "DOWNLOAD_TOOLS", "WEB_TOOLS")


class Desk:
    """The tools of a workspace, called as the engine calls them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.outside = folder
        self.root = folder / "work"
        self.root.mkdir()
        (folder / "secret.txt").write_text(SECRET)
        (folder / "work-secret").mkdir()
        (folder / "work-secret" / "secret.txt").write_text(SECRET)
        switched = dict.fromkeys(FAMILIES, True)
        given = {"WORKSPACE": self.root, "WEB_SEARCH_URL": "http://127.0.0.1:1/search"}
        self.settings = AIForgeSettings.load(**{**switched, **given, **settings})
        offered = sorted(names(self.settings))
        self._tools = {tool.name: tool for tool in bind(resolve(offered, self.settings))}

    def use(self, tool: str, /, **arguments: Any) -> str:
        """What the tool returns; raises what it raises."""

        async def call() -> Any:
            return await self._tools[tool].call(arguments)

        output = run(call())
        assert isinstance(output, str)
        return output


@contextmanager
def site(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Iterator[str]:
    """A web server of this test, in a thread of its own; yields its address."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[web.AppRunner, str]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    runner, url = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
