"""Processes that are asked to end again and again, to their very end."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import Service

SIGNALS = 10_000
PAUSE_SECONDS = 0.002


@pytest.mark.parametrize("module", ["worker", "api"])
def test_a_storm_of_signals_does_not_change_how_a_process_ends(
    module: str, environment: dict[str, str], tmp_path: Path
) -> None:
    settings = {f"AIFORGE_{name.upper()}": value for name, value in environment.items()}
    service = Service(module, tmp_path / module, settings)
    service.ready()
    assert _stormed(service) == 0, service.output


def _stormed(service: Service) -> int:
    for _ in range(SIGNALS):
        service.process.send_signal(signal.SIGTERM)
        try:
            return service.process.wait(PAUSE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"it does not end\n{service.output}")
