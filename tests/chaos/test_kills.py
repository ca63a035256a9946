"""The service under fire, in a form short enough for every run of the suite; `make chaos` is the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.driver import run
from tests.chaos.oracle import broken, judge, untried
from tests.chaos.plan import Plan
from tests.chaos.report import table
from tests.chaos.sabotage import without_fence


@pytest.mark.timeout(180)
def test_killed_frozen_and_dismissed_workers_cost_no_answer(tmp_path: Path) -> None:
    plan = Plan(
        seed=8,
        kills=4,
        signal="mixed",
        stops=1,
        redis=1,
        durability="always",
        rate=12,
        lease=3,
        pause=1,
        readers=0.6,
    )
    assert set(plan.faults()) == {"kill", "term", "stop", "redis"}
    evidence = asyncio.run(run(plan, tmp_path))
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    assert broken(verdicts) == []
    assert untried(verdicts) == []


@pytest.mark.timeout(180)
@pytest.mark.soak
def test_without_the_fence_the_oracle_sees_mixtures(tmp_path: Path) -> None:
    """What a worker that woke too late writes into another one's answer is noticed."""
    code = without_fence(tmp_path / "code")
    plan = Plan(seed=3, kills=0, stops=3, rate=12, lease=3, pause=1, readers=0.6, code=code)
    evidence = asyncio.run(run(plan, tmp_path / "run"))
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    assert "text_is_answer" in broken(verdicts)


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_twenty_kills_at_twenty_turns_a_second(tmp_path: Path) -> None:
    evidence = asyncio.run(run(Plan(seed=1), tmp_path))
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    assert broken(verdicts) == []
    assert untried(verdicts) == ["consuming_again", "handed_back"]
