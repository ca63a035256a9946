"""The provider server as a process: `python -m aiforge.testing` and `aiforge fake-provider`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence

from aiforge.core.ready import tell_ready
from aiforge.core.types import ConfigError
from aiforge.testing.script import Faults
from aiforge.testing.server import FakeProvider

_new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
try:
    import uvloop

    _new_loop = uvloop.new_event_loop
except ImportError:  # it comes with the service's extra and is only faster
    pass

KEEP_CALLS = 100_000
"""How many calls a process remembers; the totals count all."""


def serve(provider: FakeProvider) -> None:
    """Run until SIGINT or SIGTERM. Raises ConfigError when the port cannot be had.

    One line on stderr names the URL; the file descriptor in AIFORGE_READY_FD gets it as a line of JSON.
    """
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(provider))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, or 3 for a setting that cannot be."""
    options = _parser().parse_args(arguments)
    try:
        serve(provider_from(options))
    except ValueError as error:  # ConfigError is one
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


def provider_from(options: argparse.Namespace) -> FakeProvider:
    """The provider that these options describe; ValueError says which one is wrong."""
    faults = Faults(
        rate_429=options.rate_429,
        rate_500=options.rate_500,
        cut=options.cut,
        retry_after=options.retry_after,
        seed=options.seed,
    )
    for name in ("latency", "chunk_gap", "retry_after"):
        if not 0 <= getattr(options, name) < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')} is a number of seconds, 0 or more")
    if options.tokens < 1:
        raise ConfigError("--tokens is 1 or more")
    return FakeProvider(
        host=options.host,
        port=options.port,
        latency=options.latency,
        tokens=options.tokens,
        chunk_gap=options.chunk_gap,
        faults=faults,
        models=options.models,
        api_key=options.api_key,
        strict=options.strict,
        seed=options.seed,
        keep_calls=options.keep_calls,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aiforge.testing",
        description="An OpenAI-compatible provider that answers what it is told, with faults on request.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 is any free one")
    add("--latency", type=float, default=0.0, metavar="SECONDS", help="before each answer")
    add("--tokens", type=int, default=20, metavar="N", help="words of an answer")
    add("--chunk-gap", type=float, default=0.0, metavar="SECONDS", help="between the words of a stream")
    add("--rate-429", type=float, default=0.0, metavar="SHARE", help="share of calls refused with 429")
    add("--rate-500", type=float, default=0.0, metavar="SHARE", help="share of calls that fail with 500")
    add("--retry-after", type=float, default=0.2, metavar="SECONDS", help="what a 429 asks for")
    cuts = parser.add_mutually_exclusive_group()
    cuts.add_argument("--cut", type=int, default=0, metavar="N", help="break off N answers in their middle")
    cuts.add_argument("--cut-once", dest="cut", action="store_const", const=1, help="the same as --cut 1")
    add("--seed", type=int, default=0, help="of the answers and the faults")
    add("--models", type=_names, default=(), metavar="A,B", help="the only models there are")
    add("--api-key", help="refuse any other key with 401")
    add("--strict", action="store_true", help="refuse message lists that OpenAI would refuse")
    add("--keep-calls", type=int, default=KEEP_CALLS, metavar="N", help="how many calls GET /calls remembers")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


async def _serve(provider: FakeProvider) -> None:
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave.set)
    async with provider:
        sys.stderr.write(f"fake provider at {provider.url}\n")
        sys.stderr.flush()
        tell_ready(url=provider.url)
        await leave.wait()
