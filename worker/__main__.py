"""`python -m worker`: a worker as a process.

Exit codes: 0 after a signal, 1 when it cannot go on, 3 for a wrong setting.
"""

from __future__ import annotations

import sys

from aiforge.core.fallbacks import check_fallbacks
from aiforge.core.providers import check_provider
from aiforge.core.types import ConfigError
from worker.contract.server.fitness import check_redis
from worker.contract.service import check, listen, say, taken
from worker.lifecycle import run
from worker.settings import WorkerSettings


def main() -> int:
    try:
        settings = WorkerSettings.load()
        library = check(settings)
        check_provider(library)
        check_fallbacks(library)
        for warning in check_redis(settings):
            say(f"worker: {warning}")
        sock = listen(
            settings.metrics_host,
            settings.metrics_port,
            setting="METRICS",
            chosen="metrics_port" in settings.model_fields_set,
        )
    except ConfigError as error:
        say(f"worker: {error}")
        return 3
    if port := taken(settings.metrics_port, sock):
        say(f"worker: port {port} is taken, metrics are at {sock.getsockname()[1]}")
    return run(settings, library, sock)


if __name__ == "__main__":
    sys.exit(main())
