"""What commands answer when there is nothing to talk to, or when they are asked for nonsense."""

from __future__ import annotations

import fcntl
import json
import socket
from pathlib import Path

import pytest

from aiforge.cli.settings import ServiceSettings
from aiforge.cli.show_settings import readable
from tests.aiforge.cli.command import Desk, Room
from tests.support.cluster import RedisCluster
from tests.support.sentinel import Watched


def test_help_lists_the_commands(tmp_path: Path) -> None:
    shown = Desk(tmp_path).run("--help")
    assert shown.code == 0
    for name in (
        "demo",
        "up",
        "worker",
        "api",
        "chat",
        "submit",
        "tail",
        "history",
        "queue",
        "cancel",
        "resume",
        "status",
        "usage",
        "batch",
        "files",
        "conversations",
        "dead",
        "providers",
        "doctor",
    ):
        assert f"\n  {name} " in shown.out


TURN = "171f0a93c2d4e5b6a7f809"
CONVERSATION = "1 to 128 characters of A-Z a-z 0-9 . _ - and not only one dot or two"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nonsense"], 2, "No such command 'nonsense'."),
        (["chat"], 2, "Missing argument 'MESSAGE'."),
        (["chat", "hi", "--colour", "red"], 2, "No such option: --colour"),
        (["batch", "run", "none.jsonl"], 2, "none.jsonl: no such file"),
        (["status"], 1, "nothing is running here: start `aiforge up`, or set AIFORGE_API_URL"),
        (["history", "user-1"], 1, "nothing is running here: start `aiforge up`, or set AIFORGE_API_URL"),
        (["dead", "ls"], 1, "nothing is running here: start `aiforge up`, or set AIFORGE_API_URL"),
        (["cancel"], 2, "Missing argument 'TURN'."),
        (["resume", "171f0a93c2d4e5b6a7f809", " "], 1, "the answer is empty"),
        (["tail", "17ab"], 2, f"TURN: must be a turn's id, such as {TURN}, not '17ab'"),
        (
            ["dead", "show", f"batch_{TURN}"],
            2,
            f"TURN: must be a turn's id, such as {TURN}, not 'batch_{TURN}'",
        ),
        (["status", "17ab"], 2, f"TURN|BATCH: must be a turn's id, such as {TURN}, not '17ab'"),
        (["status", "batch_1"], 2, f"TURN|BATCH: must be a batch's id, such as batch_{TURN}, not 'batch_1'"),
        (["batch", "watch", TURN], 2, f"BATCH: must be a batch's id, such as batch_{TURN}, not '{TURN}'"),
        (["files", "get", "a.jsonl"], 2, f"FILE: must be a file's id, such as file-{TURN}, not 'a.jsonl'"),
        (["schedule", "rm", "x"], 2, f"SCHEDULE: must be a schedule's id, such as sched_{TURN}, not 'x'"),
        (["history", "caf\udce9"], 2, f"CONVERSATION: must be {CONVERSATION}, not 'caf\\udce9'"),
        (["history", "a b"], 2, f"CONVERSATION: must be {CONVERSATION}, not 'a b'"),
        (["submit", "Hello?", "-c", ".."], 2, f"--conversation: must be {CONVERSATION}, not '..'"),
        (["usage", "--calls", "--turn", "x"], 2, f"--turn: must be a turn's id, such as {TURN}, not 'x'"),
        (["usage", "--from", "1/2/2030"], 2, "--from: a day such as 2030-01-31, not '1/2/2030'"),
        (["conversations", "import", "none.json"], 2, "none.json: no such file"),
        (["conversations", "export", "c", "-o", "no/x"], 2, "no/x: there is no such folder"),
        (["flower"], 1, "nothing is running here: start `aiforge up`, or set AIFORGE_REDIS_URL"),
    ],
)
def test_mistakes_are_one_line(room: Room, arguments: list[str], code: int, says: str) -> None:
    ended = room.run(*arguments)
    assert (ended.code, ended.out, ended.err) == (code, "", f"aiforge: {says}\n")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("AIFORGE_DURABILITY", "never", "AIFORGE_DURABILITY: Input should be 'everysec' or 'always'"),
        ("AIFORGE_TEMPERATURE", "warm", "AIFORGE_TEMPERATURE: "),
    ],
)
def test_a_wrong_setting_is_exit_3(room: Room, name: str, value: str, says: str) -> None:
    for command in (["chat", "hi"], ["up"], ["demo", "--questions", "in.jsonl"]):
        ended = room.run(*command, **{name: value})
        assert ended.code == 3
        assert says in ended.err
        assert ended.err.count("\n") == 1


