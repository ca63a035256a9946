"""`aiforge usage`: provider calls, tokens and cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from aiforge.cli.arguments import JsonOption
from aiforge.cli.connect import connected
from aiforge.cli.errors import UsageError
from aiforge.cli.output import as_json, data, note
from aiforge.client import UsageReport, UsageRow
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


def usage(
    *,
    by: Annotated[list[By] | None, typer.Option(help="One row for each; may be given several times.")] = None,
    first: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="YYYY-MM-DD, UTC; 30 days when left out.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Today when left out.")] = None,
    json: JsonOption = False,
) -> None:
    """Show what was used and what it cost; with --json one object a line."""
    groups: list[Group] = [group.value for group in dict.fromkeys(by or [By.MODEL])]
    days = _day(first, "--from"), _day(last, "--to")
    with connected(start=False) as client:
        report = client.usage(group_by=groups, first=days[0], last=days[1])
    if json:
        for row in report.data:
            data(
                as_json(
                    {**{name: getattr(row, name) for name in (*groups, *COUNTS)}, "cost": f"{row.cost:f}"}
                )
            )
    else:
        _print(report, groups)
    note(f"total ${report.total_cost:f}")


def _day(text: str | None, option: str) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option}: a day such as 2030-01-31, not {text!r}") from None


def _print(report: UsageReport, groups: Sequence[Group]) -> None:
    names = [*groups, *COUNTS, "cost_usd"]
    rows = [_cells(row, groups) for row in report.data]
    if not sys.stdout.isatty():
        for cells in (names, *rows):
            data("\t".join(cells))
        return
    table = Table(*names, box=None, header_style="dim")
    for number, column in enumerate(table.columns):
        column.justify = "left" if number < len(groups) else "right"
    for cells in rows:
        table.add_row(*cells)
    Console(highlight=False).print(table)


def _cells(row: UsageRow, groups: Sequence[Group]) -> list[str]:
    return [
        *(getattr(row, name) or "–" for name in groups),
        *(str(getattr(row, name)) for name in COUNTS),
        f"{row.cost:f}",
    ]
