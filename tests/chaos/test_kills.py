"""The service under fire, in a form short enough for every run of the suite; `make chaos` is the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.driver import run
from tests.chaos.oracle import broken, judge, untried
from tests.chaos.plan import FAULTS, Plan
from tests.chaos.report import table
from tests.chaos.sabotage import SABOTAGES

FAST = 3.0
"""A lease that suits a test; how soon all is answered says nothing on a machine that is shared."""


@pytest.mark.timeout(180)
def test_killed_frozen_and_dismissed_workers_cost_no_answer(tmp_path: Path) -> None:
    plan = Plan(
        seed=8,
        faults={"kills": 4, "zombies": 1, "rolls": 1, "redis": 1, "links": 1},
        durability="always",
        rate=12,
        lease=FAST,
        pause=1,
        limit=60,
        readers=0.6,
    )
    evidence = asyncio.run(run(plan, tmp_path))
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    assert broken(verdicts) == []
    assert untried(verdicts) == ["every_phase_hit"]


@pytest.mark.timeout(300)
@pytest.mark.soak
def test_killed_between_any_two_steps(tmp_path: Path) -> None:
    plan = Plan(seed=4, faults={"points": 10}, rate=12, lease=FAST, pause=1, limit=60)
    evidence = asyncio.run(run(plan, tmp_path))
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    assert broken(verdicts) == []
    assert evidence.repeated > 0
    assert {hit.phase for hit in evidence.hits} >= {"before the claim", "after the commit"}


@pytest.mark.timeout(300)
@pytest.mark.soak
def test_every_fault_once(tmp_path: Path) -> None:
    plan = Plan(seed=5, faults=dict.fromkeys(FAULTS, 1), rate=12, lease=FAST, pause=1, limit=60)
    evidence = asyncio.run(run(plan, tmp_path))
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    assert broken(verdicts) == []


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_knows_the_lines_that_it_takes_out(name: str, tmp_path: Path) -> None:
    assert (SABOTAGES[name].checkout(tmp_path) / "worker" / "contract" / "scripts").is_dir()


@pytest.mark.timeout(180)
@pytest.mark.soak
@pytest.mark.parametrize("name", SABOTAGES)
def test_a_worker_without_one_of_its_rules_is_found_out(name: str, tmp_path: Path) -> None:
    sabotage = SABOTAGES[name]
    evidence = asyncio.run(run(sabotage.plan(3, tmp_path / "code"), tmp_path / "run"))
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    assert sabotage.breaks in broken(verdicts)


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_twenty_kills_at_twenty_turns_a_second(tmp_path: Path) -> None:
    evidence = asyncio.run(run(Plan(seed=1, faults={"kills": 20}), tmp_path))
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    assert broken(verdicts) == []
