"""The packages of `aiforge[service]`, which commands that only talk to a service do without."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from aiforge.cli.errors import SetupError

INSTALL: Final = "pip install aiforge[service]"
_NAMES: Final = (
    "celery",
    "fastapi",
    "fastapi_offline",
    "flower",
    "greenlet",
    "hiredis",
    "prometheus_client",
    "redis",
    "structlog",
    "uvicorn",
    "uvloop",
)


def missing() -> tuple[str, ...]:
    """Those that are not installed."""
    return tuple(name for name in _NAMES if find_spec(name) is None)


def must_be_installed(otherwise: str = "") -> None:
    """Raises SetupError, which says what to do, when worker and API cannot run here."""
    names = missing()
    if names:
        raise SetupError(f"{shown(names)} missing: {INSTALL}{otherwise}")


def shown(names: Sequence[str]) -> str:
    """The first of many names."""
    return (
        ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more packages"
    )
