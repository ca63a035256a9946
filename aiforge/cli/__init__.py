"""The `aiforge` command: talks to the service over HTTP and starts its parts as processes.

It never imports `worker` or `api`. Data goes to stdout, progress to stderr.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 wrong configuration, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import signal
import sys


def main() -> None:
    """The entry point. The commands are loaded here so that a Ctrl-C meanwhile is no traceback."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        commands = importlib.import_module("aiforge.cli.app")
        code: int = commands.run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
