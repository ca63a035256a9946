"""What a terminal of 80 columns shows whole: the list of commands, settings, and the sums of usage."""

from __future__ import annotations

from decimal import Decimal
from io import StringIO

import pytest
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from aiforge.cli import config, usage
from aiforge.cli.groups import GROUPS
from aiforge.cli.output import listed
from aiforge.cli.show_settings import Shown, readable
from aiforge.client import UsageRow
from aiforge.client.options import Group
from tests.aiforge.cli.command import Room

COLUMNS = 80


def row(**fields: int | str | Decimal) -> UsageRow:
    empty = {
        "calls": 0,
        "failed_calls": 0,
        "lost_calls": 0,
        "input_tokens": 0,
        "output_tokens": 0,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
        "cost": Decimal(0),
        "unpriced_calls": 0,
    }
    return UsageRow(**{**empty, **fields})  # type: ignore[arg-type]  # the fields are those of the test


def shown(rows: list[UsageRow], *groups: Group) -> list[list[str]]:
    return on_a_terminal(usage.table(rows, groups))


def on_a_terminal(table: Table) -> list[list[str]]:
    """The words of each line."""
    out = StringIO()
    Console(file=out, width=COLUMNS, highlight=False).print(table)
    assert "…" not in out.getvalue()
    return [line.split() for line in out.getvalue().splitlines()]


def test_of_usage_a_terminal_sees_whole_figures_and_no_column_of_zeros() -> None:
    plain = row(model="offline", day="2030-01-31", calls=5207, input_tokens=1_240_388, output_tokens=9)
    assert shown([plain], "model", "day") == [
        ["model", "day", "calls", "input", "output", "USD"],
        ["offline", "2030-01-31", "5,207", "1,240,388", "9", "0"],
    ]
    failed = row(model="offline", calls=2, failed_calls=1, cost=Decimal("0.00000010"))
    header, first, second = shown([plain, failed], "model")
    assert header == ["model", "calls", "failed", "input", "output", "USD"]
    assert (first[2], second[2], second[-1]) == ("0", "1", "0.00000010")


def test_a_name_is_folded_before_a_figure_is_cut() -> None:
    long = row(
        model="fireworks/accounts/fireworks/models/llama-v3p1-405b-instruct",
        day="2030-01-31",
        calls=5_000_000,
        failed_calls=12,
        input_tokens=100_000_000,
        output_tokens=100_000_000,
        cost=Decimal("1234.5678"),
    )
    _, first, *more = shown([long], "model", "day")
    assert first[1:] == [
        "2030-01-31", "5,000,000", "12", "100,000,000", "100,000,000", "1,234.5678",
    ]  # fmt: skip
    assert "".join([first[0], *(word for line in more for word in line)]) == long.model


def test_a_setting_s_name_is_whole_however_long_its_value_is() -> None:
    name, url = "AIFORGE_TOKENS_BEFORE_SUMMARIZE", "https://llm.example/" + "v1/" * 30
    first, *more = on_a_terminal(config.table([Shown(name, url, "environment OPENAI_BASE_URL")]))
    assert first[0] == name
    told = "".join(word for line in (first[1:], *more) for word in line)
    assert set(url) <= set(told), "folded, and not cut"
    assert len(told) == len(url) + len("environmentOPENAI_BASE_URL")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (2_592_000.0, "2592000"),
        (0.05, "0.05"),
        (["cat", "cut"], '["cat","cut"]'),
        ({}, "{}"),
        ("", None),
        (None, None),
        ({"own": SecretStr("canary")}, '{"own":"**********"}'),
    ],
)
def test_a_setting_is_shown_as_one_would_write_it(value: object, text: str | None) -> None:
    assert readable(value) == text


@pytest.mark.parametrize("command", [[], *([name] for name, _ in GROUPS)])
def test_the_list_of_commands_breaks_off_no_sentence(room: Room, command: list[str]) -> None:
    listed = room.run(*command, "--help")
    assert listed.code == 0
    _, _, commands = listed.out.partition("Commands:\n")
    assert commands
    assert "..." not in commands


def test_a_list_of_nothing_says_so_on_stderr_only(capsys: pytest.CaptureFixture[str]) -> None:
    listed([], "no files")
    assert capsys.readouterr() == ("", "no files\n")
    listed(["one", "two"], "no files")
    assert capsys.readouterr() == ("one\ntwo\n", "")


def test_the_version_is_said(room: Room) -> None:
    told = room.run("--version")
    assert (told.code, told.out.split()[0]) == (0, "aiforge")
    assert told.out.split()[1][0].isdigit()
