"""`python -m api`: the HTTP service as a process.

Exit codes: 0 after a signal, 1 when the store cannot be reached, 3 for a wrong setting.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from typing import Final

import uvicorn
import uvloop
from prometheus_client import disable_created_metrics

from aiforge.core.types import ConfigError
from api.app import create_app
from api.openapi import Application
from api.settings import ApiSettings, load
from api.state import Service
from api.stopping import stop
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable
from worker.contract.logs import Forward
from worker.contract.server.fitness import check_redis
from worker.contract.service import announce, check, ignore_signals, listen, say, taken, url

_GRACE_SECONDS: Final = 10
"""How long requests may take to end once the process was asked to stop; streams end at once."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """Uvicorn that says when it is ready and lets streams end before it waits for connections."""

    def __init__(self, app: Application, sock: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._sock = sock
        self._service: Service = app.state.service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        address = url(self._sock)
        say(f"api: ready at {address} (documentation at {address}/docs)")
        announce(url=address, taken=taken(self._service.settings.api_port, self._sock))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.streams.drain()
        await super().shutdown(sockets)


def main() -> int:
    try:
        settings = load()
        check(settings)
        chosen = "api_port" in settings.model_fields_set
        sock = listen(settings.api_host, settings.api_port, setting="API", chosen=chosen)
    except ConfigError as error:
        return _failed(str(error), 3)
    if port := taken(settings.api_port, sock):
        say(f"api: port {port} is taken, using {sock.getsockname()[1]}")
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library types none of it
    with sock:
        try:
            uvloop.run(_serve(settings, sock))
        except Unavailable as error:
            return _failed(str(error), 1)
        except ConfigError as error:
            return _failed(str(error), 3)
        finally:
            ignore_signals()
    return 0


async def _serve(settings: ApiSettings, sock: socket.socket) -> None:
    client = await _connected(settings)
    if client is None:
        return
    async with client:
        app = create_app(settings, client)
        service: Service = app.state.service
        logging.basicConfig(handlers=[Forward(service.log)], level=settings.log_level.upper())
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, _obeyed)
        await Server(app, sock).serve(sockets=[sock])


async def _connected(settings: ApiSettings) -> TurnClient | None:
    """A client, or None when a signal comes first."""
    signalled = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    connecting = asyncio.create_task(_checked(settings))
    leaving = asyncio.create_task(signalled.wait())
    await asyncio.wait((connecting, leaving), return_when=asyncio.FIRST_COMPLETED)
    if connecting.done():
        await stop(leaving)
        return connecting.result()
    await stop(connecting)
    return None


async def _checked(settings: ApiSettings) -> TurnClient:
    """A client of a Redis that can be trusted; raises ConfigError when it cannot."""
    try:
        client = await TurnClient.connect(settings)
    except Unavailable:
        # It may know better why: what no waiting mends is a matter of settings.
        await asyncio.to_thread(check_redis, settings)
        raise
    try:
        for warning in await asyncio.to_thread(check_redis, settings):
            say(f"api: {warning}")
    except ConfigError:
        await client.close()
        raise
    return client


def _failed(message: str, code: int) -> int:
    say(f"api: {message}")
    return code


def _obeyed(_number: int, _frame: object) -> None:
    """Uvicorn raises the signals it caught once more when it has obeyed them."""


if __name__ == "__main__":
    sys.exit(main())
