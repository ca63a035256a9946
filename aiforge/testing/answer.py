"""Carries out one reply on one exchange, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, repeat
from typing import Any, assert_never

import msgspec

from aiforge.core.types import Usage
from aiforge.testing.calls import End, RecordedCall
from aiforge.testing.exchange import Exchange
from aiforge.testing.script import (
    Cut,
    Delta,
    Fail,
    Gate,
    Raw,
    Reply,
    Report,
    Silence,
    Step,
    UsageIn,
    error_object,
)
from aiforge.testing.shapes import merge, tool_deltas
from aiforge.testing.text import count_messages, pieces
from aiforge.testing.wire import ChatRequest, encode


class Surroundings(msgspec.Struct, frozen=True):
    """What a reply leaves to the provider. Durations are in seconds."""

    latency: float
    gap: float
    gate: Callable[[str], asyncio.Event]
    changed: Callable[[], None]
    """Called after each chunk sent."""


def steps_of(reply: Reply, request: ChatRequest) -> list[Step]:
    """All chunks of a reply and what happens between them."""
    if reply.chunks is not None:
        steps = list(reply.chunks)
    elif reply.echo:
        steps = list(pieces(encode(request.messages).decode()))
    else:
        steps = list(pieces(reply.text or ""))
    return [*steps, *tool_deltas(reply.tool_calls, reply.tool_shape)]


async def give(
    reply: Reply, call: RecordedCall, request: ChatRequest, exchange: Exchange, around: Surroundings
) -> End:
    """Answer the call; returns how it ended."""
    call.fault = reply.fault
    delay = around.latency if reply.delay is None else reply.delay
    if delay:
        await asyncio.sleep(delay)
    if reply.instead == "silence":
        await asyncio.Event().wait()
    elif reply.instead is not None:
        exchange.drop(reply.instead)
        return "dropped"
    if reply.status != 200 or reply.body is not None:
        call.status = reply.status
        body = encode({"error": reply.error or error_object(reply.status)})
        exchange.send(reply.status, body if reply.body is None else reply.body.encode(), reply.headers)
        return "answered" if reply.status < 400 else "refused"
    if request.stream:
        return await _Stream(reply, call, request, exchange, around).run()
    return await _whole(reply, call, request, exchange, around)


async def _whole(
    reply: Reply, call: RecordedCall, request: ChatRequest, exchange: Exchange, around: Surroundings
) -> End:
    texts: list[str] = []
    deltas: list[dict[str, Any]] = []
    usage, cut = reply.usage, None
    for step in steps_of(reply, request):
        match step:
            case str():
                texts.append(step)
            case Delta():
                texts.append(step.delta.get("content") or "")
                deltas.append(step.delta)
            case Report():
                usage = step.usage
            case Silence() | Gate():
                await _pause(step, around)
            case Fail():
                call.status, call.fault = 500, step.code
                error = error_object(500) | {"message": step.message, "code": step.code}
                exchange.send(500, encode({"error": error}), reply.headers)
                return "refused"
            case Cut():
                cut = step
                break
            case Raw():
                raise ValueError("raw chunks answer streamed calls only")
            case _:
                assert_never(step)
    call.status, call.chunks = 200, len(texts)
    call.used = usage or Usage(count_messages(request.messages), len(texts))
    told = None if reply.usage_in == "none" else call.used
    tool_calls = merge(deltas)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(texts) or None if tool_calls else "".join(texts),
    }
    if tool_calls:
        message["tool_calls"] = tool_calls
    finish = reply.finish_reason or ("tool_calls" if tool_calls else "stop")
    body = request.form(call.number).completion(message, finish, told)
    if cut is None:
        exchange.send(200, body, reply.headers)
        call.reported = told
        return "answered"
    exchange.send(200, body, reply.headers, part=0.5)
    exchange.flush()
    await asyncio.sleep(cut.after)
    exchange.drop("close" if cut.how == "end" else cut.how)
    return "cut"


async def _pause(step: Silence | Gate, around: Surroundings) -> None:
    if isinstance(step, Gate):
        await around.gate(step.name).wait()
    elif step.seconds is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(step.seconds)


class _Stream:
    """The chunks of one answer, in their time."""

    def __init__(
        self,
        reply: Reply,
        call: RecordedCall,
        request: ChatRequest,
        exchange: Exchange,
        around: Surroundings,
    ) -> None:
        self._reply = reply
        self._call = call
        self._request = request
        self._exchange = exchange
        self._around = around
        self._form = request.form(call.number)
        self._pieces = bool(reply.piece or reply.split_at)
        self._gaps = _gaps(around.gap if reply.gap is None else reply.gap)
        self._due = 0.0
        self._prompt = reply.usage.input_tokens if reply.usage else count_messages(request.messages)
        usage_in = reply.usage_in
        self._usage_in: UsageIn = (
            ("last" if request.usage_asked else "none") if usage_in == "asked" else usage_in
        )

    async def run(self) -> End:
        exchange, reply = self._exchange, self._reply
        exchange.piece, exchange.cuts = reply.piece, frozenset(reply.split_at)
        exchange.open_stream(reply.headers)
        self._call.status = 200
        steps = steps_of(reply, self._request)
        try:
            if not any(isinstance(step, Raw) for step in steps[:1]):
                await self._put(self._form.head())
            return await self._walk(steps)
        finally:
            if self._call.used is None:
                self._call.used = Usage(self._prompt, self._call.chunks)

    async def _walk(self, steps: Sequence[Step]) -> End:
        called = False
        for step in steps:
            match step:
                case str():
                    await self._chunk(step)
                case Raw():
                    await self._chunk(step)
                case Delta():
                    called = called or bool(step.delta.get("tool_calls"))
                    await self._chunk(step)
                case Report():
                    await self._put(self._form.usage(step.usage))
                    self._call.reported = self._call.used = step.usage
                case Silence() | Gate():
                    self._exchange.flush()
                    self._around.changed()
                    await _pause(step, self._around)
                    self._due = asyncio.get_running_loop().time()
                case Fail():
                    await self._put(self._form.error(step.message, step.code))
                    self._call.fault = step.code
                    self._exchange.close_stream()
                    return "refused"
                case Cut():
                    self._exchange.flush()
                    self._around.changed()
                    await asyncio.sleep(step.after)
                    self._exchange.drop(step.how)
                    return "cut"
                case _:
                    assert_never(step)
        await self._finish(self._reply.finish_reason or ("tool_calls" if called else "stop"))
        return "answered"

    async def _chunk(self, step: str | Raw | Delta) -> None:
        call = self._call
        if self._gaps is not None and call.chunks:
            await self._wait(next(self._gaps))
        usage = Usage(self._prompt, call.chunks + 1) if self._usage_in == "cumulative" else None
        if isinstance(step, str):
            event = self._form.text(step, usage)
        elif isinstance(step, Delta):
            event = self._form.delta(step.delta, usage=usage)
        else:
            event = step.data
        await self._put(event)
        call.chunks += 1
        if usage is not None:
            call.reported = usage

    async def _wait(self, gap: float) -> None:
        """Until `gap` after the last chunk was due: a late chunk does not make the next ones late."""
        self._exchange.flush()
        self._around.changed()
        now = asyncio.get_running_loop().time()
        self._due = (self._due or now) + gap
        await asyncio.sleep(max(0.0, self._due - now))

    async def _finish(self, reason: str) -> None:
        call, reply = self._call, self._reply
        call.used = call.used or reply.usage or Usage(self._prompt, call.chunks)
        if reply.ending != "none":
            in_choice = self._usage_in in ("choice", "cumulative")
            await self._put(self._form.delta({}, reason, call.used if in_choice else None))
            if self._usage_in == "last":
                await self._put(self._form.usage(call.used))
            if self._usage_in != "none":
                call.reported = call.used
        if reply.ending == "done":
            await self._put(self._form.done)
        self._exchange.close_stream()

    async def _put(self, event: bytes) -> None:
        if not event:
            return
        if self._pieces:
            await self._exchange.put_pieces(event)
        else:
            self._exchange.put(event)


def _gaps(gap: float | Sequence[float]) -> Iterator[float] | None:
    if isinstance(gap, (int, float)):
        return repeat(gap) if gap > 0 else None
    return cycle(gap) if gap else None
