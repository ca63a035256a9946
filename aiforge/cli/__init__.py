"""The `aiforge` command: talks to the service over HTTP and starts its parts as processes.

It never imports `worker` or `api`. Data goes to stdout, progress to stderr.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 wrong configuration, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """The entry point. The commands are loaded here, and a Ctrl-C meanwhile ends the process at once: an
    exception could be lost in what Python does around an import."""
    signal.signal(signal.SIGINT, _leave)
    commands = importlib.import_module("aiforge.cli.app")
    code: int = commands.run(sys.argv[1:])
    sys.exit(code)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
