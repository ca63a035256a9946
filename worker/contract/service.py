"""What worker and API do alike when they start: check, listen, say that they are ready."""

from __future__ import annotations

import errno
import gc
import signal
import socket
import sys
from typing import Final

from aiforge.core.custom import check_provider_name
from aiforge.core.ready import tell_ready
from aiforge.core.settings import PREFIX, AIForgeSettings
from aiforge.core.types import ConfigError
from worker.contract.settings import ContractSettings

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What asks a process to end."""
_TRIED: Final = 100
"""How many ports after a taken default one are tried."""


def check(settings: ContractSettings) -> AIForgeSettings:
    """The library's settings, when the service can start with them and these; else ConfigError."""
    if settings.redis_url is None:
        raise ConfigError(
            "AIFORGE_REDIS_URL: not set; set it, or start with `aiforge up`, which brings a server of its own"
        )
    if settings.broker_url is None and settings.redis_url.startswith("unix:"):
        raise ConfigError(
            "AIFORGE_BROKER_URL: not set; the Unix socket of AIFORGE_REDIS_URL cannot carry Celery's messages"
        )
    _ = settings.broker
    library = AIForgeSettings.load()
    try:
        check_provider_name(library.PROVIDER)
    except ConfigError as error:
        raise ConfigError(f"{PREFIX}PROVIDER: {error}") from None
    if library.PROVIDER == "openai" and library.OPENAI_API_KEY is None:
        raise ConfigError(
            "AIFORGE_OPENAI_API_KEY: provider openai needs a key; set it, or AIFORGE_PROVIDER=offline"
        )
    return library


def listen(host: str, port: int, *, setting: str, chosen: bool) -> socket.socket:
    """A listening socket; raises ConfigError naming `setting`, such as `API`, when that cannot be.

    A port that nobody chose moves on when it is taken; a chosen one does not.
    """
    for candidate in range(port, port + (1 if chosen or port == 0 else _TRIED)):
        try:
            return _bound(host, candidate)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"{PREFIX}{setting}_HOST: cannot listen on {host}: {error}") from None
    raise ConfigError(f"{PREFIX}{setting}_PORT: port {port} is taken; choose another, or 0 for any free one")


def taken(port: int, sock: socket.socket) -> int | None:
    """The port that was wanted, where somebody had it and the socket is at another."""
    return port if port not in (0, sock.getsockname()[1]) else None


def url(sock: socket.socket) -> str:
    """Where a caller on this machine finds what listens on this socket."""
    host, port = sock.getsockname()[:2]
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # recognised, not bound
    return f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"


def announce(**ready: object) -> None:
    """Tell who started this process that it is ready.

    From now on the garbage collector passes over what is loaded: it stays, and going through all of it again
    and again stops everything for a tenth of a second each time.
    """
    gc.freeze()
    tell_ready(**ready)


def ignore_signals() -> None:
    """As it ends already: on its way out the interpreter would give signals their deadly meaning back."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def say(line: str) -> None:
    """One line for whoever looks at the terminal."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


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
