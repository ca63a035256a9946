"""`aiforge batch …` and `aiforge files …` against a real API, for the most part without a worker."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from aiforge.testing import FakeProvider, Gate, Reply
from tests.aiforge.cli.command import SECONDS, Desk, Ended, Room
from tests.support.processes import Start
from tests.support.waiting import wait_until

LINES: Final = "".join(
    json.dumps(
        {
            "custom_id": f"n{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "offline", "messages": [{"role": "user", "content": f"question {number}?"}]},
        }
    )
    + "\n"
    for number in range(3)
)


LIMITS: Final = {"openai/gpt-4o-mini": {"requests_per_minute": 1}}


class Shell:
    """The commands, and the API that they ask."""

    def __init__(self, room: Room, url: str) -> None:
        self._room = room
        self._url = url

    def run(self, *arguments: str) -> Ended:
        return self._room.run(*arguments, AIFORGE_API_URL=self._url)

    def json(self, *arguments: str) -> Any:
        ended = self.run(*arguments, "--json")
        assert ended.code == 0, ended
        return [json.loads(line) for line in ended.out.splitlines()]


@pytest.fixture
def api(api_process: Start) -> str:
    return api_process().url


@pytest.fixture
def shell(room: Room, api: str) -> Shell:
    (room.folder / "faq.csv").write_text("id,question\n1,Open?\n2,Why?\n3,Why?\n")
    (room.folder / "talk.csv").write_text("conversation,question\na,Open?\n")
    (room.folder / "lines.jsonl").write_text(LINES)
    return Shell(room, api)


def test_a_batch_is_posted_and_steered(shell: Shell) -> None:
    assert shell.run("batch", "ls").err == "no batches\n"
    first = shell.run(
        "batch", "submit", "faq.csv", "--dedupe", "--max-cost", "2.5", "--metadata", "team=night"
    )
    assert first.code == 0, first
    name = first.out.strip()
    assert f"aiforge batch watch {name}" in first.err
    (found,) = shell.json("batch", "status", name)
    assert (found["metadata"], found["request_counts"]["total"]) == ({"team": "night"}, 3)
    (file_batch,) = shell.json("batch", "submit", "lines.jsonl", "--completion-window", "2h")
    assert file_batch["input_file_id"].startswith("file-")
    assert [one["id"] for one in shell.json("batch", "ls")] == [file_batch["id"], name]
    assert shell.run("batch", "ls", "--limit", "1").out.startswith(file_batch["id"])

    assert (
        f"{name}  paused  0/3 done, 0 failed  $0.0000 of at most $2.5  "
        in shell.run("batch", "pause", name).out
    )
    assert f"{name}  in_progress  " in shell.run("batch", "resume", name).out
    running = shell.run("batch", "export", name, "-o", "out.csv")
    assert (running.code, f"{name} is in_progress, 0 of 3 are done" in running.err) == (1, True)
    assert "(code batch_running)" in shell.run("batch", "rm", name).err
    assert shell.run("batch", "cancel", name).out.startswith(f"{name}  cancel")
    assert shell.run("batch", "rm", name).code == 0
    gone = shell.run("batch", "status", name)
    assert (gone.code, "(code not_found)" in gone.err) == (1, True)


def test_files_from_put_to_rm(shell: Shell, room: Room) -> None:
    name = shell.run("files", "put", "lines.jsonl").out.strip()
    (found,) = shell.json("files", "ls")
    assert (found["id"], found["filename"], found["bytes"]) == (name, "lines.jsonl", len(LINES))
    assert shell.run("files", "ls").out.startswith(f"{name}  {len(LINES):,} bytes  batch  ")
    assert shell.run("files", "get", name, "-o", "copy.jsonl").code == 0
    assert (room.folder / "copy.jsonl").read_text() == LINES
    assert shell.run("files", "rm", name).code == 0
    assert shell.run("files", "get", name, "-o", "again.jsonl").code == 1
    assert not (room.folder / "again.jsonl").exists()


WRONG: Final[dict[tuple[str, ...], tuple[int, str]]] = {
    ("batch", "submit", "none.jsonl"): (2, "none.jsonl: no such file"),
    ("batch", "submit", "none.csv"): (2, "none.csv: no such file"),
    ("batch", "submit", "lines.jsonl", "--model", "m"): (2, "--model: the lines of lines.jsonl are requests"),
    ("batch", "submit", "lines.jsonl", "--column", "q"): (2, "options of columns are for questions"),
    ("batch", "submit", "lines.jsonl", "--endpoint", "/v1/embeddings"): (1, "endpoint"),
    ("batch", "submit", "faq.csv", "--endpoint", "/v1/responses"): (2, "--endpoint: faq.csv has questions"),
    ("batch", "submit", "talk.csv", "--max-cost", "2"): (2, "--max-cost: turns of conversations are held"),
    ("batch", "submit", "faq.csv", "--conversation-column", "who"): (2, "there is no column 'who'"),
    ("batch", "submit", "faq.csv", "--cache-ttl", "0"): (2, "cache-ttl"),
    ("batch", "submit", "faq.csv", "--max-cost", "much"): (2, "--max-cost: an amount in USD above 0"),
    ("batch", "submit", "faq.csv", "--max-cost", "-1"): (2, "--max-cost: an amount in USD above 0"),
    ("batch", "submit", "faq.csv", "--metadata", "team"): (2, "--metadata: key=value"),
    ("batch", "submit", "faq.csv", "--completion-window", "soon"): (1, "completion_window"),
    ("batch", "status", "batch_none"): (2, "BATCH: must be a batch's id"),
    ("batch", "export", "batch_171f0a93c2d4e5b6a7f809", "-o", "faq.csv"): (2, "faq.csv: is there already"),
    ("batch", "watch", "batch_171f0a93c2d4e5b6a7f809", "-o", "out.txt"): (
        2,
        "out.txt: name it .jsonl, .csv or .tsv",
    ),
    ("batch", "export", "batch_171f0a93c2d4e5b6a7f809", "-o", "no/out.csv"): (
        2,
        "no/out.csv: there is no such folder",
    ),
    ("files", "put", "none.jsonl"): (2, "none.jsonl: no such file"),
    ("files", "put", "."): (2, ".: is no file"),
    ("files", "get", "file-171f0a93c2d4e5b6a7f809", "-o", "faq.csv"): (2, "faq.csv: is there already"),
}


def test_what_is_wrong_is_said_in_one_line(shell: Shell) -> None:
    for arguments, (code, says) in WRONG.items():
        ended = shell.run(*arguments)
        assert (ended.code, ended.out) == (code, ""), (arguments, ended)
        assert says in ended.err, (arguments, ended)
        assert ended.err.count("aiforge: ") == 1, ended


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_detaches_and_comes_back_to_its_batch_also_after_kill_9(
    desk: Desk, api: str, worker_process: Start, provider: FakeProvider
) -> None:
    command = ("batch", "run", "in.jsonl", "-o", "out.csv")
    first = desk.start(*command, AIFORGE_API_URL=api)
    first.wait_for("batch batch_")
    ended = first.end(signal.SIGINT)
    assert ended.code == 130
    name = "batch_" + ended.err.partition("batch batch_")[2].partition(":")[0]
    assert "detached: 0 of 40 rows are in out.csv, and the service goes on" in ended.err
    assert f"aiforge batch watch {name}; to end it: aiforge batch cancel {name}" in ended.err
    again = desk.start(*command, AIFORGE_API_URL=api)
    again.wait_for(f"goes on with batch {name}")
    again.end(signal.SIGINT)
    assert desk.run("batch", "cancel", name, AIFORGE_API_URL=api).code == 0

    provider.when("question 39?", Reply(chunks=[Gate("rest"), "late"]))
    worker_process(concurrency="3")
    second = desk.start(*command, AIFORGE_API_URL=api)
    second.wait_for("batch batch_")
    assert name not in second.err, "nobody goes on with a batch that was cancelled"
    name = "batch_" + second.err.partition("batch batch_")[2].partition(":")[0]
    wait_until(lambda: (desk.folder / "out.csv").read_bytes().count(b"\n") > 7, SECONDS)
    second.end(signal.SIGKILL)
    provider.open("rest")
    third = desk.run(*command, AIFORGE_API_URL=api)
    assert third.code == 0, third
    assert f"goes on with batch {name}" in third.err
    assert "are answered in out.csv already" in third.err
    assert [row["id"] for row in table(desk.folder / "out.csv")] == [f"n{number}" for number in range(40)]
    assert len(provider.calls) == 40, "nothing was asked twice"
    assert [path.name for path in desk.folder.glob(".out*")] == []


def test_a_batch_is_watched_fetched_and_forgotten(shell: Shell, room: Room, worker_process: Start) -> None:
    worker_process(provider="offline")
    (room.folder / "bad.jsonl").write_text(LINES + LINES)
    name = shell.run("batch", "submit", "bad.jsonl").out.strip()
    watched = shell.run("batch", "watch", name)
    assert watched.code == 1
    assert f"{name}  failed" in watched.out
    assert [f"line {number} " in watched.err for number in (3, 4, 5, 6)] == [False, True, True, True]

    name = shell.run("batch", "submit", "faq.csv").out.strip()
    watched = shell.run("batch", "watch", name, "-o", "out.csv")
    assert watched.code == 0, watched
    assert watched.out.startswith(f"{name}  completed  3/3 done, 0 failed")
    rows = [(row["id"], row["status"], bool(row["answer"])) for row in table(room.folder / "out.csv")]
    assert rows == [(number, "ok", True) for number in "123"]
    exported = shell.run("batch", "export", name)
    assert [json.loads(line)["id"] for line in exported.out.splitlines()] == ["1", "2", "3"]
    assert "(code nothing_to_retry)" in shell.run("batch", "retry", name).err
    assert shell.run("batch", "rm", name).code == 0

    name = shell.run("batch", "submit", "lines.jsonl").out.strip()
    assert shell.run("batch", "watch", name, "-o", "out.jsonl").code == 0
    lines = [json.loads(line) for line in (room.folder / "out.jsonl").read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["n0", "n1", "n2"]
    assert shell.run("batch", "export", name, "-o", "table.csv").code == 0
    assert shell.run("batch", "export", name, "-o", "table.tsv").code == 0
    assert (room.folder / "table.tsv").read_text().startswith("index\tid\tstatus\t")
    said = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    assert [row["answer"] for row in table(room.folder / "table.csv")] == said


def test_a_run_of_conversations_takes_what_was_answered_before(
    shell: Shell, room: Room, worker_process: Start, provider: FakeProvider
) -> None:
    worker_process()
    provider.when("turn", Reply(echo=True))
    rows = [f"{'ab'[number % 2]},turn {number}" for number in range(4)]
    (room.folder / "talk.csv").write_text("\n".join(["conversation,question", *rows, ",alone?"]) + "\n")
    ended = shell.run("batch", "run", "talk.csv", "-o", "out.csv", "--cache-ttl", "600")
    assert ended.code == 0, ended
    assert "conversation from 'conversation'" in ended.err
    answers = [row["answer"] for row in table(room.folder / "out.csv")]
    asked = [turn["content"] for turn in json.loads(answers[3]) if turn["content"].startswith("turn")]
    assert asked == ["turn 1", "turn 3"]
    again = shell.run("batch", "run", "talk.csv", "-o", "other.csv", "--cache-ttl", "600")
    assert again.code == 0, again
    assert ", 1 saved, " in again.err, "turns are never taken from elsewhere"
    assert len(provider.calls) == 4 + 1 + 4
    assert table(room.folder / "other.csv")[4]["cost_usd"] == "0"
    assert "1 answers are not kept any more" in shell.run("batch", "clear-cache").err


def test_a_dry_run_says_what_it_would_take_and_asks_nothing(room: Room, tmp_path: Path) -> None:
    (room.folder / "faq.csv").write_text("id,question\n1,Open?\n2,Why?\n3,Why?\n")
    command = ("batch", "run", "faq.csv", "-o", "out.csv", "--dry-run", "--model", "gpt-4o-mini")
    told = room.run(*command, "--dedupe", "--max-tokens", "100", OPENAI_API_KEY="sk-test")
    assert told.code == 0, told
    assert "questions      2 and 1 that repeat one\n" in told.out
    assert "models         gpt-4o-mini\n" in told.out
    assert "output tokens  100 to 200\n" in told.out
    assert "USD            0.000" in told.out
    assert "prices of genai-prices" in told.out
    assert "time           unknown" in told.out
    assert "nothing was asked" in told.err
    limited = room.run(*command, OPENAI_API_KEY="sk-test", AIFORGE_LIMITS=json.dumps(LIMITS))
    assert "questions      3\n" in limited.out
    assert "time           at least 3:00 " in limited.out
    unpriced = room.run(*command[:-1], "mine", OPENAI_API_KEY="sk-test")
    assert "USD            unknown" in unpriced.out
    assert "warning: no price is known of mine" in unpriced.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faq.csv"]
