"""Asks a Redis or Valkey about itself over a plain socket: the command line has no Redis client."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit

SECONDS: Final = 3.0
DEFAULT_PORT: Final = 6379


class ProbeError(Exception):
    """The server cannot be asked; the message says why."""


class Answers:
    """What the server said of itself."""

    def __init__(self, info: dict[str, str]) -> None:
        self.version = info.get("valkey_version") or info.get("redis_version", "unknown")
        self.name = "Valkey" if "valkey_version" in info else "Redis"
        self.policy = info.get("maxmemory_policy", "unknown")
        self.append_only = info.get("aof_enabled") == "1"
        self.used_memory = int(info.get("used_memory", "0"))
        self.max_memory = int(info.get("maxmemory", "0"))


def ask(url: str) -> Answers:
    """Raises ProbeError when the server cannot be reached or does not let us in."""
    try:
        with closing(_connect(url)) as connection, connection.makefile("rb") as reader:
            for command in (*_login(url), ("PING",)):
                _call(connection, reader, *command)
            text = "".join(
                _call(connection, reader, "INFO", part) for part in ("server", "memory", "persistence")
            )
    except (OSError, ValueError) as error:
        raise ProbeError(str(error) or type(error).__name__) from None
    return Answers(dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line))


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(SECONDS)
        connection.connect(parts.path)
        return connection
    host = parts.hostname or "127.0.0.1"
    connection = socket.create_connection((host, parts.port or DEFAULT_PORT), timeout=SECONDS)
    if parts.scheme == "rediss":
        return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    return connection


def _login(url: str) -> list[tuple[str, ...]]:
    parts = urlsplit(url)
    if parts.password is None:
        return []
    return [("AUTH", *((unquote(parts.username),) if parts.username else ()), unquote(parts.password))]


def _call(connection: socket.socket, reader: BinaryIO, *words: str) -> str:
    encoded = [word.encode() for word in words]
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
    connection.sendall(b"*%d\r\n" % len(words) + parts)
    line = reader.readline().decode().rstrip("\r\n")
    if line.startswith("$"):
        return reader.read(int(line[1:]) + 2).decode()
    if not line.startswith("+"):
        raise ValueError(line.removeprefix("-") or "the server closed the connection")
    return line
