"""Lets provider calls begin as the model's health and limits allow, those of all workers together.

A model without a limit that is well costs nothing: this process hears when that changes. For all others the
calls that wait here are asked for together, a few at a time, by one task for each model, which also says
how calls ended. What may begin is decided by Redis alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from aiforge.core.gate import Gate, Place
from aiforge.core.setting_types import Limit
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ProviderError, Usage
from worker import metrics
from worker.calls.refusals import Refused, outcome_of, refusal
from worker.calls.untold import Untold
from worker.contract.calls.limits import limit_of
from worker.contract.calls.providers import Ended, Granted, Providers, Wants, permit_of
from worker.contract.errors import Unavailable
from worker.contract.readers import Listener
from worker.contract.server.connection import Connection
from worker.loop import keep_up
from worker.settings import WorkerSettings

LaneName: TypeAlias = Literal["chat", "batch"]

BUNDLE: Final = 8
"""Places that are asked for at a time; more would be held here while other processes wait."""
GATHER_SECONDS: Final = 0.005
MODELS_KEPT: Final = 64
LONGEST_SECONDS: Final = 1.0
"""A model that makes calls wait is asked again after this at most."""
LOOK_SECONDS: Final = 5.0
"""How often the models that are not well are read, in case that news of them were lost."""
_SILENT: Final = frozenset({"open", "cooling"})
"""Reasons for which nobody is let in until the time is over."""
_ENDING: Final = frozenset({"concurrency", "share", "probing"})
"""Reasons that pass when a call ends."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call that waits for its place."""

    lane: LaneName
    tokens: int
    until: float
    """Of `time.monotonic`, when its turn's time is over."""
    permit: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Model:
    """One model as this process knows it."""

    def __init__(self, name: str, limit: Limit | None, providers: Providers, process: str) -> None:
        self.name = name
        self.limit = limit
        self.well = True
        self.held: dict[str, None] = {}
        """Permits of calls that are under way."""
        self.in_flight = 0
        self.untold = Untold()
        self._providers = providers
        self._process = process
        self._number = 0
        self._waiting: dict[LaneName, deque[_Waiting]] = {"chat": deque(), "batch": deque()}
        self._ended: list[Ended] = []
        self._reason = ""
        self._woken = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def free(self) -> bool:
        """Whether calls begin without being asked for."""
        return self.well and self.limit is None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way or to be said."""
        return not (self.in_flight or self._ended or self._waits)

    @property
    def _waits(self) -> bool:
        return any(self._waiting.values())

    async def wait(self, waiting: _Waiting) -> str:
        """The permit of a place."""
        lane = self._waiting[waiting.lane]
        lane.append(waiting)
        self._go_on(wake=len(lane) == 1)
        try:
            return await waiting.permit
        except asyncio.CancelledError:
            if waiting in lane:
                lane.remove(waiting)
            elif waiting.permit.done() and not waiting.permit.cancelled() and not waiting.permit.exception():
                self.end(Ended(waiting.permit.result(), "none", -waiting.tokens))
            raise

    def end(self, ended: Ended) -> None:
        self.held.pop(ended.permit, None)
        self._ended.append(ended)
        self._go_on(wake=self._reason in _ENDING or ended.outcome not in ("ok", "none"))

    def news(self, *, well: bool) -> None:
        """What another process has found out."""
        self.well = well
        if self._waits:
            self._go_on(wake=True)

    def _go_on(self, *, wake: bool) -> None:
        if wake:
            self._woken.set()
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(keep_up("gate", self._run), name=f"gate of {self.name}")

    async def _run(self) -> None:
        while self._ended or self._waits:
            await asyncio.sleep(GATHER_SECONDS)
            self._woken.clear()
            granted = await self._step()
            self._reason = granted.reason
            if not granted.reason or not self._waits:
                continue
            metrics.PROVIDER_HOLDS.labels(granted.reason).inc()
            self._give_up(granted)
            try:
                async with asyncio.timeout(min(granted.wait, LONGEST_SECONDS)):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _step(self) -> Granted:
        """Say what ended, ask for what waits, and hand the places out."""
        ended, self._ended = self._ended, []
        chats = [waiting.tokens for waiting in self._waiting["chat"]][:BUNDLE]
        items = [waiting.tokens for waiting in self._waiting["batch"]][:BUNDLE]
        self._number += 1
        wants = Wants(ended, chats, items, self.in_flight, *self.untold.take())
        try:
            granted = await self._providers.step(self.name, self._process, self._number, wants, self.limit)
        except Unavailable:
            self._ended[:0] = ended
            return Granted(0, 0, LONGEST_SECONDS, "concurrency", well=False)
        self.well = granted.well
        self._hand_out("chat", chats[: granted.chats])
        self._hand_out("batch", items[: granted.items])
        return granted

    def _hand_out(self, lane: LaneName, places: list[int]) -> None:
        """To those who wait, in order; a place for which nobody is left is given back."""
        queue = self._waiting[lane]
        for index, tokens in enumerate(places, start=1):
            permit = permit_of(self._process, self._number, lane, index)
            while queue and queue[0].permit.done():
                queue.popleft()
            if queue:
                self.held[permit] = None
                queue.popleft().permit.set_result(permit)
            else:
                self._ended.append(Ended(permit, "none", -tokens))

    def _give_up(self, granted: Granted) -> None:
        """Those whose time ends before the model's pause does need not wait for it."""
        if granted.reason not in _SILENT:
            return
        until = time.monotonic() + granted.wait
        for queue in self._waiting.values():
            for waiting in [waiting for waiting in queue if waiting.until < until]:
                queue.remove(waiting)
                if not waiting.permit.done():
                    waiting.permit.set_exception(refusal(self.name, granted))


