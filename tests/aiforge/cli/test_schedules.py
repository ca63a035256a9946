"""`aiforge schedule …` against a real API."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.aiforge.cli.command import Ended, Room
from tests.support.processes import Start
from tests.support.servers import RedisServer


class Clock:
    """The commands, and the API that they ask."""

    def __init__(self, room: Room, url: str) -> None:
        self._room = room
        self._url = url

    def run(self, verb: str, *arguments: str) -> Ended:
        return self._room.run("schedule", verb, *arguments, AIFORGE_API_URL=self._url)

    def json(self, verb: str, *arguments: str) -> Any:
        ended = self.run(verb, *arguments, "--json")
        assert ended.code == 0, ended
        return [json.loads(line) for line in ended.out.splitlines()]


@pytest.fixture
def clock(room: Room, api_process: Start) -> Clock:
    return Clock(room, api_process().url)


def test_a_schedule_from_its_making_to_its_end(clock: Clock, room: Room, server: RedisServer) -> None:
    options = ("-c", "user-42", "--timezone", "Europe/Berlin", "--catch-up", "skip", "--on-busy", "reject")
    made = clock.run("add", "0 9 * * MON-FRI", "Any news?", *options, "--ends-at", "90d")
    assert made.code == 0, made
    name = made.out.strip()
    assert "fires next" in made.err

    (found,) = clock.json("show", name)
    assert found["turn"]["message"] == "Any news?"
    assert (found["turn"]["on_busy"], found["catch_up"]) == ("reject", "skip")
    shown = clock.run("show", name).out
    assert shown.startswith(f"{name}  0 9 * * MON-FRI  Europe/Berlin  conversation user-42  next ")

    (room.folder / "night.json").write_text('{"items": ["Open?", {"message": "Why?"}], "model": "m"}')
    batch = clock.run("add", "30 2 * * *", "--batch", "night.json", "--paused").out.strip()
    (found,) = clock.json("show", batch)
    assert (found["batch"]["model"], [item["message"] for item in found["batch"]["items"]]) == (
        "m",
        ["Open?", "Why?"],
    )
    assert [one["schedule_id"] for one in clock.json("ls")] == [batch, name]
    assert [one["schedule_id"] for one in clock.json("ls", "-c", "user-42")] == [name]
    assert clock.run("ls", "--limit", "1").out.startswith(f"{batch}  30 2 * * *  UTC  batch  paused")

    assert "  paused" in clock.run("pause", name).out
    assert "  next " in clock.run("resume", name).out
    for one in (name, batch):
        assert clock.run("rm", one).code == 0
    assert clock.json("ls") == []
    gone = clock.run("show", name)
    assert (gone.code, "not_found" in gone.err) == (1, True)


WRONG: Final[dict[tuple[str, ...], tuple[int, str]]] = {
    ("61 * * * *", "Hi"): (1, "bad minute '61'"),
    ("* * * * *",): (2, "say either MESSAGE or --batch"),
    ("* * * * *", "Hi", "--batch", "x.json"): (2, "say either MESSAGE or --batch"),
    ("* * * * *", "--batch", "x.json"): (2, "x.json: no such file"),
    ("* * * * *", "--batch", "empty.json"): (1, "has no list of items"),
    ("* * * * *", "--batch", "empty.json", "--model", "m"): (2, "its file says"),
    ("* * * * *", "Hi", "--starts-at", "soon"): (2, "--starts-at: 90s"),
    ("* * * * *", "Hi", "--timezone", "Mars/Base"): (1, "no zone of the IANA database"),
}


def test_what_is_wrong_is_said_in_one_line(clock: Clock, room: Room) -> None:
    (room.folder / "empty.json").write_text("{}")
    for arguments, (code, says) in WRONG.items():
        ended = clock.run("add", *arguments)
        assert (ended.code, ended.out) == (code, ""), ended
        assert says in ended.err
