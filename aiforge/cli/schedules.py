"""`aiforge schedule …`: turns and batches that are posted by the clock."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer

from aiforge.cli import ids
from aiforge.cli.arguments import (
    ConversationOption,
    JsonOption,
    MaxTokensOption,
    ModelOption,
    OnBusyOption,
    SystemPromptOption,
    moment,
    read_text,
    whole,
)
from aiforge.cli.connect import connected
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.output import as_json, data, listed, note, when
from aiforge.client import Schedule
from aiforge.client.options import Options, ScheduledOptions, ScheduleOptions


class CatchUp(StrEnum):
    """What becomes of missed ticks."""

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


ScheduleArgument = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="The schedule's id.", callback=ids.schedule)
]
CronArgument = Annotated[
    str,
    typer.Argument(
        metavar="CRON",
        help="Minute hour day month weekday, such as '0 9 * * MON-FRI'; with six fields the second is first.",
        callback=whole,
    ),
]
ScheduledMessage = Annotated[
    str | None, typer.Argument(metavar="MESSAGE", help="What to say; - reads it from stdin.", callback=whole)
]
BatchOption = Annotated[
    Path | None, typer.Option(help="Post this batch in place of a message: JSON such as the API takes.")
]
TimezoneOption = Annotated[
    str | None, typer.Option(help="Such as Europe/Berlin; UTC when left out.", callback=whole)
]
CatchUpOption = Annotated[
    CatchUp | None,
    typer.Option(help="Missed ticks: leave them out, fire once for all (the default), or fire each."),
]
StartsOption = Annotated[
    str | None, typer.Option(help="Not before: 10m, 2h, 1d from now, or a time.", callback=whole)
]
EndsOption = Annotated[
    str | None, typer.Option(help="Not after: 10m, 2h, 1d from now, or a time.", callback=whole)
]
PausedOption = Annotated[bool, typer.Option("--paused", help="Do not fire before it is resumed.")]


def add(
    cron: CronArgument,
    message: ScheduledMessage = None,
    *,
    batch: BatchOption = None,
    conversation: ConversationOption = None,
    timezone: TimezoneOption = None,
    catch_up: CatchUpOption = None,
    starts_at: StartsOption = None,
    ends_at: EndsOption = None,
    paused: PausedOption = False,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    on_busy: OnBusyOption = None,
    json: JsonOption = False,
) -> None:
    """Post a message, or a batch, whenever the clock says so; prints the schedule's id."""
    options = ScheduleOptions(
        timezone=timezone,
        conversation_id=conversation,
        catch_up=catch_up.value if catch_up else None,
        starts_at=moment(starts_at, "--starts-at"),
        ends_at=moment(ends_at, "--ends-at"),
        paused=paused or None,
    )
    turn = ScheduledOptions(
        system_prompt=system_prompt,
        model=model,
        max_tokens=max_tokens,
        on_busy=on_busy.value if on_busy else None,
    )
    if (message is None) == (batch is None):
        raise UsageError("say either MESSAGE or --batch")
    if batch is not None and any(turn.values()):
        raise UsageError("--batch: its file says how its items are answered")
    items, template = _batch(batch) if batch else ([], {})
    text = read_text(message) if message is not None else ""
    with connected(start=False) as client:
        if batch is None:
            made = client.schedule_turn(cron, text, turn=turn, **options)
        else:
            made = client.schedule_batch(cron, items, batch=cast(Options, template), **options)
    data(as_json(made) if json else made.schedule_id)
    note(f"fires next {when(made.next_at)}" if made.next_at else "is paused")


def ls(
    *,
    conversation: Annotated[
        str | None,
        typer.Option(
            "--conversation", "-c", help="Only those that post to this one.", callback=ids.conversation
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many; all when left out.")] = None,
    json: JsonOption = False,
) -> None:
    """List schedules, the newest first; with --json one object a line."""
    with connected(start=False) as client:
        found = islice(client.schedules(conversation_id=conversation), limit)
        listed((as_json(each) if json else _line(each) for each in found), "no schedules")


def show(schedule_id: ScheduleArgument, *, json: JsonOption = False) -> None:
    """Show a schedule: when it fires, what it posts, and what came of its latest tick."""
    with connected(start=False) as client:
        found = client.schedule(schedule_id)
    if json:
        data(as_json(found))
        return
    data(_line(found))
    data(as_json(found.turn or found.batch))


def pause(schedule_id: ScheduleArgument, *, json: JsonOption = False) -> None:
    """Let a schedule rest; ticks that pass meanwhile are left out."""
    _change(schedule_id, json, paused=True)


def resume(schedule_id: ScheduleArgument, *, json: JsonOption = False) -> None:
    """Let a paused schedule fire again from its next tick on."""
    _change(schedule_id, json, paused=False)


def rm(schedule_id: ScheduleArgument) -> None:
    """Delete a schedule; what it has posted stays."""
    with connected(start=False) as client:
        client.delete_schedule(schedule_id)
    note(f"{schedule_id} fires no more")


def _change(schedule_id: str, json: bool, *, paused: bool) -> None:
    with connected(start=False) as client:
        found = client.change_schedule(schedule_id, paused=paused)
    data(as_json(found) if json else _line(found))


def _batch(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """The items of a batch, and what holds for all of them; the service looks at both."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: is no batch: {error}") from None
    items = found.pop("items", None)
    if not isinstance(items, list):
        raise CommandError(f"{path}: is no batch: it has no list of items")
    return items, found


def _line(found: Schedule) -> str:
    state = "paused" if found.paused else f"next {when(found.next_at)}" if found.next_at else "over"
    target = f"conversation {found.conversation_id}" if found.conversation_id else found.kind
    parts = [found.schedule_id, found.cron, found.timezone, target, state]
    last = found.last_fire
    if last is not None:
        came = last.error.message if last.error else last.turn_id or last.batch_id
        parts.append(f"last {when(last.tick)} {came}")
    return "  ".join(parts)