def test_an_api_that_is_not_there_is_one_line(room: Room) -> None:
    ended = room.run("chat", "hi", AIFORGE_API_URL="http://127.0.0.1:1")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "cannot reach http://127.0.0.1:1" in ended.err


def test_files_of_a_stack_that_was_killed_mislead_nobody(room: Room) -> None:
    room.data.mkdir()
    running = {"api_url": "http://127.0.0.1:1", "metrics_port": 1, "redis_url": "redis://127.0.0.1:1"}
    running |= {"provider": "offline", "pids": {}, "started_at": 0}
    (room.data / "run.json").write_text(json.dumps(running))
    (room.data / "run.lock").touch()
    assert room.run("status").code == 1
    assert json.loads(room.run("status", "--json").out) == {"running": False}


def test_config_shows_values_and_their_sources_and_no_secret(room: Room) -> None:
    (room.folder / "aiforge.yaml").write_text("model: from-yaml\nworker:\n  concurrency: 7\n")
    (room.folder / ".env").write_text("AIFORGE_MAX_TOKENS=99\n")
    shown = room.run(
        "config",
        "--json",
        OPENAI_API_KEY="sk-canary",
        AIFORGE_API_TOKEN="token-canary",
        AIFORGE_REDIS_URL="redis://user:pw-canary@127.0.0.1:1/0",
    )
    assert shown.code == 0
    assert "canary" not in shown.out + shown.err
    found = {
        line["name"]: (line["value"], line["source"]) for line in map(json.loads, shown.out.splitlines())
    }
    assert found["AIFORGE_MODEL"] == ("from-yaml", "aiforge.yaml")
    assert found["AIFORGE_CONCURRENCY"] == ("7", "aiforge.yaml")
    assert found["AIFORGE_MAX_TOKENS"] == ("99", ".env AIFORGE_MAX_TOKENS")
    assert found["AIFORGE_OPENAI_API_KEY"] == ("********", "environment OPENAI_API_KEY")
    assert found["AIFORGE_REDIS_URL"] == (
        "redis://user:********@127.0.0.1:1/0",
        "environment AIFORGE_REDIS_URL",
    )
    assert found["AIFORGE_API_PORT"] == ("8000", "default")


def test_config_names_a_wrong_value(room: Room) -> None:
    shown = room.run("config", AIFORGE_CONCURRENCY="many")
    assert shown.code == 3
    assert "AIFORGE_CONCURRENCY: " in shown.err


@pytest.mark.parametrize("command", [["up"], ["demo", "--questions", "in.jsonl"], ["chat", "hi"]])
def test_an_endpoint_without_a_key_is_named_before_anything_starts(room: Room, command: list[str]) -> None:
    (room.folder / "in.jsonl").write_text('{"question": "?"}\n')
    ended = room.run(*command, OPENAI_BASE_URL="http://user:pw-canary@llm.example:8080/v1")
    assert ended.code == 3
    assert ended.err.splitlines()[-1] == (
        "aiforge: no OPENAI_API_KEY found, and OPENAI_BASE_URL is http://llm.example:8080: set the key "
        "(any text for a server that asks for none), or AIFORGE_PROVIDER=offline"
    )
    assert not (room.data / "embedded.lock").exists()


def test_doctor_says_what_to_do(room: Room) -> None:
    shown = room.run("doctor")
    assert shown.code == 1
    assert "✓ Python: " in shown.out
    assert "✗ provider: openai without a key → set OPENAI_API_KEY" in shown.out
    assert "– Redis: embedded, not running → `aiforge up` starts it" in shown.out
    assert shown.err == "aiforge: 1 thing is wrong\n"
    shown = room.run("doctor", OPENAI_BASE_URL="http://llm.example:8080/v1")
    assert (
        "✗ provider: openai at http://llm.example:8080 without a key → set OPENAI_API_KEY (any" in shown.out
    )


