"""Kombu's connection, which looks for a broker that is away at a steady pace.

The stock one waits ever longer, up to half a minute, and that much longer nobody would take turns.
"""

from __future__ import annotations

from typing import Any, Final

from kombu.connection import Connection as StockConnection

AGAIN_SECONDS: Final = 1.0
"""After how long it is asked again."""


class Connection(StockConnection):
    def ensure_connection(self, *args: Any, **options: Any) -> StockConnection:
        steady = {"interval_start": AGAIN_SECONDS, "interval_step": 0.0, "interval_max": AGAIN_SECONDS}
        super().ensure_connection(*args, **steady, **options)  # type: ignore[no-untyped-call]
        return self
