"""`aiforge batch run` again: after a kill, a stop at its cost, with another input, and two at once."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from aiforge.cli.errors import CommandError
from aiforge.cli.job import SILENT_SECONDS
from aiforge.cli.progress import Bar, Tally
from aiforge.cli.runs import Posting, Run
from aiforge.client import Batch, Client, Item
from aiforge.client.results import Counts
from aiforge.core.types import Usage
from aiforge.testing import FakeProvider, Gate, Reply
from tests.aiforge.cli.command import SECONDS, Desk, Room, Running
from tests.support.processes import Start
from tests.support.waiting import wait_until

COUNT: Final = 40
ITEMS: Final = (Item(message="one?"), Item(message="two?"))


@pytest.fixture
def api(api_process: Start) -> str:
    return api_process().url


def put(folder: Path, texts: list[str], name: str = "in.csv") -> None:
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows([["question"], *([text] for text in texts)])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def batch_in(err: str) -> str:
    return "batch_" + err.partition("batch batch_")[2].partition(":")[0]


def asked(provider: FakeProvider) -> Counter[str]:
    return Counter(json.loads(call.raw)["messages"][-1]["content"] for call in provider.calls)


def begun(desk: Desk, provider: FakeProvider, api: str, *options: str) -> Running:
    """A run whose batch is at work and has some rows; its last question waits for a gate."""
    provider.when(f"question {COUNT - 1}?", Reply(chunks=[Gate("rest"), "late"]))
    put(desk.folder, [f"question {number}?" for number in range(COUNT)])
    running = desk.start("batch", "run", "in.csv", "-o", "out.csv", *options, AIFORGE_API_URL=api)
    running.wait_for("batch batch_")
    wait_until(lambda: len(provider.calls) == COUNT, SECONDS)
    wait_until(lambda: (desk.folder / "out.csv").read_bytes().count(b"\n") > 7, SECONDS)
    return running


def test_with_an_edited_input_only_what_is_new_is_asked(
    desk: Desk, api: str, worker_process: Start, provider: FakeProvider
) -> None:
    worker_process(concurrency="4")
    first = begun(desk, provider, api)
    first.end(signal.SIGKILL)
    texts = ["new?", *(f"question {number}?" for number in reversed(range(3, COUNT))), "last?", "question 1?"]
    texts[5] = "changed?"
    put(desk.folder, texts)
    second = desk.start("batch", "run", "in.csv", "-o", "out.csv", AIFORGE_API_URL=api)
    second.wait_for(": 3 items")
    provider.open("rest")
    ended = second.end()
    assert ended.code == 0, ended
    assert f"goes on with batch {batch_in(first.err)}" in ended.err
    assert [row["question"] for row in table(desk.folder / "out.csv")] == texts
    assert all(row["answer"] for row in table(desk.folder / "out.csv"))
    assert set(asked(provider).values()) == {1}
    assert len(provider.calls) == COUNT + 3
    unused = (desk.folder / "out.csv.unused.jsonl").read_text().splitlines()
    assert f"{len(unused)} answers belong to no question any more" in ended.err
    assert {json.loads(line)["question"] for line in unused} <= {f"question {n}?" for n in (0, 2, 35)}
    assert [path.name for path in desk.folder.glob(".out*")] == []


def test_the_cap_holds_over_all_commands_of_a_run_and_a_higher_one_goes_on(
    desk: Desk, api: str, worker_process: Start, provider: FakeProvider
) -> None:
    """A call reserves its 1,000 tokens at 0.0006 USD, so 0.0015 USD hold but the first few."""
    worker_process(concurrency="1")
    command = ("batch", "run", "in.csv", "-o", "out.csv", "--max-tokens", "1000", "--model", "gpt-4o-mini")
    put(desk.folder, [f"question {number}?" for number in range(COUNT)])
    provider.when("question", Reply(chunks=["ok"], usage=Usage(100, 1000)))
    capped = desk.run(*command, "--max-cost", "0.0015", AIFORGE_API_URL=api)
    assert capped.code == 1, capped
    assert "none was asked to the end; the same command asks again (after --max-cost, with a" in capped.err
    calls = len(provider.calls)
    assert 0 < calls < 4
    assert {row["error_class"] for row in table(desk.folder / "out.csv")[calls:]} == {"budget_exceeded"}
    again = desk.run(*command, "--max-cost", "0.0015", AIFORGE_API_URL=api)
    assert f"{COUNT - calls} of {COUNT} failed" in again.err
    assert len(provider.calls) == calls, "two commands may not cost twice as much"
    higher = desk.run(*command, "--max-cost", "1", AIFORGE_API_URL=api)
    assert higher.code == 0, higher
    assert [row["status"] for row in table(desk.folder / "out.csv")] == ["ok"] * COUNT
    assert len(provider.calls) == COUNT
    assert [path.name for path in desk.folder.glob(".out*")] == []


def test_another_cap_or_nobody_who_wants_its_rows_ends_a_batch(desk: Desk, api: str) -> None:
    """Without a worker, so nothing is answered meanwhile."""
    put(desk.folder, ["one?", "two?"])
    names = []
    for option, says in (
        ((), ": 2 items"),
        (("--max-cost", "2"), ": 2 items"),
        (("--max-cost", "3"), "goes on with batch"),
        (("--max-cost", "1"), ": 2 items"),
    ):
        run = desk.start("batch", "run", "in.csv", "-o", "out.csv", *option, AIFORGE_API_URL=api)
        run.wait_for(says)
        assert ("it may cost more than --max-cost" in run.err) is (option[-1:] in (("2",), ("1",)))
        names.append(batch_in(run.err) if says == ": 2 items" else "")
        run.end(signal.SIGINT)
    put(desk.folder, ["three?"])
    run = desk.start("batch", "run", "in.csv", "-o", "out.csv", AIFORGE_API_URL=api)
    run.wait_for(": 1 items")
    assert "nobody wants its rows any more" in run.err
    run.end(signal.SIGINT)
    with Client(api) as client:
        found = [batch.status for batch in client.batches()]
    assert found == ["in_progress", "cancelled", "cancelled", "cancelled"]


def test_a_batch_whose_post_got_no_answer_is_gone_on_with(desk: Desk, api: str) -> None:
    (desk.folder / "in.jsonl").write_text('"two?"\n"one?"\n')
    with Run(str(desk.folder / "out.csv")) as run, Client(api) as client:
        noted = run.note(Posting(list(ITEMS), {}), [(0, b"a"), (1, b"b")])
        batch = client.submit_batch(ITEMS, idempotency_key=noted.token)
    again = desk.start("batch", "run", "in.jsonl", "-o", "out.csv", AIFORGE_API_URL=api)
    again.wait_for(": 2 items")
    again.end(signal.SIGINT)
    assert f"cancels batch {batch.id}: nobody wants its rows any more" in again.err
    with Client(api) as client:
        assert len(list(client.batches())) == 2


def test_one_command_at_a_time_writes_an_output(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    link = tmp_path / "link.csv"
    target.touch()
    link.symlink_to(target)
    with Run(str(target)):
        for name in (target, link):
            with pytest.raises(CommandError, match="another command writes into it"):
                Run(str(name))
        with Run(str(tmp_path / "other.csv")):
            pass
    with Run(str(link)):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "out.csv"]


def test_what_a_run_has_noted_is_there_for_the_next_command(tmp_path: Path) -> None:
    target = str(tmp_path / "out.csv")
    with Run(target) as run:
        run.posted(run.note(Posting(list(ITEMS), {"model": "m"}), [(0, b"same"), (1, b"same")]), "batch_1")
        run.note(Posting([ITEMS[0]], {}), [(2, b"other")])
    with Run(target) as run:
        known, lost = run.noted()
        assert (known.id, known.posting) == ("batch_1", None)
        assert (lost.id, lost.posting) == (None, Posting([ITEMS[0]], {}))
        run.match([(5, b"same"), (7, b"new"), (8, b"other")])
        assert [run.place(known.number, item) for item in (0, 1)] == [None, 5], "the first rows are taken"
        assert (run.first(known.number), run.first(lost.number), list(run.places())) == (1, 0, [5, 8])
        run.release(known.number)
        assert list(run.places()) == [8]
        run.forget(lost.number)
        assert [noted.number for noted in run.noted()] == [known.number]
        run.end()
    assert list(tmp_path.iterdir()) == []


def test_a_run_file_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".out.csv.run").write_text('{"word": "x"}' * 100)
    with pytest.raises(CommandError, match=r"\.out\.csv\.run: does not say what .* remove it"):
        Run(str(tmp_path / "out.csv"))


def test_a_full_disk_is_not_said_to_be_a_file_of_something_else(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"disk"):
            Run(str(tmp_path / "out.csv"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with Run(str(tmp_path / "out.csv")) as run:
        assert not run.has_posted


def test_the_files_beside_an_output_are_not_taken_for_its_own(room: Room) -> None:
    for name in ("faq.errors.csv", "faq.csv.unused.jsonl"):
        (room.folder / name).write_text('"one?"\n')
        ended = room.run("batch", "run", name, "-o", "faq.csv")
        assert (ended.code, ended.err) == (
            2, f"aiforge: {name}: is written beside faq.csv; name another file with -o\n"
        )  # fmt: skip
    (room.folder / "in.csv").write_text("question\none?\n")
    ended = room.run("batch", "run", "in.csv", "-o", "faq.csv")
    assert ended.code == 2
    assert "faq.errors.csv: is there already, and line 1 is no row of answers" in ended.err
    assert (room.folder / "faq.errors.csv").read_text() == '"one?"\n'
    assert not (room.folder / ".faq.csv.run").exists()


def test_a_run_ended_while_the_service_is_dead_does_not_say_that_it_goes_on(
    desk: Desk, api_process: Start
) -> None:
    service = api_process()
    put(desk.folder, ["one?"])
    run = desk.start("batch", "run", "in.csv", "-o", "out.csv", AIFORGE_API_URL=service.url)
    run.wait_for(": 1 items")
    service.kill()
    at = time.monotonic() + SILENT_SECONDS + 1
    wait_until(lambda: time.monotonic() > at, SECONDS)
    ended = run.end(signal.SIGTERM)
    assert "the service does not answer; it goes on with the rest when it is back" in ended.err, ended


def test_what_the_service_refuses_is_said_of_its_line(desk: Desk, api: str) -> None:
    """Tools of a service elsewhere are not known here."""
    (desk.folder / "in.jsonl").write_text('"one?"\n\n{"question": "two?", "tools": ["nope"]}\n')
    ended = desk.run("batch", "run", "in.jsonl", "-o", "out.jsonl", AIFORGE_API_URL=api)
    assert ended.code == 1
    assert "aiforge: line 3 cannot be asked: items[1].tools" in ended.err.replace(
        "tools has", "items[1].tools"
    )
    assert "cancel" not in ended.err
    assert not (desk.folder / ".out.jsonl.run").exists()


def test_what_no_call_can_have_is_refused_before_anything_starts(room: Room) -> None:
    put(room.folder, ["one?"])
    os.mkfifo(room.folder / "pipe.csv")
    (room.folder / "in.jsonl").write_text('{"q": "x", "tools": ["nope"]}\n')
    for arguments, says in (
        (("in.csv", "--max-cost", "1e-13"), "--max-cost: is finer than 10^-12 USD"),
        (("in.csv", "--max-cost", "1e30"), "--max-cost: an amount in USD above 0, at most 9,000,000"),
        (("in.csv", "--model", " "), "--model: must not be empty"),
        (("in.csv", "--max-tokens", "1" + "0" * 30), "--max-tokens: must be from 1 to 10000000"),
        (("in.jsonl",), "line 1 'tools' has the unknown tool 'nope'"),
        (("pipe.csv",), "pipe.csv: is no file; what comes from elsewhere is read from stdin with -"),
        (("in.csv", "-o", "pipe.csv"), "pipe.csv: is no file; rows for something else go to stdout"),
    ):
        ended = room.run("batch", "run", *arguments)
        assert ended.code in {1, 2}, ended
        assert says in ended.err


def test_a_dry_run_counts_what_a_model_is_told_first_and_touches_no_file(room: Room) -> None:
    put(room.folder, ["one?", "two?"])
    (room.folder / "out.csv").write_bytes(b"torn")
    counted = []
    for prompt in ("", "word " * 400):
        told = room.run(
            "batch", "run", "in.csv", "-o", "out.jsonl", "--dry-run",
            OPENAI_API_KEY="sk-test", AIFORGE_SYSTEM_PROMPT=prompt,
        )  # fmt: skip
        assert told.code == 0, told
        counted.append(int(told.out.partition("about ")[2].partition("\n")[0].replace(",", "")))
    assert 60 < counted[0] < 100, "without a prompt of one's own there is the usual one"
    assert 1_000 < counted[1] < 1_100
    assert sorted(path.name for path in room.folder.iterdir()) == ["in.csv", "out.csv"]


def test_a_dry_run_leaves_out_what_a_batch_is_at_work_for(desk: Desk, room: Room, api: str) -> None:
    """Without a worker, so nothing is answered meanwhile."""
    put(desk.folder, ["one?", "two?"])
    run = desk.start("batch", "run", "in.csv", "-o", "out.csv", AIFORGE_API_URL=api)
    run.wait_for(": 2 items")
    batch = batch_in(run.err)
    run.end(signal.SIGINT)
    files = {path.name: path.read_bytes() for path in desk.folder.iterdir() if path.is_file()}

    def dry_run(url: str) -> str:
        told = room.run("batch", "run", "in.csv", "-o", "out.csv", "--dry-run", AIFORGE_API_URL=url)
        assert told.code == 0, told
        return told.out.partition("models")[0] + told.err

    put(desk.folder, ["new?", "two?", "one?"])
    told = dry_run(api)
    assert "questions      1\nnot counted    2 that batches of this run are at work for\n" in told, told
    away = dry_run("http://127.0.0.1:9")
    assert "questions      3\n" in away, away
    assert "of 1 earlier batch nothing is known here" in away
    assert "gpt-4o-mini is the model that is set here; the service may have another" in away, "not offline"
    with Client(api) as client:
        client.cancel_batch(batch)
        wait_until(lambda: client.batch(batch).ended, SECONDS)
    assert "questions      3\n" in dry_run(api), "what was cancelled is asked anew"
    put(desk.folder, ["one?", "two?"])
    assert {path.name: path.read_bytes() for path in desk.folder.iterdir() if path.is_file()} == files


def test_what_a_file_says_reaches_no_terminal_as_a_command(room: Room) -> None:
    (room.folder / "in.csv").write_bytes(b"id,sujet\x1b[31m\n1,a?\n")
    ended = room.run("batch", "run", "in.csv")
    assert (ended.code, ended.err) == (
        2,
        "aiforge: in.csv: no column is known to hold the question; name one with --column:"
        " id, sujet\\x1b[31m\n",
    )


def test_of_a_batch_that_was_over_before_no_rate_is_told() -> None:
    counts = Counts(total=3, completed=2, failed=1)
    tally = Tally(counts.total)
    tally.begin([Batch(id="batch_1", status="completed", request_counts=counts, cost=Decimal("0.00003"))])
    tally.end()
    assert tally.line() == "3/3 done, 1 failed, <$0.0001"


def test_a_narrow_bar_leaves_out_whole_figures() -> None:
    tally = Tally(100_000)
    tally.cost = Decimal("12.3456")
    tally.completed, tally.failed, tally.retried, tally.saved = 54_321, 123, 12, 400
    for width in (40, 60, 80, 100, 140):
        console = Console(width=width, force_terminal=True, color_system=None)
        with console.capture() as shown:
            console.print(Bar(tally))
        (line,) = shown.get().splitlines()
        assert "54444/100000  123 failed" in line
        assert "\u2026" not in line
        assert ("12 retried" in line, "tokens/s" in line) == (width > 60, width > 100)
        assert ("\u2501" in line) == (width > 60), "the bar goes before rates"
