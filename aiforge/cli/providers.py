"""`aiforge providers …`: how models fare with all workers."""

from __future__ import annotations

from typing import Annotated

import typer

from aiforge.cli.arguments import JsonOption, whole
from aiforge.cli.connect import connected
from aiforge.cli.output import as_json, listed, note, when
from aiforge.client import ModelHealth


def ls(*, json: JsonOption = False) -> None:
    """List models that were limited or not well within the last hour; with --json one object a line."""
    with connected(start=False) as client:
        found = client.providers()
    listed(
        (as_json(health) if json else _line(health) for health in found),
        "no model was limited or unwell within the last hour",
    )


def reset(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="As the list names it, or without endpoint and provider where that is enough.",
            callback=whole,
        ),
    ],
) -> None:
    """Close a model's circuit and end its cool-down; its limits go on counting."""
    with connected(start=False) as client:
        client.reset_provider(name)
    note(f"{name} is called again")


def _line(health: ModelHealth) -> str:
    parts = [health.name, f"circuit {health.circuit}", f"pace {health.pace:g}"]
    if health.open_until is not None:
        parts.append(f"open until {when(health.open_until)}")
    if health.cooling_until is not None:
        parts.append(f"cooling until {when(health.cooling_until)}")
    parts.append(f"in flight {health.chats_in_flight} + {health.items_in_flight}")
    limits = {
        "requests/min": health.requests_per_minute,
        "tokens/min": health.tokens_per_minute,
        "at a time": health.concurrency,
    }
    parts += [f"{limit} {unit}" for unit, limit in limits.items() if limit is not None]
    return "  ".join(parts)
