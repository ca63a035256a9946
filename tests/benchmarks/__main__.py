"""`make bench`: everything that is measured, side by side, in one run of about ten minutes."""

from __future__ import annotations

import os
import sys

from tests.benchmarks import batches, durability, library, providers, turns

if __name__ == "__main__":
    sys.stdout.write(
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}\n"
    )
    providers.main()
    library.main()
    turns.main()
    durability.main()
    batches.main(batches.SHORT)
