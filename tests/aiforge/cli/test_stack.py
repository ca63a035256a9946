"""Everything real: a stack that dies, comes back and answers all that is asked; stacks that cannot start."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import pytest

from aiforge.testing import FakeProvider
from tests.aiforge.cli.command import FREE_PORTS, Desk, Room, Running
from tests.aiforge.cli.hidden import base_install
from tests.support.waiting import wait_until

DEFAULT_PORTS: Final = (8000, 9808)


def a_service_that_dies_ends_the_rest(desk: Desk) -> None:
    with some_ports_taken() as taken:
        up = desk.start("up")
        up.wait_for("ready; Ctrl-C")
    for port, what in zip(taken, ("the API", "the worker's metrics"), strict=True):
        assert f"port {port} is taken: {what} moved to http://127.0.0.1:" in up.err
    assert desk.run("chat", "My name is Ada.", "-c", "before").code == 0
    pids = json.loads((desk.data / "run.json").read_text())["pids"]
    os.kill(pids["worker"], signal.SIGKILL)
    ended = up.end()
    assert ended.code == 1
    assert "aiforge: worker was killed by SIGKILL" in ended.err
    assert "worker: ready" in ended.err
    desk.must_be_empty(1)


@contextmanager
def some_ports_taken() -> Iterator[tuple[int, ...]]:
    """The default ports of API and worker, held by us where nobody else has them."""
    with ExitStack() as stack:
        for port in DEFAULT_PORTS:
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield DEFAULT_PORTS


def what_it_says(up: Running, room: Room) -> None:
    assert "no OPENAI_API_KEY found: provider set to offline" in up.err
    assert "http://127.0.0.1:" in up.err
    assert up.out == ""


def what_was_said_before_it_was_restarted_is_known(up: Running, room: Room) -> None:
    ended = room.run("chat", "Who am I?", "-c", "before")
    assert ended.code == 0
    assert "My name is Ada." in ended.out


def chat_streams_and_remembers(up: Running, room: Room) -> None:
    first = room.run("chat", "My name is Ada.", "-c", "user-1")
    assert first.code == 0, first
    assert "My name is Ada." in first.out
    # On a machine that is busy, a line before it may say that an attempt was lost.
    assert first.err.splitlines()[-1].startswith("conversation user-1 · "), first
    second = up.desk.run("chat", "-", "-c", "user-1", "--json", given=b"And now?")
    turn = json.loads(second.out)
    assert (turn["state"], turn["conversation_id"], second.err) == ("completed", "user-1", "")
    history = room.run("history", "user-1", "--json").out.splitlines()
    assert [json.loads(line)["role"] for line in history] == ["user", "assistant"] * 2
    assert json.loads(history[3])["content"] == turn["answer"]


def submit_tail_status(up: Running, room: Room) -> None:
    turn_id = room.run("submit", "Hello").out.strip()
    tail = room.run("tail", turn_id)
    assert tail.code == 0
    events = [json.loads(line) for line in room.run("tail", turn_id, "--json").out.splitlines()]
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert events[-2]["event"] == {
        "type": "message",
        "text": tail.out.strip(),
        "stopped": False,
        "iteration_limit": False,
    }
    assert events[-1]["event"]["type"] == "done"
    assert "completed" in room.run("status", turn_id).out
    told = json.loads(room.run("status", "--json").out)
    assert told["ready"] is True
    assert told["metrics_url"] in room.run("status").out


def an_unknown_turn_is_one_line(up: Running, room: Room) -> None:
    ended = up.desk.run("tail", "00aaaaaaaaaaaaaaaaaaaa")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "not_found" in ended.err


def batch_to_csv(up: Running, room: Room) -> None:
    ended = room.run("batch", "run", "in.jsonl", "-o", "out.csv")
    assert ended.code == 0
    assert "40/40 done, 0 failed" in ended.err
    with (room.folder / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"n{n}" for n in range(40)]
    assert {(row["status"], row["cost_usd"]) for row in rows} == {("ok", "0")}


def batch_through_pipes_by_a_client_that_has_no_service_installed(up: Running, room: Room) -> None:
    elsewhere = up.desk.folder / "elsewhere"
    elsewhere.mkdir()
    url = json.loads((up.desk.data / "run.json").read_text())["api_url"]
    client = Desk(elsewhere, AIFORGE_API_URL=url, **base_install(elsewhere / "hidden"))
    piped = client.run("batch", "run", "-", "--column", "q", given=b"q\nfirst\nsecond\n")
    assert piped.code == 0, piped
    rows = list(csv.DictReader(piped.out.splitlines()))
    assert [(row["question"], row["status"]) for row in rows] == [("first", "ok"), ("second", "ok")]


def doctor_finds_nothing_wrong(up: Running, room: Room) -> None:
    shown = room.run("doctor")
    assert shown.code == 0, shown
    assert "– provider: offline, because there is no key" in shown.out


def a_second_up_is_refused(up: Running, room: Room) -> None:
    ended = room.run("up")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "it runs already" in ended.err


def flower_can_read_the_tasks_and_the_queues(up: Running, room: Room) -> None:
    with FakeProvider() as somebody:
        port = int(somebody.root.rpartition(":")[2])
    flower = up.desk.start("flower", "--port", str(port))
    root = f"http://127.0.0.1:{port}"
    url = f"{root}/tasks/datatable?draw=1&start=0&length=9&search%5Bvalue%5D="
    url += "&order%5B0%5D%5Bcolumn%5D=0&order%5B0%5D%5Bdir%5D=asc&columns%5B0%5D%5Bdata%5D=name"

    def seen() -> bool:
        room.run("submit", "Hello", "--wait", "10")
        with urllib.request.urlopen(url, timeout=5) as reply:
            return any(task["state"] == "SUCCESS" for task in json.load(reply)["data"])

    try:
        flower.wait_for("Connected to")
        wait_until(seen, 30)
        with urllib.request.urlopen(f"{root}/broker", timeout=5) as reply:
            assert b"aiforge.chat" in reply.read()
    finally:
        flower.end(signal.SIGTERM)


@pytest.mark.timeout(240)
def test_a_stack_dies_and_comes_back_and_answers_all_that_one_asks(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    a_service_that_dies_ends_the_rest(desk)
    up = desk.start("up", **FREE_PORTS)
    up.wait_for("ready; Ctrl-C stops everything")
    for question in (
        what_it_says,
        what_was_said_before_it_was_restarted_is_known,
        chat_streams_and_remembers,
        submit_tail_status,
        an_unknown_turn_is_one_line,
        batch_to_csv,
        batch_through_pipes_by_a_client_that_has_no_service_installed,
        doctor_finds_nothing_wrong,
        a_second_up_is_refused,
        flower_can_read_the_tasks_and_the_queues,
    ):
        with subtests.test(question.__name__):
            question(up, Room(desk.folder, monkeypatch, capsys))
    assert up.end(signal.SIGTERM).code == 0
    assert not (desk.data / "run.json").exists()
    desk.must_be_empty(1)


def test_a_wrong_setting_of_a_service_is_its_one_line_and_exit_3(desk: Desk) -> None:
    ended = desk.run("chat", "hi", AIFORGE_API_MAX_BODY_BYTES="many")
    assert ended.code == 3
    assert ended.err.splitlines()[-1].startswith("aiforge: api: AIFORGE_API_MAX_BODY_BYTES: ")


def test_worker_and_api_without_a_key_exit_3(desk: Desk) -> None:
    """At the same time, so that one of them uses the server that the other one started."""
    for running in [desk.start("worker"), desk.start("api")]:
        ended = running.end()
        assert ended.code == 3
        assert "AIFORGE_OPENAI_API_KEY" in ended.err
