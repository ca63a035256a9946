"""`python -m worker.embedded`: errors leave as one line, exit code 3 for a wrong setting."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from worker.embedded.errors import EXIT_CONFIG, EmbeddedError
from worker.embedded.supervisor import run, say

DURABILITIES: Final = ("everysec", "always")
"""The server's `appendfsync`: at most a second of writes lost when the machine dies, or none."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.embedded", description="Run the embedded Valkey.")
    parser.add_argument(
        "--data-dir", type=Path, default=Path(os.environ.get("AIFORGE_DATA_DIR") or ".aiforge")
    )
    parser.add_argument("--keep", action="store_true", help="stay until SIGTERM, also without users")
    options = parser.parse_args()
    durability = os.environ.get("AIFORGE_DURABILITY") or DURABILITIES[0]
    try:
        if durability not in DURABILITIES:
            raise EmbeddedError(
                f"AIFORGE_DURABILITY: must be {' or '.join(DURABILITIES)} (got {durability!r})", EXIT_CONFIG
            )
        run(options.data_dir, durability, keep=options.keep)
    except EmbeddedError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
