"""`aiforge demo` as a newcomer runs it, against a provider that fails now and then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from aiforge.testing import FakeProvider, Faults

INPUT, OUTPUT = Decimal("0.15"), Decimal("0.60")
"""USD per million tokens of gpt-4o-mini."""


def demo(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIFORGE_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "aiforge.cli", "demo"],
        cwd=folder,
        env={**kept, **settings},
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def answers(folder: Path) -> list[dict[str, object]]:
    lines = (folder / ".aiforge" / "answers.jsonl").read_bytes().decode().split("\n")
    return [json.loads(line) for line in lines if line]


def test_without_a_key_the_offline_model_answers_and_says_so(tmp_path: Path) -> None:
    run = demo(tmp_path)
    assert run.returncode == 0, run.stderr
    assert "offline" in run.stderr
    rows = answers(tmp_path)
    assert len(rows) == 200
    assert {row["status"] for row in rows} == {"ok"}
    assert [row["id"] for row in rows][:2] == ["q001", "q002"]
    assert "not a real" in run.stdout or "No real" in run.stdout or "offline" in run.stdout


@pytest.mark.soak
def test_faults_are_named_and_every_cent_is_the_providers(tmp_path: Path) -> None:
    faults = Faults(rate_429=0.05, rate_500=0.02, cut=1, seed=11, retry_after=0.1)
    with FakeProvider(models=("gpt-4o-mini",), faults=faults, latency=0.02) as provider:
        run = demo(
            tmp_path,
            OPENAI_API_KEY="sk-test",
            AIFORGE_OPENAI_BASE_URL=provider.url,
            AIFORGE_MODEL="gpt-4o-mini",
        )
        assert run.returncode == 0, run.stderr
        calls = list(provider.calls)
        reported = provider.calls.cost(INPUT, OUTPUT)
    rows = answers(tmp_path)
    assert len(rows) == 200
    assert all(row["error_class"] for row in rows if row["status"] != "ok")

    faulted = Counter(call.fault for call in calls if call.fault)
    assert faulted, "the provider was asked to fail and did not"
    attempts = sum(int(str(row["attempts"])) for row in rows)
    assert attempts == len([call for call in calls if not call.stream])

    batch_calls = {call.call_id for call in calls if not call.stream}
    assert len(batch_calls) == attempts, "every call carries an id of its own"
    told = sum(Decimal(str(row["cost_usd"])) for row in rows)
    streamed = sum(
        (call.reported.input_tokens * INPUT + call.reported.output_tokens * OUTPUT) / 1_000_000
        for call in calls
        if call.stream and call.reported is not None
    )
    cut = [call for call in calls if call.end == "cut" and not call.stream]
    if cut:
        assert told > reported - streamed, "a call that broke off costs what it is estimated to cost"
    else:
        assert told == reported - streamed
