"""The worker with one of its rules taken out, to see whether the oracle misses it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import worker
from tests.chaos.plan import Fault, Plan


@dataclass(frozen=True, kw_only=True)
class Sabotage:
    """A rule less, the faults that bring it to light, and the guarantee that then does not hold."""

    rule: str
    changes: Mapping[str, list[tuple[str, str]]]
    """By script: what stands there once, and what stands there instead."""
    faults: Mapping[Fault, int] = field(default_factory=dict)
    breaks: str
    words: int = Plan.words

    def plan(self, seed: int, folder: Path) -> Plan:
        """A short run of a checkout that is made in this folder."""
        return Plan(
            seed=seed,
            faults=self.faults,
            rate=12,
            lease=3,
            pause=1,
            readers=0.6,
            limit=60,
            patience=15,
            words=self.words,
            code=self.checkout(folder),
        )

    def checkout(self, folder: Path) -> Path:
        """The worker without this rule."""
        copy = folder / "worker"
        shutil.copytree(Path(worker.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for name, changes in self.changes.items():
            script = copy / "contract" / "scripts" / f"{name}.lua"
            whole = script.read_text(encoding="utf-8")
            for old, new in changes:
                assert whole.count(old) == 1, f"{name}.lua has {old!r} {whole.count(old)} times"
                whole = whole.replace(old, new)
            script.write_text(whole, encoding="utf-8")
        return folder


SABOTAGES: Final[Mapping[str, Sabotage]] = {
    "fence": Sabotage(
        rule="a commit is refused when the turn was given to another",
        changes={
            "finish": [
                (
                    " or fence ~= ARGV[2] then return { 'refused', '' } end",
                    " then return { 'refused', '' } end",
                )
            ]
        },
        faults={"zombies": 3},
        breaks="text_is_answer",
    ),
    "lease": Sabotage(
        rule="the reaper takes a turn only when its lease has run out",
        changes={
            "reap": [
                (
                    "redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(now), 'LIMIT', 0, limit)",
                    "redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '+inf', 'LIMIT', 0, limit)",
                )
            ],
            "requeue": [("if until_ms and tonumber(until_ms) > now_ms()", "if until_ms == 'never'")],
        },
        faults={"kills": 1},
        breaks="attempts_are_deaths",
        words=3,
    ),
    "ledger": Sabotage(
        rule="a provider call is written down before its request",
        changes={
            "claim": [
                ("redis.call('HSETNX', key.ledger, ARGV[9], stamped(ARGV[10], int(now), attempts))", "")
            ]
        },
        faults={"kills": 2},
        breaks="every_call_known",
    ),
    "commit": Sabotage(
        rule="a commit is one step: memory changes with the state or not at all",
        changes={
            "finish": [
                (
                    "or fence ~= ARGV[2] then return",
                    "or fence ~= ARGV[2] then for _, late in ipairs(take(at, tonumber(ARGV[11]))) do"
                    " redis.call('RPUSH', key.msgs, late) end return",
                )
            ]
        },
        faults={"zombies": 2},
        breaks="remembered_once",
    ),
}