@dataclass(eq=False, slots=True)
class _Place:
    """A call that may be made: with a permit, or without one where the model is free."""

    model: _Model
    permit: str
    tokens: int
    refused: Refused
    left: bool = False

    def leave(self, *, ok: bool, error: ProviderError | None = None, usage: Usage | None = None) -> bool:
        if self.left:
            return False
        self.left = True
        self.model.in_flight -= 1
        outcome = outcome_of(error) if error else "ok" if ok else "none"
        bad = outcome not in ("ok", "none")
        if self.permit or bad or (outcome == "ok" and not self.model.well):
            made = usage is not None or outcome != "none"
            took = usage.input_tokens + usage.output_tokens if usage else self.tokens if made else 0
            after = error.retry_after if error else None
            self.model.well = self.model.well and not bad
            self.model.end(Ended(self.permit, outcome, took - self.tokens if self.permit else 0, after))
        elif outcome == "ok":
            self.model.untold.add()
        if error is None or error.retry_after is None or outcome not in ("limited", "overloaded"):
            return False
        self.refused.note(self.model.name, error.retry_after)
        return True


class ProviderGate:
    """One per process, on the loop that runs the turns; the engine gets `chats` or `items`."""

    def __init__(
        self,
        providers: Providers,
        process: str,
        library: AIForgeSettings,
        limits: Mapping[str, Limit],
        *,
        hears: bool = True,
    ) -> None:
        """With `hears` False nobody tells this process of other processes' news: it always asks."""
        self._providers = providers
        self._process = process
        self._endpoint, self._at = _endpoint(library), library.PROVIDER
        self._limits = limits
        self._hears = hears
        self._models: dict[str, _Model] = {}
        self._unwell: set[str] = set()
        self._refused = Refused()
        self.chats: Gate = _Lane(self, "chat")
        self.items: Gate = _Lane(self, "batch")

    async def enter(
        self, lane: LaneName, provider: str, model: str, tokens: Callable[[], int], time_left: float
    ) -> Place:
        known = self._model(provider, model)
        began = time.monotonic()
        await self._refused.wait(known.name, time_left)
        if known.free and self._hears:
            known.in_flight += 1
            return _Place(known, "", 0, self._refused)
        estimated = tokens()
        permit = await known.wait(_Waiting(lane, estimated, began + time_left))
        metrics.PROVIDER_WAIT_SECONDS.labels(lane).observe(time.monotonic() - began)
        known.in_flight += 1
        return _Place(known, permit, estimated, self._refused)

    async def settle(self) -> None:
        """Say what is still to be said of calls that ended, if Redis answers soon."""
        saying = [model.task for model in self._models.values() if model.task is not None]
        if saying:
            await asyncio.wait(saying, timeout=LONGEST_SECONDS)

    def news(self, name: str, *, well: bool) -> None:
        """A model has stopped being well, or is so again."""
        if well:
            self._unwell.discard(name)
        else:
            self._unwell.add(name)
        if name in self._models:
            self._models[name].news(well=well)
        metrics.PROVIDERS_UNWELL.set(len(self._unwell))

    def all_news(self, unwell: set[str]) -> None:
        """These are all models that are not well."""
        for name in unwell ^ self._unwell:
            self.news(name, well=name not in unwell)

    def held(self) -> dict[str, list[str]]:
        """The permits of calls that are under way, by model; may be asked from another thread."""
        found = {name: list(model.held) for name, model in list(self._models.items())}
        return {name: permits for name, permits in found.items() if permits}

    def _model(self, provider: str, model: str) -> _Model:
        name = f"{provider}/{model}" + (self._endpoint if provider == self._at else "")
        if name not in self._models:
            if len(self._models) >= MODELS_KEPT:
                self._models = {name: known for name, known in self._models.items() if not known.idle}
            limit = limit_of(self._limits, provider, model)
            self._models[name] = _Model(name, limit, self._providers, self._process)
            self._models[name].well = name not in self._unwell
        return self._models[name]


