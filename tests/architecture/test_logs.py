"""What our log lines carry is what is written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from worker.contract import logs

ROOT = Path(__file__).parents[2]


def carried() -> Iterator[tuple[str, str]]:
    for path in sorted([*ROOT.glob("worker/**/*.py"), *ROOT.glob("api/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "extra" and isinstance(node.value, ast.Dict):
                yield from (
                    (str(path.relative_to(ROOT)), ast.literal_eval(key)) for key in node.value.keys if key
                )


def test_every_field_of_a_log_line_is_one_that_is_written() -> None:
    found = list(carried())
    assert len(found) > 5
    assert [(path, name) for path, name in found if name not in logs._FIELDS] == []
