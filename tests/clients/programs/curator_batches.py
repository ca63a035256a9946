"""Curator in batch mode: numbered questions in, the answers that came out as JSON.

    python -m tests.clients.programs.curator_batches HOW_MANY [cancel]

A second run in the same folder goes on where the first one was.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from bespokelabs import curator
from pydantic import BaseModel


class Answer(BaseModel):
    text: str


class Asker(curator.LLM):  # type: ignore[misc]  # untyped there
    def prompt(self, row: dict[str, Any]) -> str:
        return str(row["question"])

    def parse(self, row: dict[str, Any], response: Answer) -> dict[str, Any]:
        return {"number": row["number"], "answer": response.text}


def main() -> None:
    asker = Asker(
        model_name="gpt-4o-mini",
        batch=True,
        backend="openai",
        response_format=Answer,
        generation_params={"temperature": 0.5, "max_tokens": 100},
        backend_params={
            "base_url": os.environ["OPENAI_BASE_URL"],
            "batch_size": 100,
            "batch_check_interval": 1,
            "max_retries": 2,
            "require_all_responses": False,
        },
    )
    rows = [{"number": number, "question": f"question {number}."} for number in range(int(sys.argv[1]))]
    cancel = "cancel" in sys.argv
    made = asker(rows, working_dir="work", batch_cancel=cancel, batch_cancel_auto_confirm=cancel)
    print(json.dumps(made.dataset.to_list()))


if __name__ == "__main__":
    main()
