"""Ports of this machine."""

from __future__ import annotations

import socket
from typing import Final

from aiforge.cli.errors import SetupError, UsageError

HOST: Final = "127.0.0.1"


def checked(port: int) -> int:
    """A port for `--port`; raises UsageError where it is none, SetupError where it is taken."""
    if not 0 < port < 65_536:
        raise UsageError(f"--port: {port} is no port")
    if not is_free(port):
        raise SetupError(f"--port: {port} is taken")
    return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
