"""Why there is no embedded server.

EmbeddedError       one clear line and the exit code that goes with it
PortTakenError      stays inside: another port is tried
"""

from __future__ import annotations

from typing import Final

EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 3


class EmbeddedError(Exception):
    """The server cannot run; the message is one clear line."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class PortTakenError(Exception):
    """Somebody took the port between our choice and the server's bind."""
