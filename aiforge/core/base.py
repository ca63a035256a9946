"""What every module of the library has: settings, a model, its costs, and batches."""

from __future__ import annotations

import asyncio
import functools
import reprlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from langchain_core.language_models import BaseChatModel

from aiforge.core import bridge
from aiforge.core.cost import CostTracker
from aiforge.core.fallbacks import Fallbacks
from aiforge.core.openai_chat.transport import Transport
from aiforge.core.providers import create_model
from aiforge.core.router import choose_model
from aiforge.core.settings import AIForgeSettings
from aiforge.core.texts import words
from aiforge.core.types import AIForgeError, BatchResult, ConfigError, FailedItem, ProviderCall, Usage

CUSTOM_PROVIDER: Final = "custom"
"""What a model is attributed to that the caller made."""


class CallLog:
    """The recorder of the library: keeps the calls of one turn, and tells the agent's tracker."""

    def __init__(self, tracker: CostTracker) -> None:
        self._tracker = tracker
        self.calls: list[ProviderCall] = []

    def next_call_id(self) -> str:
        return f"call_{uuid.uuid4().hex}"

    async def intend(self, call: ProviderCall, most: Callable[[], Usage]) -> None:
        """Nothing is kept of what may not happen: when this process dies, so does the log."""

    def settle(self, call: ProviderCall) -> None:
        self.calls.append(call)
        self._tracker.add(call)

    @property
    def cost(self) -> Decimal:
        """USD of the calls whose price is known."""
        return sum((call.cost for call in self.calls if call.cost is not None), Decimal(0))

    @property
    def tokens(self) -> int:
        return sum(call.usage.input_tokens + call.usage.output_tokens for call in self.calls if call.usage)

    @property
    def unpriced(self) -> int:
        return sum(call.cost is None for call in self.calls)


class BaseModule(ABC):
    """A module that turns one text into one response. Keywords are fields of `AIForgeSettings`.

    `llm` is a LangChain chat model to use instead of the provider's; `FALLBACKS` holds for it only with
    `FALLBACK_NAMED`. Raises ConfigError on an unknown provider, quality, keyword or route.
    """

    def __init__(
        self,
        *,
        quality: str | None = None,
        provider: str | None = None,
        llm: BaseChatModel | None = None,
        **kwargs: Any,
    ) -> None:
        if provider is not None and kwargs.setdefault("PROVIDER", provider) != provider:
            raise ConfigError(
                f"provider={provider!r} and PROVIDER={kwargs['PROVIDER']!r} contradict each other"
            )
        self._settings = AIForgeSettings.load(**kwargs)
        if llm is None:
            self._provider = self._settings.PROVIDER
            name = choose_model(self._settings, named="MODEL" in kwargs, quality=quality)
            transport = _transport(self._settings.CA_FILE)
            self._model = create_model(self._settings, model=name, transport=transport)
            self._model_name = name or _name_of(self._model)
        else:
            if not isinstance(llm, BaseChatModel):
                raise TypeError(f"llm must be a LangChain chat model, not {type(llm).__name__}")
            if quality is not None or "MODEL" in kwargs:
                raise ConfigError("llm= is the model itself: leave quality= and MODEL= out")
            self._provider = kwargs.get("PROVIDER", CUSTOM_PROVIDER)
            self._model_name = _name_of(llm)
            self._model = llm
        self._fallbacks: Fallbacks | None = None
        if self._settings.FALLBACKS and (llm is None or self._settings.FALLBACK_NAMED):
            self._fallbacks = Fallbacks(self._settings, _transport(self._settings.CA_FILE))
        self._tracker = CostTracker()

    @property
    def settings(self) -> AIForgeSettings:
        return self._settings

    @property
    def cost_tracker(self) -> CostTracker:
        """The costs of all that this object did, failed calls and batches included."""
        return self._tracker

    @abstractmethod
    def run(self, text: str, **kwargs: Any) -> Any:
        """The response to `text`."""

    @abstractmethod
    async def arun(self, text: str, **kwargs: Any) -> Any:
        """The response to `text`."""

    @abstractmethod
    def run_stream(self, text: str, **kwargs: Any) -> Iterator[str]:
        """The response's text as it arrives."""

    @abstractmethod
    def arun_stream(self, text: str, **kwargs: Any) -> AsyncGenerator[str, None]:
        """The response's text as it arrives."""

    @abstractmethod
    async def _run_alone(self, text: str, log: CallLog) -> Any:
        """The response to `text`, independent of everything before it."""

    def run_batch(self, items: Sequence[str], concurrency: int = 10, max_batch: int = 100) -> BatchResult:
        """Answer independent texts side by side; see `arun_batch`."""
        _check_batch(items, concurrency, max_batch)
        return bridge.run(self.arun_batch(items, concurrency, max_batch))

    async def arun_batch(
        self, items: Sequence[str], concurrency: int = 10, max_batch: int = 100
    ) -> BatchResult:
        """Answer independent texts, at most `concurrency` at a time.

        Responses are in input order; what failed is in `failed` with its index. Raises ValueError
        before anything runs on more than `max_batch` items or a `concurrency` below 1.
        """
        _check_batch(items, concurrency, max_batch)
        outcomes: list[tuple[Any, CallLog] | None] = [None] * len(items)
        waiting = iter(enumerate(items))

        async def work() -> None:
            for index, text in waiting:
                log = CallLog(self._tracker)
                try:
                    outcomes[index] = await self._run_alone(text, log), log
                except Exception as error:  # noqa: BLE001  # one item's end must not be all others'
                    outcomes[index] = _failed(index, text, error, log), log

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(concurrency, len(items))):
                workers.create_task(work())
        return _batch_result([outcome for outcome in outcomes if outcome is not None])


def _check_batch(items: Sequence[str], concurrency: int, max_batch: int) -> None:
    if isinstance(items, str) or not isinstance(items, Sequence):
        raise ValueError(f"items must be a list of texts, not {type(items).__name__}")
    for name, value, least in (("concurrency", concurrency, 1), ("max_batch", max_batch, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")
    if len(items) > max_batch:
        raise ValueError(f"{len(items)} items are more than max_batch={max_batch}")


def _failed(index: int, text: Any, error: Exception, log: CallLog) -> FailedItem:
    return FailedItem(
        index=index,
        text=text if isinstance(text, str) else reprlib.repr(text),
        error=words(error),
        error_class=type(error).__name__,
        retryable=isinstance(error, AIForgeError) and error.retryable,
        cost=float(log.cost),
    )


def _batch_result(outcomes: list[tuple[Any, CallLog]]) -> BatchResult:
    unpriced = sum(log.unpriced for _, log in outcomes)
    return BatchResult(
        results=[response for response, _ in outcomes if not isinstance(response, FailedItem)],
        failed=[response for response, _ in outcomes if isinstance(response, FailedItem)],
        total_cost=float(sum((log.cost for _, log in outcomes), Decimal(0))),
        total_tokens=sum(log.tokens for _, log in outcomes),
        priced=unpriced == 0,
        unpriced_calls=unpriced,
    )


@functools.cache
def _transport(ca_file: Path | None) -> Transport:
    """One pool of connections for all modules of the process."""
    return Transport(ca_file)


def _name_of(llm: BaseChatModel) -> str:
    for attribute in ("model_name", "model"):
        name = getattr(llm, attribute, None)
        if isinstance(name, str) and name:
            return name
    return type(llm).__name__
