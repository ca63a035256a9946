"""`aiforge config`: every setting, its value and where it comes from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from aiforge.cli import packages
from aiforge.cli.errors import CommandError, SetupError
from aiforge.cli.output import as_json, data, note
from aiforge.cli.show_settings import CLIENT_MODULES, SERVICE_MODULES, Shown


def config(
    json: Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")] = False,
) -> None:
    """Show every setting, its value (secrets masked) and where it comes from."""
    found = read_all()
    shown = [setting for setting in found if setting.error is None]
    if json:
        for setting in shown:
            data(as_json({"name": setting.name, "value": setting.value, "source": setting.source}))
    else:
        _print(shown)
    if packages.missing():
        note(f"settings of worker and API are left out; {packages.INSTALL} adds them")
    errors = [setting.error for setting in found if setting.error is not None]
    if errors:
        raise SetupError(errors[0])


def read_all() -> list[Shown]:
    """The settings as the services would read them here and now; raises CommandError.

    Where the service's packages are missing, it is the settings of the library and of the client.
    """
    modules = CLIENT_MODULES if packages.missing() else SERVICE_MODULES
    command = [sys.executable, "-P", "-m", "aiforge.cli.show_settings", *modules]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
    if ended.returncode != 0:
        raise CommandError("the settings cannot be read", tuple(ended.stderr.strip().split("\n")[-1:]))
    return msgspec.json.decode(ended.stdout, type=list[Shown])


def _print(settings: list[Shown]) -> None:
    if sys.stdout.isatty():
        Console(highlight=False).print(table(settings))
        return
    for setting in settings:
        data(f"{setting.name}={setting.value or ''}\t# {setting.source}")


def table(settings: Sequence[Shown]) -> Table:
    """For a terminal: names are whole, values and sources are folded."""
    found = Table.grid(padding=(0, 2, 0, 0))
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold")
    found.add_column(overflow="fold")
    for setting in settings:
        style = "dim" if setting.source == "default" else "bold"
        found.add_row(setting.name, setting.value or "–", setting.source, style=style)
    return found
