"""Finding a service to talk to, or starting one for the time of a command."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiforge.cli import runfile, settings
from aiforge.cli.errors import CommandError
from aiforge.cli.output import note
from aiforge.cli.packages import must_be_installed
from aiforge.cli.settings import Configuration
from aiforge.cli.stack import Stack
from aiforge.client import Client, ClientError

AWAY_SECONDS: Final = 120.0
"""How long the service may be away while its batch runs: a restart must not end an overnight job."""


def is_gone(error: ClientError, answered_at: float) -> bool:
    """Whether it is no use to ask again a service that answered last at that moment of `time.monotonic`."""
    return not error.retryable or time.monotonic() - answered_at > AWAY_SECONDS


def running_url(configuration: Configuration) -> str | None:
    """AIFORGE_API_URL, else the API of an `aiforge up` on the same data folder."""
    if configuration.service.api_url:
        return configuration.service.api_url
    running = runfile.find(configuration.data_dir)
    return running.api_url if running else None


@contextmanager
def connected(*, start: bool) -> Iterator[Client]:
    """A client of the running service; when there is none, one is started or CommandError raised."""
    with attached(start=start) as (client, _):
        yield client


@contextmanager
def attached(*, start: bool) -> Iterator[tuple[Client, bool]]:
    """The same, and whether the service will be there when this command has ended."""
    configuration = settings.load()
    url = running_url(configuration)
    if url is not None:
        with Client(url, token=configuration.service.token) as client:
            yield client, True
    elif start:
        must_be_installed(", or set AIFORGE_API_URL to use a service that runs elsewhere")
        note("nothing is running here, so a temporary stack is used (`aiforge up` keeps one running)")
        with (
            Stack(configuration, free_ports=True) as stack,
            Client(stack.api_url, token=configuration.service.token) as client,
        ):
            yield client, False
    else:
        raise CommandError("nothing is running here: start `aiforge up`, or set AIFORGE_API_URL")
