"""`aiforge demo`: the whole service on this machine, on the shipped questions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

import aiforge
from aiforge.cli import answers, chat, questions, settings
from aiforge.cli.ending import answer_all
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.output import duration, note, screen
from aiforge.cli.packages import must_be_installed
from aiforge.cli.progress import Tally
from aiforge.cli.runs import Run
from aiforge.cli.stack import Stack
from aiforge.cli.transcript import Transcript
from aiforge.client import Client, Turn
from aiforge.client.options import BatchOptions, Options

QUESTIONS: Final = Path("examples") / "faq.jsonl"
CHAT_MESSAGE: Final = (
    "My parcel was due yesterday and the tracking page has not moved for three days. What can I do?"
)
NEWEST: Final = "answers.jsonl"


def demo(
    source: Annotated[
        Path | None, typer.Option("--questions", help="Another JSONL or CSV file of questions.")
    ] = None,
) -> None:
    """Answer the sample questions as a batch, then stream one chat turn.

    Everything runs on free ports of this machine and is stopped at the end.
    """
    must_be_installed()
    configuration = settings.load()
    begun = time.monotonic()
    with (
        questions.opened(_short(source or _shipped())) as found,
        Stack(configuration, free_ports=True) as stack,
    ):
        note(f"ready at {stack.api_url}, provider {stack.provider}")
        target = _new_file(configuration.data_dir)
        with Client(stack.api_url, token=configuration.service.token) as client:
            _title(f"A batch of {found.count} questions")
            with answers.output(_short(target), found, Options()) as out, Run(_short(target)) as run:
                out.begin()
                tally = answer_all(client, out, run, BatchOptions())
            _title("One chat turn")
            screen().print(Text(f"> {CHAT_MESSAGE}", style="dim"))
            turn, transcript = chat.answer(client, client.submit(CHAT_MESSAGE))
            if turn.state != "completed":
                note(f"the turn is {chat.outcome(turn)}", "red")
    _totals(tally, turn, transcript, target, time.monotonic() - begun)
    if tally.completed == 0 or turn.state != "completed":
        raise CommandError("the demo did not get the answers it asked for; see the rows and DATA_DIR/logs")


def _shipped() -> Path:
    for folder in (Path.cwd(), Path(aiforge.__file__).parents[1]):
        if (folder / QUESTIONS).is_file():
            return folder / QUESTIONS
    raise UsageError(f"{QUESTIONS} is not here; name a file with --questions")


def _new_file(data_dir: Path) -> Path:
    """A file of its own for each run; `answers.jsonl` beside it always points to the newest."""
    target = data_dir / f"answers-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    link = data_dir / NEWEST
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    return target


def _title(text: str) -> None:
    screen().print()
    screen().print(Text(text, style="bold"))


def _totals(tally: Tally, turn: Turn, transcript: Transcript, target: Path, seconds: float) -> None:
    items, tokens = tally.rates
    table = Table.grid(padding=(0, 3, 0, 2))
    table.add_column(style="dim")
    table.add_row("batch", f"{tally.completed} answered, {tally.failed} failed in {duration(tally.elapsed)}")
    table.add_row("", f"{items:.1f} items/s, {tokens:,.0f} tokens/s, {tally.money}")
    if transcript.first_token_seconds is not None:
        table.add_row("chat", f"first token after {transcript.first_token_seconds * 1000:.0f} ms")
    table.add_row("answers", f"{_short(target.with_name(NEWEST))} → {target.name}")
    table.add_row("whole run", duration(seconds))
    _title("Totals")
    screen().print(table)
    note("everything is stopped; `aiforge up` keeps it running")


def _short(path: Path) -> str:
    """From here, where it is below here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
