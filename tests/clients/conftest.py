"""Foreign clients: programs in an environment of their own, which `make clients` sets up, against the service
as its own processes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.nursery import ROOT
from tests.support.processes import Start

PYTHON: Final = ROOT / ".venv/clients/bin/python"
PROGRAM_SECONDS: Final = 240
OFFLINE: Final = {
    "CURATOR_DISABLE_RICH_DISPLAY": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TELEMETRY_ENABLED": "false",
}
"""What keeps these clients from asking others than the service."""


class Foreign:
    """Starts programs of `tests/clients/programs`, which know the service by OpenAI's own settings."""

    def __init__(self, url: str, home: Path) -> None:
        self.base_url = f"{url}/v1"
        self.home = home
        self._environment = {
            **OFFLINE,
            "HOME": str(home),
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": self.base_url,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [PYTHON, "-P", "-m", f"tests.clients.programs.{program}", *arguments],
            cwd=self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, program: str, *arguments: str) -> Any:
        """The JSON that a program prints last; its stderr is the test's."""
        process = self.start(program, *arguments)
        said, _ = process.communicate(timeout=PROGRAM_SECONDS)
        assert process.returncode == 0, said
        return json.loads(said.splitlines()[-1])

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def foreign(worker_process: Start, api_process: Start, tmp_path: Path) -> Iterator[Foreign]:
    if not PYTHON.exists():
        pytest.skip("`make clients` sets up what this needs")
    worker_process(concurrency="16")
    home = tmp_path / "home"
    home.mkdir()
    made = Foreign(api_process().url, home)
    yield made
    made.close()
