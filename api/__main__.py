"""`python -m api`: the HTTP service as a process.

Exit codes: 0 after a signal, 1 when the store cannot be reached, 3 for a wrong setting.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from typing import Final

import uvicorn
import uvloop
from prometheus_client import disable_created_metrics

from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError
from api.app import create_app
from api.listen import listen, url
from api.logs import Forward
from api.openapi import Application
from api.settings import DEFAULT_PORT, ApiSettings, load
from api.state import Service
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable

_GRACE_SECONDS: Final = 10
"""How long requests may take to end once the process was asked to stop; streams end at once."""
READY_FD: Final = "AIFORGE_READY_FD"


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
        _announce(url(self._sock))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.streams.drain()
        await super().shutdown(sockets)


def main() -> int:
    try:
        settings = load()
        _check(settings)
        sock = listen(settings)
    except ConfigError as error:
        return _failed(str(error), 3)
    _mention_move(settings, sock)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library types none of it
    # Before uvicorn serves, and when it repeats a signal after it has obeyed it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    with sock:
        try:
            uvloop.run(_serve(settings, sock))
        except Unavailable as error:
            return _failed(str(error), 1)
    return 0


async def _serve(settings: ApiSettings, sock: socket.socket) -> None:
    async with await TurnClient.connect(settings) as client:
        app = create_app(settings, client)
        service: Service = app.state.service
        logging.basicConfig(handlers=[Forward(service.log)], level=settings.log_level.upper())
        await Server(app, sock).serve(sockets=[sock])


def _check(settings: ApiSettings) -> None:
    if settings.redis_url is None:
        raise ConfigError(
            "AIFORGE_REDIS_URL: not set; set it, or start with `aiforge up`, which brings a server of its own"
        )
    library = AIForgeSettings.load()
    if library.PROVIDER == "openai" and library.OPENAI_API_KEY is None:
        raise ConfigError(
            "AIFORGE_OPENAI_API_KEY: provider openai needs a key; set it, or AIFORGE_PROVIDER=offline"
        )


def _mention_move(settings: ApiSettings, sock: socket.socket) -> None:
    port = sock.getsockname()[1]
    if settings.api_port and port != settings.api_port:
        _say(f"api: port {DEFAULT_PORT} is taken, using {port}")


def _announce(address: str) -> None:
    _say(f"api: ready at {address} (documentation at {address}/docs)")
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), "w") as ready:
            ready.write(json.dumps({"url": address}) + "\n")


def _failed(message: str, code: int) -> int:
    _say(f"api: {message}")
    return code


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
