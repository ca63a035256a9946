"""What failed calls say of their model, and to those whom it keeps waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiforge.core.types import (
    APITimeoutError,
    ProviderError,
    RateLimitError,
    StreamCutError,
    UnavailableError,
)
from worker.contract.calls.providers import Granted, Outcome

_OVERLOADED: Final = frozenset({503, 529})


class Refused:
    """How long those whose call a model refused wait for it themselves, whoever else has to."""

    def __init__(self) -> None:
        self._until: WeakKeyDictionary[asyncio.Task[Any], tuple[str, float]] = WeakKeyDictionary()

    def note(self, name: str, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._until[task] = name, time.monotonic() + seconds

    async def wait(self, name: str, time_left: float) -> None:
        """Raises RateLimitError when there is not that much time left; another model is not waited for."""
        task = asyncio.current_task()
        refused, until = self._until.pop(task, ("", 0.0)) if task is not None else ("", 0.0)
        if refused != name:
            return
        pause = until - time.monotonic()
        if pause > time_left:
            raise refusal(name, Granted(0, 0, pause, "cooling", well=False))
        if pause > 0:
            await asyncio.sleep(pause)


def outcome_of(error: ProviderError) -> Outcome:
    """What a failed call says of the model: one that refuses a request is well. One that cannot be reached is
    not, even where nothing is repeated, as with a certificate that is out of date."""
    if isinstance(error, RateLimitError):
        return "limited" if error.retryable else "none"
    if error.status in _OVERLOADED:
        return "overloaded"
    failed = isinstance(error, UnavailableError | APITimeoutError | StreamCutError)
    return "failed" if failed and (error.retryable or error.status is None) else "ok"


def refusal(name: str, granted: Granted) -> ProviderError:
    if granted.reason == "open":
        return UnavailableError(f"{name} has failed too often; it is tried again in {granted.wait:.0f} s")
    return RateLimitError(
        f"{name} takes no calls for {granted.wait:.0f} s, which is beyond the turn's deadline",
        retry_after=granted.wait,
    )
