"""`python -m aiforge.testing` starts the provider server."""

from __future__ import annotations

import sys

from aiforge.testing.command import main

if __name__ == "__main__":
    sys.exit(main())
