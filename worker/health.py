"""`/metrics`, `/livez` and `/readyz` of a worker, served from the upkeep loop."""

from __future__ import annotations

import socket
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from worker import metrics

NotReady = Callable[[], str | None]
"""None, or one line why this worker does not take work."""


async def serve(sock: socket.socket, not_ready: NotReady) -> web.AppRunner:
    """Start serving on a listening socket; the caller cleans the runner up."""

    async def show(_request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(text="ok\n" if why is None else f"{why}\n", status=200 if why is None else 503)

    application = web.Application()
    application.add_routes([web.get("/metrics", show), web.get("/livez", live), web.get("/readyz", ready)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    return runner
