"""Commands about turns that wait or run: `queue`, `cancel`, `resume`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from aiforge.cli.arguments import ConversationArgument, JsonOption, TurnArgument, read_text, whole
from aiforge.cli.connect import connected
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.output import as_json, data, note


class Open(StrEnum):
    """Where a turn that has not ended can be."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    REQUIRES_ACTION = "requires_action"


def queue(
    conversation: ConversationArgument,
    *,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="ID,ID…",
            help="The order the waiting turns are to have; named first is first.",
            callback=whole,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show which turn has a conversation's attention and which wait, or put those in another order.

    With --order, turns that are not named stay in their order behind those that are.
    """
    with connected(start=False) as client:
        found = client.queue(conversation)
        if order is not None:
            found = client.reorder(conversation, found.waiting, _ordered(found.waiting, order.split(",")))
    if json:
        data(as_json(found))
        return
    for place, turn_id in enumerate(([found.active] if found.active else []) + found.waiting):
        data(f"{turn_id}  {'waiting' if place or not found.active else 'active'}")
    if not found.active:
        note("no turn is under way")


def _ordered(waiting: list[str], first: list[str]) -> list[str]:
    for turn_id in first:
        if turn_id not in waiting:
            raise UsageError(f"--order: {turn_id!r} does not wait here")
    if len(set(first)) < len(first):
        raise UsageError("--order: names a turn twice")
    return [*first, *(turn_id for turn_id in waiting if turn_id not in first)]


def cancel(
    turn_id: TurnArgument,
    *,
    if_state: Annotated[Open | None, typer.Option(help="Only when the turn is in this state.")] = None,
    json: JsonOption = False,
) -> None:
    """Cancel a turn, whether it waits or runs; one that runs ends shortly. What has ended stays as it is."""
    with connected(start=False) as client:
        turn = client.cancel(turn_id, if_state=if_state.value if if_state else None)
    data(as_json(turn) if json else f"{turn.turn_id}  {turn.state}")


def resume(
    turn_id: TurnArgument,
    answer: Annotated[
        str,
        typer.Argument(
            metavar="ANSWER", help="yes approves a tool call; - reads the answer from stdin.", callback=whole
        ),
    ],
    *,
    question: Annotated[
        str | None, typer.Option(help="The question's id; the open one when left out.", callback=whole)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Answer what a turn asks; `aiforge tail` shows how it goes on."""
    text = read_text(answer, "answer")
    with connected(start=False) as client:
        if question is None:
            turn = client.turn(turn_id)
            if turn.question is None:
                raise CommandError(f"the turn asks nothing, it is {turn.state}")
            question = turn.question.question_id
        turn = client.resume(turn_id, question, text)
    data(as_json(turn) if json else f"{turn.turn_id}  {turn.state}")
