"""A batch as the command line runs it: a table of questions, a table of answers."""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.benchmarks.stage import Stage, address_megabytes, limit
from tests.support.waiting import wait_until

LONGEST_SECONDS: Final = 7_200.0


class CommandRun:
    """`aiforge batch run` with so many questions; it can be killed and is then run again."""

    def __init__(self, on: Stage, count: int, *, megabytes: int | None = None) -> None:
        """`megabytes` is the address space that the command may have."""
        self.count = count
        self._megabytes = megabytes
        folder = Path(tempfile.mkdtemp(dir=on.folder))
        self._source, self._target, self._log = folder / "in.csv", folder / "out.csv", folder / "log"
        self._environment = {**os.environ, "AIFORGE_API_URL": on.api.url}
        write_table(self._source, count)
        self.most_address = 0.0
        self.start()

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "aiforge.cli", "batch", "run", str(self._source),
                 "--column", "question", "--id-column", "id", "-o", str(self._target)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )  # fmt: skip
        if self._megabytes is not None:
            limit(self._process.pid, self._megabytes)

    def kill(self) -> None:
        """kill -9, and the same command again."""
        assert self._process.poll() is None, f"it has ended: {self._said}"
        self._process.kill()
        self._process.wait()
        self.start()

    def pid(self) -> int | None:
        """Of the process, while it runs."""
        return self._process.pid if self._process.poll() is None else None

    def wait(self) -> None:
        """Until the output is whole: each question has its row once, in order, and an answer."""
        wait_until(self._over, LONGEST_SECONDS, 0.05)
        assert self._process.returncode == 0, f"it ended with {self._process.returncode}: {self._said}"
        with self._target.open(newline="") as file:
            rows = [(row["id"], row["status"]) for row in csv.DictReader(file)]
        assert rows == [(f"id-{number}", "ok") for number in range(self.count)]

    def _over(self) -> bool:
        with contextlib.suppress(OSError, StopIteration):
            self.most_address = max(self.most_address, address_megabytes(self._process.pid))
        return self._process.poll() is not None

    @property
    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-500:]


def write_table(path: Path, count: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "question"])
        writer.writerows([f"id-{number}", f"question {number:07d}"] for number in range(count))
