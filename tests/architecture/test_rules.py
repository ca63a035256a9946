"""The rules of ARCHITECTURE.md and CONTRIBUTING.md that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("aiforge", "worker", "api")
WRITES = frozenset(
    """
    append del expire getset hdel hincrby hmset hset hsetnx incr incrby linsert lmove lpop lpush lrem lset
    ltrim persist pexpire psetex publish rename restore rpop rpush sadd set setex setnx smove spop srem
    unlink xadd xtrim zadd zincrby zpopmin zrem zremrangebyscore eval evalsha flushall flushdb
    """.split()  # noqa: SIM905  # a literal list would take sixty lines
)
LARGER_MODULES = frozenset[str]()
"""Modules past 400 lines that are right as they are; each needs a reason here."""
LARGER_FUNCTIONS = frozenset[str]()


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_write_command_stands_outside_the_scripts() -> None:
    found = []
    for path in modules():
        if (
            path.is_relative_to(ROOT / "worker/embedded")
            or name(path) == "worker/contract/server/connection.py"
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if _is_command(node):
                found.append(f"{name(path)} {ast.unparse(node)}")
            elif isinstance(node, ast.Attribute) and node.attr in WRITES and _on_redis(node):
                found.append(f"{name(path)} .{node.attr}")
    assert found == []


def _is_command(node: ast.AST) -> bool:
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return text.isupper() and text.lower() in WRITES


def _on_redis(node: ast.Attribute) -> bool:
    owner = ast.unparse(node.value)
    return owner.endswith(("client", "redis", "pipeline", "connection")) and "http" not in owner


def test_the_connection_runs_scripts_and_reads() -> None:
    text = "".join(
        (ROOT / f"worker/contract/server/{name}.py").read_text() for name in ("connection", "link")
    )
    assert set(re.findall(r'"([A-Z]{2,})"', text)) == {"EVALSHA", "EVAL", "ECHO"}


def test_redis_names_are_built_in_keys_only() -> None:
    """A hash tag, or a name of the namespace, in any other file would be a second home."""
    kinds = "turn|log|conv|msgs|fifo|ledger|batch|rows|leases|fences|ready|versions|versioned"
    pattern = re.compile(rf'f"\{{\{{|namespace\}}:|:(?:{kinds}):')
    found = {name(path) for path in modules() if pattern.search(path.read_text())}
    assert {path for path in found if path.startswith(("worker/", "api/"))} == {"worker/contract/keys.py"}


def test_every_script_lists_its_keys_and_arguments() -> None:
    for path in (ROOT / "worker/contract/scripts").glob("*.lua"):
        head = path.read_text().split("\n\n")[0]
        assert "-- KEYS " in head, path.name
        assert "-- ARGV " in head, path.name


def test_modules_and_functions_stay_small() -> None:
    large = {name(path) for path in modules() if len(path.read_text().splitlines()) > 400}
    long = {
        f"{name(path)}:{node.name}"
        for path in modules()
        for node in functions(path)
        if node.end_lineno is not None and node.end_lineno - node.lineno > 50
    }
    assert large == LARGER_MODULES
    assert long == LARGER_FUNCTIONS


def test_every_metric_has_a_sentence_and_a_closed_set_of_labels() -> None:
    ids = re.compile(r"turn_id|batch_id|conversation|call_id|tenant|request_id|worker_id")
    for path in (ROOT / "worker/metrics.py", ROOT / "api/metrics.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and _is_metric(node.args[0]):
                sentence = node.args[1]
                assert isinstance(sentence, ast.Constant), ast.unparse(node)
                assert isinstance(sentence.value, str), ast.unparse(node)
                assert sentence.value.endswith("."), ast.unparse(node)
                labels = "".join(ast.unparse(argument) for argument in node.args[2:])
                assert not ids.search(labels), ast.unparse(node)


def _is_metric(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("aiforge_")
    )


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "aiforge",
            ("langgraph", "langchain_core", "pydantic", "celery", "redis", "fastapi", "prometheus_client"),
        ),
        ("aiforge.modules.chat.schemas", ("langgraph", "langchain_core", "celery", "redis")),
        ("aiforge.modules.chat.module", ("celery", "redis", "fastapi", "prometheus_client", "worker", "api")),
        (
            "aiforge.cli.app",
            ("celery", "redis", "fastapi", "prometheus_client", "worker", "api", "langgraph"),
        ),
        ("aiforge.client", ("celery", "redis", "fastapi", "langgraph", "langchain_core", "worker", "api")),
        ("worker.contract.memory.agent_store", ("langgraph", "langchain_core", "celery", "fastapi", "api")),
        ("worker.contract.client", ("langgraph", "langchain_core", "fastapi", "prometheus_client", "api")),
        ("api.app", ("langgraph", "langchain_core", "aiforge.cli", "worker.running.turns", "worker.runtime")),
    ],
)
def test_importing_loads_no_more_than_it_should(module: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert run.stdout.strip() == "[]"


def test_nothing_is_mocked_and_nobody_sleeps() -> None:
    mocked = re.compile(r"unittest\.mock|import mock\b|monkeypatch\.setattr\(.*lambda")
    pausing = re.compile(r"time\.sleep\b|from time import .*\bsleep\b")
    here, waiting = Path(__file__), ROOT / "tests/support/waiting.py"
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != here}
    assert [name(path) for path, text in texts.items() if mocked.search(text)] == []
    assert [path for path, text in texts.items() if pausing.search(text)] == [waiting]
