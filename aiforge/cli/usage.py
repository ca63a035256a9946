"""`aiforge usage`: provider calls, tokens and cost; summed, or one by one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from aiforge.cli import ids
from aiforge.cli.arguments import JsonOption
from aiforge.cli.connect import connected
from aiforge.cli.errors import UsageError
from aiforge.cli.output import as_json, data, note, when
from aiforge.client import LedgerRow, UsageReport, UsageRow
from aiforge.client.options import Group


class By(StrEnum):
    """What rows can be grouped by."""

    MODEL = "model"
    DAY = "day"
    PROVIDER = "provider"
    PURPOSE = "purpose"


COUNTS: Final = (
    "calls",
    "failed_calls",
    "lost_calls",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "unpriced_calls",
)
FIGURES: Final = {
    "calls": "calls",
    "failed_calls": "failed",
    "lost_calls": "lost",
    "unpriced_calls": "unpriced",
    "input_tokens": "input",
    "cached_tokens": "cached",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
    "estimated_cost": "est. USD",
    "cost": "USD",
}
"""What stands above each column on a terminal."""
ALWAYS: Final = frozenset({"calls", "input_tokens", "output_tokens", "cost"})
MONEY: Final = frozenset({"cost", "estimated_cost"})

TurnOption = Annotated[
    str | None, typer.Option(metavar="TURN", help="Only the calls of a turn.", callback=ids.turn)
]
BatchOption = Annotated[
    str | None, typer.Option(metavar="BATCH", help="Only those of a batch.", callback=ids.batch)
]
OfConversationOption = Annotated[
    str | None,
    typer.Option(
        "--conversation", "-c", metavar="ID", help="Only those of a conversation.", callback=ids.conversation
    ),
]


def usage(
    *,
    by: Annotated[list[By] | None, typer.Option(help="One row for each; may be given several times.")] = None,
    first: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="YYYY-MM-DD, UTC; 30 days when left out.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Today when left out.")] = None,
    calls: Annotated[
        bool, typer.Option("--calls", help="Provider calls one by one, for as long as their turns are kept.")
    ] = False,
    turn: TurnOption = None,
    batch: BatchOption = None,
    conversation: OfConversationOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many calls; all when left out.")] = None,
    json: JsonOption = False,
) -> None:
    """Show what was used and what it cost, summed or (--calls) one by one; with --json one object a line."""
    if calls:
        if by:
            raise UsageError("--calls: has no groups, so no --by")
        whose = {"turn_id": turn, "batch_id": batch, "conversation_id": conversation}
        _calls(whose, (_day(first, "--from"), _day(last, "--to")), limit, json=json)
        return
    if given := [
        name
        for name, value in (
            ("turn", turn),
            ("batch", batch),
            ("conversation", conversation),
            ("limit", limit),
        )
        if value is not None
    ]:
        raise UsageError(f"--{given[0]}: goes with --calls")
    _sums(by or [By.MODEL], (_day(first, "--from"), _day(last, "--to")), json=json)


def _sums(by: Sequence[By], days: tuple[date | None, date | None], *, json: bool) -> None:
    groups: list[Group] = [group.value for group in dict.fromkeys(by)]
    with connected(start=False) as client:
        report = client.usage(group_by=groups, first=days[0], last=days[1])
    if json:
        for row in report.data:
            data(
                as_json(
                    {
                        **{name: getattr(row, name) for name in (*groups, *COUNTS)},
                        "cost": f"{row.cost:f}",
                        "estimated_cost": f"{row.estimated_cost:f}",
                    }
                )
            )
    else:
        _print(report, groups)
    note(_total(report.total_cost, sum((row.estimated_cost for row in report.data), Decimal(0))))


def _calls(
    whose: Mapping[str, str | None], days: tuple[date | None, date | None], limit: int | None, *, json: bool
) -> None:
    total = estimated = Decimal(0)
    with connected(start=False) as client:
        found = client.ledger(**whose, first=days[0], last=days[1])
        for row in islice(found, limit):
            data(as_json(_exact(row)) if json else _call_line(row))
            total += row.cost or 0
            estimated += (row.cost or 0) if row.usage and row.usage.estimated else 0
    note(_total(total, estimated))


def _exact(row: LedgerRow) -> dict[str, object]:
    """A row with its cost as a decimal string."""
    fields: dict[str, object] = {name: getattr(row, name) for name in row.__struct_fields__}
    return {**fields, "cost": None if row.cost is None else f"{row.cost:f}"}


def _call_line(row: LedgerRow) -> str:
    tokens = f"{row.usage.input_tokens} + {row.usage.output_tokens} tokens" if row.usage else "– tokens"
    cost = "–" if row.cost is None else f"${row.cost:f}"
    mark = " (estimated)" if row.usage and row.usage.estimated else ""
    attempt = "" if row.attempt is None else f"attempt {row.attempt}, "
    ended = f"{row.outcome} {row.error_code}" if row.error_code else row.outcome
    return (
        f"{when(row.at)}  {row.call_id}  {attempt}{row.purpose}, {row.model}, {ended}  {tokens}  {cost}{mark}"
    )


def _total(cost: Decimal, estimated: Decimal) -> str:
    return f"total ${cost:f}" + (f", of which ${estimated:f} are estimated" if estimated else "")


def _day(text: str | None, option: str) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option}: a day such as 2030-01-31, not {text!r}") from None


def _print(report: UsageReport, groups: Sequence[Group]) -> None:
    if sys.stdout.isatty():
        Console(highlight=False).print(table(report.data, groups))
        return
    data("\t".join([*groups, *COUNTS, "cost_usd", "estimated_usd"]))
    for row in report.data:
        cells = [*(_name(row, group) for group in groups), *(str(getattr(row, name)) for name in COUNTS)]
        data("\t".join([*cells, f"{row.cost:f}", f"{row.estimated_cost:f}"]))


def table(rows: Sequence[UsageRow], groups: Sequence[Group]) -> Table:
    """For a terminal of 80 columns: what is 0 in every row is left out, and only names are folded."""
    found = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for group in groups:
        found.add_column(group, overflow="fold", no_wrap=group == "day")
    shown = [name for name in FIGURES if name in ALWAYS or any(getattr(row, name) for row in rows)]
    for name in shown:
        found.add_column(FIGURES[name], justify="right", no_wrap=True)
    for row in rows:
        figures = [
            f"{getattr(row, name):,f}" if name in MONEY else f"{getattr(row, name):,}" for name in shown
        ]
        found.add_row(*(_name(row, group) for group in groups), *figures)
    return found


def _name(row: UsageRow, group: Group) -> str:
    return getattr(row, group) or "–"
