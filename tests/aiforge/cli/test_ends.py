"""How a demo, a batch and `up` end: well, by Ctrl-C and by kill -9, and what they leave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Final

import pytest

from aiforge.testing import FakeProvider, Reply
from tests.aiforge.cli.command import FREE_PORTS, QUESTIONS, SECONDS, Desk
from tests.support.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
@pytest.mark.parametrize(
    "at",
    [
        pytest.param("starting the embedded server", marks=pytest.mark.soak),
        "starting a worker",
        pytest.param("ready at", marks=pytest.mark.soak),
        pytest.param("batch batch_", marks=pytest.mark.soak),
    ],
)
def test_the_demo_leaves_no_process_whenever_it_is_ended(desk: Desk, at: str, number: signal.Signals) -> None:
    demo = desk.start("demo", "--questions", "in.jsonl")
    demo.wait_for(at)
    ended = demo.end(number)
    assert ended.code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    desk.must_be_empty(1 if number == signal.SIGINT else 15)


@pytest.mark.soak
@pytest.mark.parametrize("moment", range(1, 26))
def test_ctrl_c_ends_the_demo_at_any_moment(desk: Desk, moment: int) -> None:
    at = time.monotonic() + moment * 0.3
    demo = desk.start("demo", "--questions", "in.jsonl")
    wait_until(lambda: time.monotonic() >= at or demo.process.poll() is not None, 30)
    # The interpreter itself dies of the signal while it starts.
    assert demo.end(signal.SIGINT).code in {0, 130, -signal.SIGINT}
    desk.must_be_empty(1)


@pytest.mark.parametrize("at", ["starting a worker", pytest.param("ready at", marks=pytest.mark.soak)])
def test_a_second_ctrl_c_hurries_the_end(desk: Desk, at: str) -> None:
    demo = desk.start("demo", "--questions", "in.jsonl")
    demo.wait_for(at)
    demo.process.send_signal(signal.SIGINT)
    assert demo.end(signal.SIGINT).code == 130


@pytest.mark.soak
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_up(desk: Desk, times: int) -> None:
    up = desk.start("up", **FREE_PORTS)
    up.wait_for("ready; Ctrl-C stops everything")
    up.process.send_signal(signal.SIGINT)
    up.wait_for("stopping")
    assert up.end(signal.SIGINT if times == 2 else None).code == 130
    desk.must_be_empty(1)


def test_the_demo_keeps_the_answers_of_the_run_before(desk: Desk) -> None:
    desk.data.mkdir()
    before, newest = desk.data / "answers-20200101-000000.jsonl", desk.data / "answers.jsonl"
    before.write_text("kept\n")
    newest.symlink_to(before.name)
    ended = desk.run("demo", "--questions", "in.jsonl")
    assert ended.code == 0, ended
    assert "40 answered, 0 failed" in ended.err
    desk.must_be_empty(1)
    assert before.read_text() == "kept\n"
    assert sorted(desk.data.glob("answers-*.jsonl")) == [before, newest.resolve()]
    assert len(newest.read_text().split("\n")) == 41


@pytest.mark.soak
def test_the_demo_killed_with_kill_9_runs_again(desk: Desk) -> None:
    demo = desk.start("demo", "--questions", "in.jsonl")
    demo.wait_for("batch batch_")
    assert demo.end(signal.SIGKILL).code == -signal.SIGKILL
    ended = desk.run("demo", "--questions", "in.jsonl")
    assert ended.code == 0, ended
    assert "40 answered, 0 failed" in ended.err


def test_ctrl_c_cancels_a_batch_and_keeps_what_is_there(desk: Desk) -> None:
    more = "".join(json.dumps({"question": f"more {n}?"}) + "\n" for n in range(2000))
    (desk.folder / "many.jsonl").write_text(QUESTIONS + more)
    out = desk.folder / "out.jsonl"
    with FakeProvider(latency=0.2) as provider:
        provider.when("question 7?", "sorry")
        batch = desk.start(
            "batch", "run", "many.jsonl", "-o", "out.jsonl", "--model", "gpt-4o-mini",
            OPENAI_API_KEY="sk-test", AIFORGE_OPENAI_BASE_URL=provider.url, AIFORGE_CONCURRENCY="5",
        )  # fmt: skip
        batch.wait_for("nothing is running here, so a temporary stack is used")
        batch.wait_for("batch batch_")
        wait_until(lambda: out.read_bytes().count(b"\n") > 7, SECONDS)
        ended = batch.end(signal.SIGINT)
    assert ended.code == 130, ended
    desk.must_be_empty()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert f"cancelled: {len(rows)} of 2040 rows are in out.jsonl" in ended.err
    assert 7 < len(rows) < 2000
    assert [row["index"] for row in rows] == sorted(row["index"] for row in rows)
    assert rows[7]["answer"] == "sorry"
    assert all(row["model"] == "gpt-4o-mini" and float(row["cost_usd"]) > 0 for row in rows)


def test_a_demo_whose_chat_fails_says_why(desk: Desk) -> None:
    (desk.folder / "few.jsonl").write_text('{"question": "one?"}\n')
    with FakeProvider() as provider:
        provider.when("My parcel was due", Reply(status=400, error={"message": "no parcels here"}))
        ended = desk.run(
            "demo", "--questions", "few.jsonl",
            OPENAI_API_KEY="sk-test", AIFORGE_OPENAI_BASE_URL=provider.url,
        )  # fmt: skip
    assert ended.code == 1
    assert "the turn is failed: " in ended.err
    assert "no parcels here" in ended.err


LOST: Final = """
import signal, sys, weakref
from aiforge.cli import main

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "aiforge.cli.app":
            thing = type("Thing", (), {})()
            known = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
            del thing
        return None

sys.meta_path.insert(0, Interrupts())
sys.argv = ["aiforge", "--version"]
main()
"""


def test_a_ctrl_c_while_commands_are_loaded_is_not_lost_where_python_ignores_exceptions() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", LOST], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
