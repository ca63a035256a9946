"""The setting `limits`: what it takes, whom it is for, and how it refuses the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aiforge.core.setting_types import Limit
from aiforge.core.types import ConfigError
from worker.contract.calls.limits import limit_of
from worker.settings import WorkerSettings


def test_the_nearest_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "openai/gpt-4o-mini": {"requests_per_minute": 500, "tokens_per_minute": 200_000, "concurrency": 64},
        "openai/*": {"concurrency": 8, "burst_seconds": 60},
        "*": {"concurrency": 2},
    }
    monkeypatch.setenv("AIFORGE_LIMITS", json.dumps(said))
    limits = WorkerSettings().limits
    assert limit_of(limits, "openai", "gpt-4o-mini") == Limit(
        requests_per_minute=500, tokens_per_minute=200_000, concurrency=64
    )
    assert limit_of(limits, "openai", "org/other") == Limit(concurrency=8, burst_seconds=60)
    assert limit_of(limits, "ollama", "m") == Limit(concurrency=2)
    assert WorkerSettings(limits={}).limits == limits, "mappings of several sources are merged"
    assert limit_of({}, "openai", "m") is None


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"openai/m": {"rpm": 5}}, "'openai/m' has no field 'rpm'; there are requests_per_minute, tokens"),
        (
            {"openai/m": {"concurrency": 0}},
            "'openai/m': concurrency: Input should be greater than or equal to 1",
        ),
        ({"openai/m": {}}, "'openai/m' limits nothing: set requests_per_minute, tokens_per_minute or"),
        ({"openai/m": 5}, "'openai/m': Input should be a valid dictionary"),
        ({"gpt-4o": {"concurrency": 5}}, "'gpt-4o' is no model: write provider/model, provider/* or *"),
        ({"/m": {"concurrency": 5}}, "'/m' is no model"),
        (5, "must map models to limits, such as"),
    ],
)
def test_a_mistake_is_named(said: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^AIFORGE_LIMITS: ") as refused:
        WorkerSettings(limits=said)
    assert says in str(refused.value)


def test_the_share_of_batches_is_a_share() -> None:
    for share in (0, 1.5):
        with pytest.raises(ConfigError, match=r"^AIFORGE_BATCH_SHARE: "):
            WorkerSettings(batch_share=share)
