"""`python -m worker.flower`: Flower on the broker of this installation; options are Flower's own."""

from __future__ import annotations

import sys
from typing import Final

from aiforge.core.types import ConfigError
from worker.contract.service import say
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.broker import celery_application

CONNECTIONS: Final = 32
"""Flower asks all workers at once and holds two connections for each question."""


def main() -> int:
    try:
        settings = ContractSettings.load()
        if settings.redis_url is None and settings.broker_url is None:
            raise ConfigError("AIFORGE_BROKER_URL: not set, and AIFORGE_REDIS_URL neither")
    except ConfigError as error:
        say(f"flower: {error}")
        return 3
    application = celery_application(settings)
    application.conf.broker_pool_limit = CONNECTIONS
    # Our own transport hides the broker's kind, and Flower shows no queues of one that it does not know.
    application.conf.broker_transport = None
    application.start(["flower", *sys.argv[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
