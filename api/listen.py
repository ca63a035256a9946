"""The listening socket, by the rules for ports, and the address under which it can be reached."""

from __future__ import annotations

import errno
import socket
from typing import Final

from aiforge.core.types import ConfigError
from api.settings import ApiSettings

_TRIED: Final = 100
"""How many ports after a taken default one are tried."""


def listen(settings: ApiSettings) -> socket.socket:
    """Bind as the settings say; raises ConfigError when that cannot be.

    A port that nobody chose moves on when it is taken; a chosen one does not.
    """
    chosen = "api_port" in settings.model_fields_set
    last = settings.api_port if chosen else settings.api_port + _TRIED
    for port in range(settings.api_port, last + 1):
        try:
            return _bound(settings.api_host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"AIFORGE_API_HOST: cannot listen on {settings.api_host}: {error}"
                ) from None
    raise ConfigError(
        f"AIFORGE_API_PORT: port {settings.api_port} is taken; choose another, or 0 for any free one"
    )


def url(sock: socket.socket) -> str:
    """Where a caller on this machine finds the service."""
    host, port = sock.getsockname()[:2]
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # recognised, not bound
    return f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    return sock
