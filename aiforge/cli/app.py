"""The list of commands, and the one place where a command's end becomes an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from importlib import metadata
from typing import Annotated, Any, Final

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
from aiforge.cli.output import data, problem
from aiforge.client import APIError, ClientError, UnauthorizedError
from aiforge.core.types import ConfigError

PASSED_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


FIRST: Final[tuple[Callable[..., None], ...]] = (
    demo.demo, services.up, services.worker, services.api,
    chat.chat, chat.submit, chat.tail, chat.history, turns.queue, turns.cancel, turns.resume,
)  # fmt: skip
LAST: Final[tuple[Callable[..., None], ...]] = (
    status.status, usage.usage, doctor.doctor, config.config, services.flower, playground.playground,
)  # fmt: skip


def build() -> typer.Typer:
    """All commands, in the order in which the help lists them."""
    app = typer.Typer(
        name="aiforge",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(about)
    for command in FIRST:
        _add(app, command)
    _add_groups(app)
    for command in LAST:
        _add(app, command)
    _add(app, services.fake_provider, "fake-provider", PASSED_ON)
    return app


def _say_version(asked: bool) -> None:
    if asked:
        data(f"aiforge {metadata.version('aiforge')}")
        raise typer.Exit


def about(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    """LLM chat as durable background work.

    `aiforge demo` shows it, `aiforge up` runs it, `aiforge chat` and `aiforge batch run` ask it. Every
    command has a --help; `aiforge config` lists the settings.
    """


def _add(
    app: typer.Typer,
    command: Callable[..., None],
    name: str | None = None,
    context: dict[Any, Any] | None = None,
) -> None:
    """In a list of commands stands the whole first sentence of what a command says of itself."""
    says = re.split(r"[.;:] |\.$", " ".join((command.__doc__ or "").split()))[0]
    app.command(name, short_help=f"{says}.", context_settings=context)(command)


def _add_groups(app: typer.Typer) -> None:
    for (name, says), commands in GROUPS.items():
        group = typer.Typer(help=says, short_help=says, no_args_is_help=True, rich_markup_mode=None)
        for verb, command in commands.items():
            _add(group, command, verb)
            if verb == "ls":
                group.command("list", hidden=True)(command)
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
            sent = "; AIFORGE_API_TOKEN is what is sent" if end.status == HTTPStatus.UNAUTHORIZED else ""
            message = f"{end} (code {end.code}{request}){sent}"
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
    if message is not None and "\n" in message and isinstance(end, typer.TyperException):
        sys.stderr.write(f"{message}\n")  # a page of help
    elif message is not None:
        problem(message, details)
    return code