@dataclass(frozen=True, slots=True)
class _Lane:
    """The gate as one lane's calls see it."""

    gate: ProviderGate
    lane: LaneName

    async def enter(self, provider: str, model: str, *, tokens: Callable[[], int], time_left: float) -> Place:
        return await self.gate.enter(self.lane, provider, model, tokens, time_left)


def providers_of(settings: WorkerSettings, connection: Connection) -> Providers:
    """The models' records as the worker's settings share them out."""
    return Providers(
        connection,
        settings.namespace,
        batch_share=settings.batch_share,
        batch_floor=settings.batch_floor,
    )


async def renew(gate: ProviderGate, providers: Providers) -> None:
    """Keep the places of calls that go on, for ever."""
    while True:
        await asyncio.sleep(providers.permit_seconds / 3)
        try:
            for name, permits in gate.held().items():
                await providers.renew(name, permits)
        except Unavailable:
            continue


async def hear(
    gate: ProviderGate, providers: Providers, listener: Listener, loop: asyncio.AbstractEventLoop
) -> None:
    """Tell the gate, which lives on `loop`, what other processes find out, for ever."""
    async with listener.subscribe(providers.keys.health()) as told:
        while True:
            loop.call_soon_threadsafe(gate.all_news, await providers.unwell())
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    while True:
                        name, _, well = (await told.get()).decode(errors="replace").rpartition(" ")
                        loop.call_soon_threadsafe(partial(gate.news, name, well=well == "1"))
            except TimeoutError:
                continue


def _endpoint(library: AIForgeSettings) -> str:
    """Where the provider is, if that is not its usual place; without a key that the address may hold."""
    usual = AIForgeSettings.model_fields["OPENAI_BASE_URL"].default
    if library.PROVIDER != "openai" or usual == library.OPENAI_BASE_URL:
        return ""
    return "@" + urlsplit(library.OPENAI_BASE_URL).netloc
