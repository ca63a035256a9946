"""A batch as OpenAI's own client runs it: a file of lines, a batch, the whole output."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Final

import openai
from openai.types import Batch

from tests.benchmarks.stage import MODEL, Stage, Watch
from tests.support.waiting import wait_until

CHAT: Final = "/v1/chat/completions"
OVER: Final = ("completed", "failed", "expired", "cancelled")
POLL_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 7_200.0


def write_lines(path: Path, count: int) -> None:
    """A batch file as OpenAI's API takes it."""
    with path.open("w") as file:
        for number in range(count):
            messages = [{"role": "user", "content": f"question {number:07d}"}]
            body = {"model": MODEL, "messages": messages, "max_tokens": 50}
            line = {"custom_id": f"id-{number}", "method": "POST", "url": CHAT, "body": body}
            file.write(json.dumps(line) + "\n")


class FileRun:
    """One batch through OpenAI's SDK, from its file to the whole output."""

    def __init__(self, on: Stage, watch: Watch, count: int) -> None:
        self.stage = on
        self.watch = watch
        self.count = count
        self.client = openai.OpenAI(base_url=f"{on.api.url}/v1", api_key="none", max_retries=20, timeout=600)
        self.stored = self.loaded = self.downloaded = 0.0

    def submit(self) -> str:
        """Upload the lines and create their batch; returns its id."""
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            write_lines(Path(file.name), self.count)
            self.began = time.perf_counter()
            uploaded = self.client.files.create(file=Path(file.name), purpose="batch")
        self.stored = time.perf_counter() - self.began
        made = self.client.batches.create(input_file_id=uploaded.id, endpoint=CHAT, completion_window="24h")
        self.watch.batch_id = made.id
        return made.id

    def follow(self, batch_id: str) -> Batch:
        def over() -> Batch | None:
            batch = self.client.batches.retrieve(batch_id)
            return batch if batch.status in OVER else None

        found = wait_until(over, LONGEST_SECONDS, POLL_SECONDS)
        assert found is not None
        assert found.status == "completed", found
        return found

    def download(self, found: Batch) -> int:
        """How many rows the output has; each id stands in it once."""
        began = time.perf_counter()
        assert found.output_file_id is not None
        seen = bytearray(self.count)
        with self.client.files.with_streaming_response.content(found.output_file_id) as answer:
            for line in answer.iter_lines():
                number = int(json.loads(line)["custom_id"].removeprefix("id-"))
                assert not seen[number], f"id-{number} stands there twice"
                seen[number] = 1
        self.downloaded = time.perf_counter() - began
        assert sum(seen) == self.count, f"{sum(seen)} of {self.count} lines came back"
        return self.count

    def delete(self, found: Batch) -> None:
        """The batch and both files."""
        for file_id in (found.input_file_id, found.output_file_id):
            self.client.files.delete(str(file_id))
        self.client.delete(f"/batches/{found.id}", cast_to=object)
