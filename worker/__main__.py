"""`python -m worker`: a worker as a process.

Exit codes: 0 after a signal, 1 when it cannot go on, 3 for a wrong setting.
"""

from __future__ import annotations

import sys

from aiforge.core.types import ConfigError
from worker.contract.service import check, listen, say
from worker.lifecycle import run
from worker.settings import WorkerSettings


def main() -> int:
    try:
        settings = WorkerSettings.load()
        library = check(settings)
        sock = listen(
            settings.metrics_host,
            settings.metrics_port,
            setting="METRICS",
            chosen="metrics_port" in settings.model_fields_set,
        )
    except ConfigError as error:
        say(f"worker: {error}")
        return 3
    port = sock.getsockname()[1]
    if settings.metrics_port and port != settings.metrics_port:
        say(f"worker: port {settings.metrics_port} is taken, metrics are at {port}")
    return run(settings, library, sock)


if __name__ == "__main__":
    sys.exit(main())