def test_doctor_does_not_miss_a_key_that_only_the_service_needs(room: Room) -> None:
    room.data.mkdir()
    started = {
        "api_url": "http://127.0.0.1:1",
        "metrics_port": 1,
        "redis_url": "",
        "pids": {},
        "started_at": 0,
    }
    (room.data / "run.json").write_text(json.dumps({**started, "provider": "openai"}))
    with (room.data / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "✓ provider: openai, set where `aiforge up` was started" in room.run("doctor").out
    elsewhere = room.run("doctor", AIFORGE_API_URL="http://127.0.0.1:1").out
    assert "✓ provider: the one of the service at AIFORGE_API_URL" in elsewhere


def test_doctor_of_a_redis_that_is_not_there(room: Room) -> None:
    shown = room.run(
        "doctor", "--json", AIFORGE_REDIS_URL="redis://127.0.0.1:1/0", AIFORGE_PROVIDER="offline"
    )
    assert shown.code == 1
    found = {line["check"]: line for line in map(json.loads, shown.out.splitlines())}
    assert [name for name, line in found.items() if line["verdict"] == "wrong"] == ["Redis"]
    assert "refused" in found["Redis"]["says"]


def test_doctor_asks_every_primary_of_a_cluster_and_the_one_behind_sentinels(room: Room) -> None:
    def said(url: str) -> str:
        return room.run("doctor", AIFORGE_REDIS_URL=url, AIFORGE_PROVIDER="offline").out

    with RedisCluster() as cluster:
        assert "✓ Redis: AIFORGE_REDIS_URL, cluster of 3 primaries, Valkey" in said(cluster.url)
        cluster.primaries[1].ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        assert f"✗ Redis: AIFORGE_REDIS_URL, 127.0.0.1:{cluster.primaries[1].port}, Valkey" in said(
            cluster.url
        )
    with Watched() as watched:
        assert "✓ Redis: AIFORGE_REDIS_URL, Valkey" in said(watched.url)
        assert "knows no service 'other'" in said(watched.url.replace("mymaster", "other"))


def test_settings_are_found_in_every_section_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIFORGE_REDIS_URL", raising=False)
    (tmp_path / "aiforge.yaml").write_text(
        "data_dir: d\nworker: {redis_url: 'redis://h/1'}\napi: {API_TOKEN: t}\n"
    )
    settings = ServiceSettings.load()
    assert (settings.redis_url, settings.token, settings.data_dir) == ("redis://h/1", "t", Path("d"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@h:1/0", "redis://:********@h:1/0"),
        ("redis://u:pw@h:1/0", "redis://u:********@h:1/0"),
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis+cluster://u:pw@h:1,g:2", "redis+cluster://u:********@h:1,g:2"),
        ("redis+sentinel://h:1/m?sentinel_password=pw", "redis+sentinel://h:1/m?sentinel_password=********"),
        ("https://api.example.com/v1", "https://api.example.com/v1"),
    ],
)
def test_passwords_in_urls_are_masked(url: str, shown: str) -> None:
    assert readable(url) == shown


@pytest.mark.parametrize("command", [["up"], ["demo", "--questions", "in.jsonl"], ["chat", "hi"], ["worker"]])
def test_a_data_folder_that_cannot_be_is_named(room: Room, command: list[str]) -> None:
    (room.folder / "in.jsonl").write_text('{"question": "?"}\n')
    ended = room.run(*command, AIFORGE_DATA_DIR="/proc/none", AIFORGE_PROVIDER="offline")
    assert ended.code == 3
    assert ended.err.splitlines()[-1].startswith("aiforge: AIFORGE_DATA_DIR: /proc/none cannot be used: ")


def test_a_taken_port_of_flower_s_is_named(room: Room) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]
        ended = room.run("flower", "--port", str(port), AIFORGE_REDIS_URL="redis://127.0.0.1:1/0")
    assert (ended.code, ended.err) == (3, f"aiforge: --port: {port} is taken\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["chat", "caf\udce9"], 2, "message: is not UTF-8"),
        (["submit", "hi", "--system-prompt", "caf\udce9"], 2, "--system-prompt: is not UTF-8"),
        (["batch", "run", "in.csv", "--model", "caf\udce9"], 2, "--model: is not UTF-8"),
    ],
)
def test_an_argument_that_is_no_text_is_named(room: Room, arguments: list[str], code: int, says: str) -> None:
    ended = room.run(*arguments)
    assert (ended.code, ended.err) == (code, f"aiforge: {says}\n")


def test_stdin_that_is_no_text_is_one_line_before_anything_starts(desk: Desk) -> None:
    ended = desk.run("chat", "-", given=b"caf\xe9")
    assert (ended.code, ended.err) == (1, "aiforge: the message on stdin is not UTF-8\n")
    assert not desk.data.exists()
