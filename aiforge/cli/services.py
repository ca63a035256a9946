"""Commands that run services: `up`, `worker`, `api`, `flower`, `fake-provider`."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Annotated, NoReturn

import typer

from aiforge.cli import runfile, settings
from aiforge.cli.embedded import Embedded
from aiforge.cli.errors import CommandError
from aiforge.cli.output import note, screen
from aiforge.cli.packages import must_be_installed
from aiforge.cli.ports import HOST, checked
from aiforge.cli.signals import Ended
from aiforge.cli.stack import Stack, environment
from aiforge.core.ready import READY_FD, tell_ready


def up() -> None:
    """Run the embedded Valkey, a worker and the API until Ctrl-C.

    With AIFORGE_REDIS_URL set, that Redis is used and none is started. Logs go to DATA_DIR/logs.
    """
    configuration = settings.load()
    data_dir = configuration.data_dir
    with runfile.only_one(data_dir), Stack(configuration, free_ports=False) as stack:
        running = runfile.Running(
            api_url=stack.api_url,
            metrics_port=stack.metrics_port,
            redis_url=stack.redis_url,
            provider=stack.provider,
            pids={"up": os.getpid(), **stack.pids},
            started_at=time.time(),
        )
        runfile.write(data_dir, running)
        for name, value in (
            ("API", stack.api_url),
            ("docs", f"{stack.api_url}/docs"),
            ("metrics", stack.metrics_url),
            ("provider", stack.provider),
            ("data", str(data_dir)),
        ):
            screen().print(f"  [dim]{name:9}[/]{value}")
        note("ready; Ctrl-C stops everything")
        tell_ready(url=running.api_url, metrics_port=running.metrics_port)
        try:
            while True:
                signal.pause()
        except Ended as end:
            note("stopping")
            if end.number == signal.SIGTERM:
                return
            raise


def worker() -> None:
    """Run one worker in the foreground; its log goes to stderr."""
    _become("worker")


def api() -> None:
    """Run the API in the foreground; its log goes to stderr."""
    _become("api")


def _become(module: str) -> NoReturn:
    """Turn into the service: no process stays between it and whoever supervises it."""
    must_be_installed()
    configuration = settings.load()
    environ = environment(configuration)
    if READY_FD in os.environ:
        environ[READY_FD] = os.environ[READY_FD]
        os.set_inheritable(int(environ[READY_FD]), True)
    if configuration.service.redis_url is None:
        embedded = Embedded(configuration.data_dir, environment(configuration))
        os.set_inheritable(embedded.lock, True)
        environ["AIFORGE_REDIS_URL"] = embedded.url
    _exec([sys.executable, "-P", "-m", module], environ)


def flower(
    port: Annotated[int, typer.Option(help="Where Flower listens, on 127.0.0.1.")] = 5555,
) -> None:
    """Run Flower on the broker of the running stack."""
    must_be_installed()
    configuration = settings.load()
    environ = environment(configuration)
    if configuration.service.redis_url is None:
        running = runfile.find(configuration.data_dir)
        if running is None:
            raise CommandError("nothing is running here: start `aiforge up`, or set AIFORGE_REDIS_URL")
        environ["AIFORGE_REDIS_URL"] = running.redis_url
    note(f"Flower on http://{HOST}:{checked(port)}")
    _exec([sys.executable, "-P", "-m", "worker.flower", f"--address={HOST}", f"--port={port}"], environ)


def fake_provider(context: typer.Context) -> None:
    """Run the scriptable OpenAI-compatible provider; `aiforge fake-provider --help` lists its options."""
    _exec([sys.executable, "-P", "-m", "aiforge.testing", *context.args], dict(os.environ))


def _exec(command: list[str], environ: dict[str, str]) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.execve(command[0], command, environ)  # noqa: S606  # our own modules
