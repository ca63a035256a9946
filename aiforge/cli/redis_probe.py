"""Asks a Redis or Valkey about itself over a plain socket: the command line has no Redis client."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing
from typing import Any, BinaryIO, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from aiforge.core.topology import Address, Topology, topology_of

SECONDS: Final = 3.0
DEFAULT_PORT: Final = 6379
_NO: Final = ("0", "F", "FALSE", "N", "NO")


class ProbeError(Exception):
    """The server cannot be asked; the message says why."""


class Answers:
    """What the server said of itself."""

    def __init__(self, info: dict[str, str]) -> None:
        self.version = info.get("valkey_version") or info.get("redis_version", "unknown")
        self.name = "Valkey" if "valkey_version" in info else "Redis"
        self.policy = info.get("maxmemory_policy", "unknown")
        self.append_only = info.get("aof_enabled") == "1"


def servers(url: str) -> list[str]:
    """The URLs of the servers that hold data: one, the primary behind Sentinels, or a cluster's primaries.

    Raises ProbeError when nobody says which they are.
    """
    why = ProbeError("nobody to ask")
    try:
        topology = topology_of(url)
    except ValueError as error:
        raise ProbeError(str(error)) from None
    for address in topology.addresses:
        try:
            if topology.kind == "cluster":
                return _primaries(topology, _said(topology.at(address), "CLUSTER", "SLOTS"))
            place = topology.sentinel_at(address)
            return _primaries(topology, _said(place, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", topology.service))
        except (OSError, ValueError) as error:
            why = ProbeError(f"{address}: {error}")
    if topology.kind == "server":
        return [url]
    raise why


def ask(url: str) -> Answers:
    """Raises ProbeError when the server cannot be reached or does not let us in."""
    try:
        with closing(_connect(url)) as connection, connection.makefile("rb") as reader:
            for command in (*_login(url), ("PING",)):
                _call(connection, reader, *command)
            text = "\r\n".join(
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
        return _trusting(dict(parse_qsl(parts.query))).wrap_socket(connection, server_hostname=host)
    return connection


def _trusting(said: dict[str, str]) -> ssl.SSLContext:
    """What a URL says of TLS, as the service's Redis client reads it."""
    context = ssl.create_default_context(cafile=said.get("ssl_ca_certs"), capath=said.get("ssl_ca_path"))
    if said.get("ssl_check_hostname", "").upper() in _NO or said.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
    if said.get("ssl_cert_reqs") == "none":
        context.verify_mode = ssl.CERT_NONE
    if "ssl_certfile" in said:
        context.load_cert_chain(said["ssl_certfile"], said.get("ssl_keyfile"), said.get("ssl_password"))
    return context


def _login(url: str) -> list[tuple[str, ...]]:
    parts = urlsplit(url)
    if parts.password is None:
        return []
    return [("AUTH", *((unquote(parts.username),) if parts.username else ()), unquote(parts.password))]


def _said(url: str, *command: str) -> Any:
    """A reply of any shape; raises OSError or ValueError."""
    with closing(_connect(url)) as connection, connection.makefile("rb") as reader:
        for login in _login(url):
            _call(connection, reader, *login)
        return _call(connection, reader, *command)


def _primaries(topology: Topology, said: Any) -> list[str]:
    if not said:
        what = f"service {topology.service!r}" if topology.kind == "sentinel" else "slot"
        raise ValueError(f"knows no {what}")
    rows = [said] if topology.kind == "sentinel" else [row[2] for row in said]
    return list(dict.fromkeys(topology.at(Address(host, int(port))) for host, port, *_ in rows))


def _call(connection: socket.socket, reader: BinaryIO, *words: str) -> Any:
    encoded = [word.encode() for word in words]
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
    connection.sendall(b"*%d\r\n" % len(words) + parts)
    return _reply(reader)


def _reply(reader: BinaryIO) -> Any:
    line = reader.readline().decode().rstrip("\r\n")
    kind, rest = line[:1], line[1:]
    match kind:
        case "$" if rest == "-1":
            return None
        case "$":
            return reader.read(int(rest) + 2)[:-2].decode()
        case "*":
            return [_reply(reader) for _ in range(int(rest))]
        case ":":
            return int(rest)
        case "+":
            return rest
        case _:
            raise ValueError(rest or "the server closed the connection")
