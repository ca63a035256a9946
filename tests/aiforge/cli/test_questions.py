"""Questions at the command line: what is said about a file, and how its questions are sent."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from aiforge.cli import answers, questions
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.split import BATCH_BYTES, BATCH_ITEMS, must_go_in_order, split
from aiforge.client import Failure, Item, Row
from aiforge.core.types import Usage
from aiforge.questions.question import Question
from aiforge.questions.shape import COLUMNS
from tests.aiforge.cli.command import Room

EXAMPLE = Path(__file__).parents[3] / "examples" / "faq.jsonl"


def asked(count: int, text: str) -> Iterator[Question]:
    return (Question(number, None, text, text) for number in range(count))


def test_many_questions_become_several_batches() -> None:
    assert [len(items) for items in split(asked(2 * BATCH_ITEMS + 1, "x"))] == [BATCH_ITEMS, BATCH_ITEMS, 1]
    assert [len(items) for items in split(asked(3, "x" * (BATCH_BYTES // 2)))] == [1, 1, 1]
    assert list(split(asked(0, "x"))) == []


def within(*names: str | None, text: str = "x") -> list[Question]:
    return [Question(number, None, text, text, conversation=name) for number, name in enumerate(names)]


def test_a_conversation_stays_within_one_batch() -> None:
    half = "x" * (BATCH_BYTES // 2)
    must_go_in_order(within("a", "a", "b", "a"))
    must_go_in_order(within("a", None, "b", None, text=half))
    with pytest.raises(UsageError, match=r"conversation 'a' is spread over more than one batch of 50,000"):
        must_go_in_order(within("a", "b", "a", text=half))


def test_an_item_says_what_its_line_says() -> None:
    (turn,) = next(split(within("user-1")))
    assert turn == Item(message="x", conversation="user-1")
    question = Question(1, "a", "one", "Please: one", {"model": "m", "tools": ["search"]})
    (item,) = next(split([question]))
    assert item == Item(message="Please: one", id="a", model="m", tools=["search"])


def test_a_row_of_the_service_as_a_record() -> None:
    usage = Usage(input_tokens=2, output_tokens=3)
    row = Row(index=0, status="ok", answer="x", cost=Decimal("1E-7"), usage=usage, latency_ms=1234.56)
    told = answers.record(row)
    assert set(told) == set(COLUMNS) - {"index", "id", "question", "digest"}
    assert (told["cost_usd"], told["latency_s"], told["input_tokens"]) == ("0.0000001", 1.2346, 2)
    told = answers.record(Row(index=0, status="error", error=Failure("rate_limited", "no")))
    assert (told["error_class"], told["error_message"], told["cost_usd"]) == ("rate_limited", "no", None)


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (b"nr,sujet\n1,x\n", UsageError, "--column: nr, sujet"),
        (b"q\na\0\n", CommandError, "1 line is wrong, so nothing was sent"),
    ],
)
def test_a_file_that_does_not_fit_ends_the_command(
    tmp_path: Path, content: bytes, kind: type[CommandError], says: str
) -> None:
    (tmp_path / "in.csv").write_bytes(content)
    with pytest.raises(CommandError, match=says) as caught, questions.opened(str(tmp_path / "in.csv")):
        pass
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["in.csv", "-o", "in.csv"], 2, "aiforge: in.csv: input and output are the same file"),
        (["in.csv", "-o", "none/out.csv"], 2, "aiforge: none/out.csv: there is no such folder"),
        (
            ["in.csv", "--delimiter", ";;"],
            2,
            "aiforge: --delimiter: one character such as ; or |, or the word tab",
        ),
        (
            ["in.csv", "--id-column", "x"],
            2,
            "aiforge: --id-column: there is no column 'x'; there are: id, question",
        ),
        (
            ["in.csv", "--delimiter", "tab"],
            2,
            "aiforge: in.csv: 'id,question' could be the name of the only column or "
            "the first question; say --column with that name, or --no-header",
        ),
        (
            ["in.csv", "--prompt-template", "{x}"],
            2,
            "aiforge: --prompt-template: there is no column 'x'; there are: id, question",
        ),
        (
            ["in.csv", "--encoding", "x"],
            2,
            "aiforge: --encoding: 'x' is no encoding; utf-8, utf-16 and cp1252 are",
        ),
        (
            ["in.csv", "-o", "mine.csv"],
            2,
            "aiforge: mine.csv: is there already, and line 1 is no row of answers; name another file with -o",
        ),
        (
            ["bad.csv", "-o", "out.csv"],
            1,
            "aiforge: bad.csv: 2 lines are wrong, so nothing was sent\n"
            "  line 3 'id' '1' stands in line 2 already\n  line 4 'question' must not be empty",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(
    room: Room, arguments: list[str], code: int, says: str
) -> None:
    (room.folder / "in.csv").write_bytes(b"id,question\n1,x\n")
    (room.folder / "bad.csv").write_bytes(b"id,question\n1,x\n1,y\n3,\n")
    (room.folder / "mine.csv").write_bytes(b"my,table\n1,2\n")
    ended = room.run("batch", "run", *arguments)
    assert (ended.code, "\n".join(ended.err.splitlines()[-len(says.splitlines()) :])) == (code, says)
    assert sorted(path.name for path in room.folder.iterdir() if path.is_file()) == [
        "bad.csv",
        "in.csv",
        "mine.csv",
    ]


def test_the_shipped_questions() -> None:
    with questions.opened(str(EXAMPLE)) as found:
        rows = list(found)
    texts = [str(row.text) for row in rows]
    assert len(texts) == 200
    assert [row.id for row in rows] == [f"q{number:03}" for number in range(1, 201)]
    assert len(set(texts)) < 200
    assert min(map(len, texts)) < 10
    assert max(map(len, texts)) > 500
