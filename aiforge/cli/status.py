"""`aiforge status`: what runs here, or how a turn or batch is."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from aiforge.cli import ids, runfile, settings
from aiforge.cli.connect import connected
from aiforge.cli.errors import CommandError
from aiforge.cli.output import as_json, data, duration
from aiforge.cli.settings import Configuration
from aiforge.client import Batch, Client, ClientError, Turn


def status(
    id: Annotated[  # noqa: A002  # the argument's name in the help
        str | None,
        typer.Argument(
            metavar="TURN|BATCH",
            help="Its id; without one, what runs here.",
            callback=ids.turn_or_batch,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Show what runs here, or how one turn or batch is."""
    if id is None:
        _service(settings.load(), json=json)
        return
    with connected(start=False) as client:
        found: Turn | Batch = client.batch(id) if id.startswith("batch_") else client.turn(id)
    data(as_json(found) if json else _batch(found) if isinstance(found, Batch) else _turn(found))


def _service(configuration: Configuration, *, json: bool) -> None:
    running = runfile.find(configuration.data_dir)
    url = configuration.service.api_url or (running.api_url if running else None)
    if url is None:
        if json:
            data(as_json({"running": False}))
        raise CommandError("nothing is running here: start `aiforge up`, or set AIFORGE_API_URL")
    trouble = _trouble(url, configuration.service.token)
    if json:
        found = {"running": True, "api_url": url, "ready": trouble is None, "why": trouble}
        here = {"metrics_url": running.metrics_url, "pids": running.pids} if running else {"pids": {}}
        data(as_json(found | here))
    else:
        data(f"{url}  {'ready' if trouble is None else 'not ready: ' + trouble}")
        if running:
            up = duration(time.time() - running.started_at)
            data(f"up for {up}, provider {running.provider}, the worker's metrics at {running.metrics_url}")
            data("processes: " + ", ".join(f"{name} {pid}" for name, pid in running.pids.items()))
    if trouble is not None:
        raise CommandError("the service is not ready")


def _trouble(url: str, token: str | None) -> str | None:
    try:
        with Client(url, token=token, retries=0) as client:
            client.ready()
    except ClientError as error:
        return str(error)
    return None


def _turn(turn: Turn) -> str:
    parts = [
        f"{turn.turn_id}  {turn.state}",
        f"conversation {turn.conversation_id}",
        f"attempts {turn.attempts}",
    ]
    if turn.error:
        parts.append(f"{turn.error.code}: {turn.error.message}")
    return "  ".join(parts)


def _batch(batch: Batch) -> str:
    counts = batch.request_counts
    return (
        f"{batch.id}  {batch.status}  {counts.done}/{counts.total} done, {counts.failed} failed, "
        f"${batch.cost:f}" + (f" + {batch.unpriced_calls} unpriced" if batch.unpriced_calls else "")
    )
