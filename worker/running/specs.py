"""From what is stored to what the engine needs: models, prompts, tools and windows resolved."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from aiforge.core.completions import Request
from aiforge.core.custom import DEFAULT_MODEL
from aiforge.core.deltas import CallParams
from aiforge.core.fallbacks import Fallbacks
from aiforge.core.gate import Gate
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.openai_chat.transport import Transport
from aiforge.core.prompts import resolve_prompt
from aiforge.core.providers import create_model
from aiforge.core.router import choose_model, default_model, own_prices
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError, ProviderCall
from aiforge.core.windows import WindowFinder
from aiforge.modules.chat.agent import TurnSpec
from aiforge.modules.chat.budget import Budget
from aiforge.modules.chat.memory import trim
from aiforge.modules.chat.prompted import takes_tools
from aiforge.modules.chat.prompts import DEFAULT_SYSTEM_PROMPT
from aiforge.modules.chat.turn import Journal, Resume
from aiforge.tools.registry import resolve
from worker.calls.gate import ProviderGate
from worker.calls.purse import Purses
from worker.contract.batch.batches import Slice
from worker.contract.batch.line_schemas import LineItem
from worker.contract.claims import Claim
from worker.contract.schemas import BatchItem, StoredMessage

MODELS_KEPT: Final = 64


class _Request(Protocol):
    """What a turn's request, an item and a batch's defaults have in common."""

    @property
    def system_prompt(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def temperature(self) -> float | None: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def tools(self) -> list[str] | None: ...


class _Named(msgspec.Struct):
    model: str


class Specs:
    """Builds the engine's input; one model object per model name or route, all over the same connections."""

    def __init__(
        self, settings: AIForgeSettings, gate: ProviderGate | None = None, purses: Purses | None = None
    ) -> None:
        """Without a `gate` provider calls are made as they come, without `purses` no budget holds."""
        self.purses = purses
        self.prices = own_prices(settings)
        """Own prices by `provider/model`."""
        self._settings = settings
        self._gate = gate
        self._first_call = ProviderCall(
            call_id="",
            purpose="answer",
            provider=settings.PROVIDER,
            model=_default_model(settings),
            outcome="intended",
        )
        transport = Transport(settings.CA_FILE)
        self._model = functools.lru_cache(MODELS_KEPT)(
            lambda name: create_model(settings, model=name, transport=transport)
        )
        self._fallbacks = Fallbacks(settings, transport) if settings.FALLBACKS else None
        self._budget = functools.lru_cache(MODELS_KEPT)(self._new_budget)

    async def charge(self, tenant: str, calls: Sequence[ProviderCall]) -> None:
        """Write down in the budgets, where there are some, what calls took that died with a process."""
        if self.purses is not None:
            await self.purses.charge(tenant, calls)

    @property
    def first_call(self) -> ProviderCall:
        """What a claim enters in the ledger, before it is known whether the request names another model."""
        return self._first_call

    def _new_budget(self, name: str) -> Budget:
        settings = self._settings
        finder = WindowFinder(
            self._model(name), provider=settings.PROVIDER, model_name=name, settings=settings
        )
        return Budget(finder, settings)

    def of_turn(self, claim: Claim, journal: Journal | None = None) -> TurnSpec:
        """Raises ConfigError when the request names what this worker does not have."""
        # Of a conversation with a summary all that it does not stand for is shown, however much that is.
        longest = len(claim.window) if claim.settings.memory == "summary" else claim.memory_k
        history = trim([_plain(message) for message in claim.window], longest)
        return self._spec(
            claim.request.message,
            (claim.request, claim.settings),
            system_prompts=(claim.request.system_prompt, claim.settings.system_prompt),
            models=(claim.request.model, claim.settings.model),
            history=history,
            summary=claim.summary,
            metadata=claim.request.metadata,
            stream=True,
            turn_id=claim.place.turn_id,
            journal=journal,
            resume=_resume(claim),
            attempt=claim.attempt,
            gate=self._gate.chats if self._gate else None,
        )

    def of_item(self, taken: Slice, index: int, item: BatchItem) -> TurnSpec:
        """Items are independent: no history, no stream."""
        return self._spec(
            item.message,
            (item, taken.defaults),
            system_prompts=(item.system_prompt, taken.defaults.system_prompt),
            models=(item.model, taken.defaults.model),
            history=(),
            metadata=item.metadata or taken.defaults.metadata,
            stream=False,
            turn_id=f"{taken.batch_id}.{index}",
            gate=self._gate.items if self._gate else None,
        )

    def of_line(self, taken: Slice, item: LineItem) -> Request:
        """A line of a file goes out as it came."""
        assert taken.defaults.endpoint is not None
        settings, body = self._settings, bytes(item.body)
        name = msgspec.json.decode(body, type=_Named).model
        return Request(
            endpoint=taken.defaults.endpoint,
            body=body,
            model=self._model(name),
            provider=settings.PROVIDER,
            model_name=name,
            max_retries=settings.MAX_RETRIES,
            seconds=settings.TURN_TIMEOUT,
            prices=self.prices,
            gate=self._gate.items if self._gate else None,
            fallbacks=self._whom_else(named=True),
        )

    @property
    def foreign(self) -> str | None:
        """The provider, where lines of files have to be read for it; None where they go out as they came."""
        settings = self._settings
        try:
            model = self._model(settings.MODEL or default_model(settings.PROVIDER) or DEFAULT_MODEL)
        except ConfigError:
            return settings.PROVIDER
        return None if isinstance(model, OpenAIChat) else settings.PROVIDER

    def _whom_else(self, *, named: bool) -> Fallbacks | None:
        """Whom to ask after the model; one that a request has `named` itself is not given up for another."""
        return None if named and not self._settings.FALLBACK_NAMED else self._fallbacks

    def _spec(
        self,
        message: str | list[dict[str, Any]],
        requests: Sequence[_Request],
        *,
        system_prompts: Sequence[str | None],
        models: Sequence[str | None],
        history: Sequence[dict[str, Any]],
        summary: str | None = None,
        metadata: dict[str, str] | None,
        stream: bool,
        turn_id: str,
        journal: Journal | None = None,
        resume: Resume | None = None,
        attempt: int | None = None,
        gate: Gate | None = None,
    ) -> TurnSpec:
        settings = self._settings
        name = _first(*models) or choose_model(settings, named=False, quality=None)
        assert isinstance(name, str)
        model = self._model(name)
        return TurnSpec(
            message=message,
            history=history,
            summary=summary,
            system_prompt=resolve_prompt(
                *system_prompts, settings.SYSTEM_PROMPT, default=DEFAULT_SYSTEM_PROMPT
            ),
            model=model,
            native_tools=takes_tools(model),
            turn_id=turn_id,
            provider=settings.PROVIDER,
            model_name=name,
            tools=resolve(_first(*(request.tools for request in requests), []), settings),
            params=CallParams(
                temperature=_first(*(request.temperature for request in requests), settings.TEMPERATURE),
                max_tokens=_first(*(request.max_tokens for request in requests), settings.MAX_TOKENS),
            ),
            budget=self._budget(name),
            settings=settings,
            metadata=metadata or {},
            stream=stream,
            journal=journal,
            resume=resume,
            gate=gate,
            fallbacks=self._whom_else(named=_first(*models) is not None),
            attempt=attempt,
        )


def _resume(claim: Claim) -> Resume | None:
    """How a turn goes on that has begun before."""
    if claim.paused is None:
        return None
    paused = claim.paused
    answers = {paused.question.call_id: claim.answer} if paused.question else {}
    return Resume(paused.messages, answers, paused.begun)


def _default_model(settings: AIForgeSettings) -> str:
    """Empty where only a request can name one."""
    try:
        return choose_model(settings, named=False, quality=None) or ""
    except ConfigError:
        return ""


def stored(messages: Sequence[dict[str, Any]], turn_id: str) -> list[StoredMessage]:
    """The engine's messages as memory keeps them."""
    return [msgspec.convert({**message, "turn_id": turn_id}, StoredMessage) for message in messages]


def _plain(message: StoredMessage) -> dict[str, Any]:
    """A stored message as a provider takes it."""
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("tool_calls", "tool_call_id", "name"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain


def _first(*candidates: Any) -> Any:
    return next((candidate for candidate in candidates if candidate is not None), None)
