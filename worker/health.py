"""`/metrics`, `/livez` and `/readyz` of a worker, served from the upkeep loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from worker import metrics

NotReady = Callable[[], str | None]
"""None, or one line why this worker does not take work."""
LAST_ANSWERS_SECONDS: Final = 1.0
"""How long an answer that is under way may take when the worker ends."""


async def serve(sock: socket.socket, not_ready: NotReady) -> web.AppRunner:
    """Start serving on a listening socket; the caller cleans the runner up."""

    async def show(_request: web.Request) -> web.Response:
        return web.Response(body=exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(text="ok\n" if why is None else f"{why}\n", status=200 if why is None else 503)

    application = web.Application()
    application.add_routes([web.get("/metrics", show), web.get("/livez", live), web.get("/readyz", ready)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=LAST_ANSWERS_SECONDS)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    return runner


def exposition() -> bytes:
    """All metrics as text: this process's own or, with the prefork pool, those of all its children."""
    folder = os.environ.get(metrics.FOLDER)
    if folder is None:
        return generate_latest(metrics.REGISTRY)
    _forget_the_dead(Path(folder))
    together = CollectorRegistry()
    MultiProcessCollector(together)  # type: ignore[no-untyped-call]  # the library types none of it
    return generate_latest(together)


def _forget_the_dead(folder: Path) -> None:
    """A child that was killed still says what it had in flight; its counters stay, they happened."""
    for path in folder.glob("gauge_live*.db"):
        pid = int(path.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
