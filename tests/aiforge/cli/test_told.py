"""What `aiforge batch …` tells people: true sentences, each whole, on any terminal and on none."""

from __future__ import annotations

import sys
import time
from decimal import Decimal
from functools import partial
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from aiforge.cli import answers, app, progress, runfile
from aiforge.cli.batches import _short_line
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.job import Job
from aiforge.cli.output import folded
from aiforge.cli.progress import Bar, Lines, Tally, shown
from aiforge.cli.runs import Posting, Run
from aiforge.client import Batch, Client, Item
from aiforge.client.options import BatchOptions
from aiforge.client.results import Counts
from aiforge.questions.errors import UnclearError
from aiforge.questions.reading import opened
from tests.aiforge.cli.command import Desk, Room
from tests.support.processes import Start

NOBODY = "http://127.0.0.1:9"
SUFFIX = "name it .jsonl, .csv or .tsv, so that its format is known"


@pytest.fixture
def faq(room: Room) -> Path:
    path = room.folder / "in.csv"
    path.write_text("id,question\n1,Open?\n2,Why?\n")
    return path


def batch(**fields: object) -> Batch:
    counts = Counts(total=2000, completed=1000, failed=12)
    known = {"id": "batch_3418672727683296dcc04d", "status": "in_progress", "request_counts": counts}
    return Batch(**{**known, "cost": Decimal("12.34"), "created_at": time.time(), **fields})  # type: ignore[arg-type]


def test_a_list_of_batches_has_a_line_for_each_on_80_columns() -> None:
    for found in (batch(), batch(created_at=0.0, cost=Decimal(0)), batch(paused_at=1.0, waits_until=2.0)):
        line = _short_line(found)
        assert len(line) <= 80
        assert "1012/2000  12 failed" in line
    assert "  paused  " in _short_line(batch(paused_at=1.0))


def test_what_is_too_long_for_a_terminal_goes_on_below_in_whole_parts() -> None:
    parts = ["batch_1", "in_progress", "3/3 done, 0 failed", "質問質問質問"]
    assert folded(parts, None) == "  ".join(parts)
    assert folded(parts, 40) == "batch_1  in_progress  3/3 done, 0 failed\n  質問質問質問"
    assert folded(parts, 5) == "\n  ".join(parts), "no part is broken"


def test_who_follows_a_batch_that_rests_is_told_why() -> None:
    tally = Tally(2000)
    tally.update([batch(paused_at=1.0)])
    assert tally.line().endswith(", paused")
    tally.update([batch(waits_until=90.0)])
    assert "waits for its budget until 1970-01-01" in tally.line()
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as seen:
        console.print(Bar(tally))
    assert "waits for its budget until 1970-01-01" in seen.get(), "it goes before the money"
    tally.update([batch(paused_at=1.0), batch()])
    assert "ETA" in tally.line(), "the other one goes on"


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = StringIO()
    monkeypatch.setattr(progress, "screen", partial(Console, file=out, force_terminal=True))
    with shown(Tally(3)) as lines:
        assert isinstance(lines, Lines)
    assert "0/3 done" in out.getvalue()


def test_no_error_of_several_lines_is_obeyed_by_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app._end(CommandError("one\n\x1b[31mtwo", ("three",))) == 1
    assert capsys.readouterr().err == "aiforge: one\n  \\x1b[31mtwo\n  three\n"


