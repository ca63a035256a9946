"""`aiforge dead …`: turns that were given up because every worker that ran them died."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from aiforge.cli.arguments import JsonOption, TurnArgument
from aiforge.cli.connect import connected
from aiforge.cli.output import as_json, data, listed, note, when
from aiforge.client import Turn

LONGEST: Final = 1000


def ls(
    *,
    limit: Annotated[int, typer.Option(min=1, max=LONGEST, help="How many.")] = 100,
    json: JsonOption = False,
) -> None:
    """List dead letters, the latest first; with --json one object a line."""
    with connected(start=False) as client:
        found = client.dead_letters(limit=limit)
    listed((as_json(turn) if json else _line(turn) for turn in found), "no dead letters")


def show(turn_id: TurnArgument, *, json: JsonOption = False) -> None:
    """Show one dead letter."""
    with connected(start=False) as client:
        turn = client.dead_letter(turn_id)
    data(as_json(turn) if json else _line(turn))


def requeue(turn_id: TurnArgument, *, json: JsonOption = False) -> None:
    """Post a dead letter again as a new turn of its conversation; prints the new turn's id."""
    with connected(start=False) as client:
        turn = client.requeue_dead(turn_id)
    data(as_json(turn) if json else turn.turn_id)


def drop(turn_id: TurnArgument) -> None:
    """Forget a dead letter; its turn stays failed."""
    with connected(start=False) as client:
        client.drop_dead(turn_id)
    note(f"{turn_id} is no dead letter any more")


def _line(turn: Turn) -> str:
    parts = [
        turn.turn_id,
        when(turn.finished_at),
        f"conversation {turn.conversation_id}",
        f"attempts {turn.attempts}",
        *([turn.error.message] if turn.error else []),
    ]
    return "  ".join(parts)
