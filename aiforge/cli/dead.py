"""`aiforge dead …`: turns that were given up because every worker that ran them died."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from aiforge.cli.arguments import JsonOption, TurnArgument
from aiforge.cli.connect import connected
from aiforge.cli.errors import CommandError
from aiforge.cli.output import as_json, data, note, when
from aiforge.client import Client, Turn

LONGEST: Final = 1000


def list_dead(
    *,
    limit: Annotated[int, typer.Option(min=1, max=LONGEST, help="How many.")] = 100,
    json: JsonOption = False,
) -> None:
    """List dead letters, the latest first; with --json one object a line."""
    with connected(start=False) as client:
        found = client.dead_letters(limit=limit)
    for turn in found:
        data(as_json(turn) if json else _line(turn))


def show(turn_id: TurnArgument, *, json: JsonOption = False) -> None:
    """Show one dead letter."""
    with connected(start=False) as client:
        turn = _letter(client, turn_id)
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


def _letter(client: Client, turn_id: str) -> Turn:
    turn = client.turn(turn_id)
    if turn.error is None or turn.error.code != "dead_lettered":
        raise CommandError(f"turn {turn_id} is no dead letter, it is {turn.state}")
    return turn


def _line(turn: Turn) -> str:
    parts = [
        turn.turn_id,
        when(turn.finished_at),
        f"conversation {turn.conversation_id}",
        f"attempts {turn.attempts}",
        *([turn.error.message] if turn.error else []),
    ]
    return "  ".join(parts)