def test_names_that_lead_nowhere_are_refused_before_a_file_is_read(room: Room, faq: Path) -> None:
    (room.folder / "a.csv").symlink_to("b.csv")
    (room.folder / "b.csv").symlink_to("a.csv")
    for arguments, code, says in (
        (("", "-o", "out.csv"), 2, "IN: must not be empty; - is stdin"),
        (("in.csv", "-o", ""), 2, "--output: must not be empty; - is stdout"),
        (
            ("none.csv", "-o", "out.xlsx"),
            2,
            f"out.xlsx: {SUFFIX}",
        ),
        (("a.csv", "-o", "out.csv"), 2, "a.csv: no such file"),
    ):
        ended = room.run("batch", "run", *arguments)
        assert (ended.code, ended.err) == (code, f"aiforge: {says}\n")
    ended = room.run("batch", "run", "in.csv", "-o", "a.csv", AIFORGE_API_URL=NOBODY)
    assert ended.code == 1
    assert ended.err.splitlines()[1:] == ["aiforge: a.csv: Too many levels of symbolic links"]


def test_what_is_closed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UnclearError, match="stdin: is closed"), opened("-"):
        pass
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UsageError, match="stdout is closed; name a file with -o"):
        answers.stdout()


def test_an_output_that_is_named_tsv_has_tabs(faq: Path) -> None:
    with opened(str(faq)) as found, answers.output(str(faq.with_suffix(".tsv")), found, {}) as out:
        out.begin()
        for place, question in out.pending():
            out.write(place, question, {"status": "ok", "answer": "a, b", "error_class": None})
        out.finish()
    with opened(str(faq.with_suffix(".tsv"))) as again:
        assert [row.extra["answer"] for row in again] == ["a, b", "a, b"]


def dry_run(room: Room, *options: str, **settings: str) -> str:
    ended = room.run("batch", "run", "in.csv", "--dry-run", *options, **settings)
    assert ended.code == 0, ended
    return ended.out + ended.err


def test_a_dry_run_asks_whom_the_service_asks_that_runs_here(room: Room, faq: Path) -> None:
    """And not whom one would ask that is started by this command, with what is set in its own terminal."""
    running = runfile.Running(
        api_url=NOBODY, metrics_port=1, redis_url="", provider="openai", pids={}, started_at=0.0
    )
    with runfile.only_one(room.data):
        runfile.write(room.data, running)
        told = dry_run(room)
        assert "models         gpt-4o-mini\n" in told
        assert "USD            0.0001 to" in told
        assert "the service may have another" in told
        runfile.write(room.data, msgspec.structs.replace(running, provider="offline"))
        assert "models         offline\n" in dry_run(room, OPENAI_API_KEY="sk-test")
    assert "models         offline\n" in dry_run(room)


def test_a_dry_run_says_what_the_cap_would_do(room: Room, faq: Path) -> None:
    def told(*options: str) -> str:
        return dry_run(room, "--model", "gpt-4o-mini", *options, OPENAI_API_KEY="sk-test")

    assert "--max-cost 0.005 is less than the $0.0098 that a call may take" in told("--max-cost", "0.005")
    few = ("--max-tokens", "100")
    assert "--max-cost" not in told("--max-cost", "0.005", *few)
    assert "could be reached before the end" in told("--max-cost", "0.0001", *few)
    assert "less than all of it takes" in told("--max-cost", "0.00007", *few)
    mine = dry_run(room, "--model", "mine", "--max-cost", "1", OPENAI_API_KEY="sk-test")
    assert "--max-cost refuses what has no price: nothing would be asked of mine" in mine


def test_a_batch_whose_post_was_broken_off_is_cancelled_too(desk: Desk, api_process: Start) -> None:
    """Otherwise it would be answered, and paid for, by the next service that starts here."""
    items = [Item(message="one?")]
    (desk.folder / "in.csv").write_text("question\none?\n")
    with (
        opened(str(desk.folder / "in.csv")) as found,
        answers.output(str(desk.folder / "out.csv"), found, {}) as out,
        Run(str(desk.folder / "out.csv")) as run,
        Client(api_process().url) as client,
    ):
        noted = run.note(Posting(items, {}), [(0, b"one")])
        made = client.submit_batch(items, idempotency_key=noted.token)
        Job(client, out, run, BatchOptions()).cancel(lambda: False)
        assert client.batch(made.id).status == "cancelled"
