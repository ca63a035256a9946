"""How long the state machines run: a fixed set of short stories in the suite, many random ones in a soak."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, settings

SUITE: Final = settings(
    max_examples=30,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
SOAK: Final = settings(SUITE, max_examples=1_500, stateful_step_count=80, derandomize=False)
