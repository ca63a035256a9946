"""The list of commands, and the one place where a command's end becomes an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import typer

from aiforge.cli import (
    chat,
    config,
    demo,
    doctor,
    playground,
    services,
    signals,
    status,
    turns,
    usage,
)
from aiforge.cli.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from aiforge.cli.groups import GROUPS
from aiforge.cli.output import problem
from aiforge.client import APIError, ClientError, UnauthorizedError
from aiforge.core.types import ConfigError

PASSED_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def build() -> typer.Typer:
    """All commands, in the order in which the help lists them."""
    app = typer.Typer(
        name="aiforge",
        help="LLM chat as durable background work.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.command()(demo.demo)
    app.command()(services.up)
    app.command()(services.worker)
    app.command()(services.api)
    app.command()(chat.chat)
    app.command()(chat.submit)
    app.command()(chat.tail)
    app.command()(chat.history)
    app.command()(turns.queue)
    app.command()(turns.cancel)
    app.command()(turns.resume)
    _add_groups(app)
    app.command()(status.status)
    app.command()(usage.usage)
    app.command()(doctor.doctor)
    app.command()(config.config)
    app.command()(services.flower)
    app.command()(playground.playground)
    app.command("fake-provider", context_settings=PASSED_ON)(services.fake_provider)
    return app


def _add_groups(app: typer.Typer) -> None:
    for (name, says), commands in GROUPS.items():
        group = typer.Typer(help=says, no_args_is_help=True, rich_markup_mode=None)
        for verb, command in commands.items():
            group.command(verb)(command)
        app.add_typer(group, name=name)


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    signals.listen()
    try:
        result = build()(list(arguments), standalone_mode=False)
    except (Exception, signals.Ended, KeyboardInterrupt) as end:  # noqa: BLE001  # where the process ends
        return _end(end)
    return result if isinstance(result, int) else 0


def _end(end: BaseException) -> int:
    """Say in one line why the command ended early; its exit code."""
    code = EXIT_FAILED
    message: str | None = str(end)
    details: tuple[str, ...] = ()
    match end:
        case CommandError():
            code, details = end.exit_code, end.details
        case signals.Ended():
            code, message = end.exit_code, None
        case KeyboardInterrupt():
            code, message = EXIT_INTERRUPTED, None
        case ConfigError():
            code = EXIT_CONFIG
        case APIError():
            code = EXIT_CONFIG if isinstance(end, UnauthorizedError) else EXIT_FAILED
            request = f", request {end.request_id}" if end.status >= 500 and end.request_id else ""
            message = f"{end} (code {end.code}{request})"
        case ClientError():
            pass
        case typer.TyperException():
            code, message = EXIT_USAGE, getattr(end, "format_message", end.__str__)()
        case BrokenPipeError():
            # Whoever read our output has enough; nothing more can be written there, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            message = None
        case OSError():
            message = f"{end.filename or 'input or output'}: {end.strerror or end}"
        case _:
            message = f"unexpected {type(end).__name__}: {end}"
    if message is not None and "\n" in message:
        sys.stderr.write(f"{message}\n")
    elif message is not None:
        problem(message, details)
    return code
