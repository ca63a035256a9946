"""Files of questions: every form that people have them in, and every bad line named."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from aiforge.cli import questions
from aiforge.cli.answers import COLUMNS, writing
from aiforge.cli.batch import BATCH_BYTES, BATCH_ITEMS, split
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.questions import Question
from aiforge.client import Failure, Row

ODD = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
BOM = b"\xef\xbb\xbf"
EXAMPLE = Path(__file__).parents[3] / "examples" / "faq.jsonl"


def written(tmp_path: Path, name: str, content: bytes) -> str:
    file = tmp_path / name
    file.write_bytes(content)
    return str(file)


def texts(found: questions.Questions) -> list[object]:
    return [row.text for row in found.rows]


@pytest.mark.parametrize("bom", [b"", BOM], ids=["plain", "bom"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("last", [True, False], ids=["last-newline", "no-last-newline"])
class TestLines:
    """Byte order marks, line ends and odd separators change nothing in the text."""

    def test_jsonl(self, tmp_path: Path, bom: bytes, end: bytes, last: bool) -> None:
        lines = [
            json.dumps({"id": number, "question": text}, ensure_ascii=False).encode()
            for number, text in enumerate([ODD, "日本😀", "two\nlines"])
        ]
        raw = bom + end.join(lines) + (end if last else b"")
        found = questions.read(written(tmp_path, "in.jsonl", raw), None, None)
        assert texts(found) == [ODD, "日本😀", "two\nlines"]
        assert [row.id for row in found.rows] == ["0", "1", "2"]
        assert [row.line for row in found.rows] == [1, 2, 3]

    def test_csv(self, tmp_path: Path, bom: bytes, end: bytes, last: bool) -> None:
        lines = [b"custom_id,Question", f'1,"{ODD}"'.encode(), b'2,"say ""hi"",' + end + b'please"', b"3,x"]
        raw = bom + end.join(lines) + (end if last else b"")
        found = questions.read(written(tmp_path, "in.csv", raw), None, None)
        assert texts(found) == [ODD, f'say "hi",{end.decode()}please', "x"]
        assert [row.id for row in found.rows] == ["1", "2", "3"]
        assert [row.line for row in found.rows] == [2, 3, 5]


def test_a_spreadsheets_semicolons(tmp_path: Path) -> None:
    found = questions.read(written(tmp_path, "in.csv", b"Nr;Frage\n1;Wo, bitte?\n"), "Frage", "Nr")
    assert (texts(found), found.rows[0].id) == (["Wo, bitte?"], "1")


def test_content_parts_are_a_question_too(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "hi"}]
    raw = json.dumps({"message": parts}).encode()
    assert texts(questions.read(written(tmp_path, "in.jsonl", raw), None, None)) == [parts]


@pytest.mark.parametrize(
    ("columns", "guess"),
    [
        (["id", "question", "language"], "question"),
        (["Prompt", "lang"], "Prompt"),
        (["nothing_known"], "nothing_known"),
        (["q", "x"], "q"),
    ],
)
def test_the_one_obvious_column_is_found(tmp_path: Path, columns: list[str], guess: str) -> None:
    raw = json.dumps(dict.fromkeys(columns, "x")).encode()
    assert questions.read(written(tmp_path, "in.jsonl", raw), None, None).column == guess


@pytest.mark.parametrize(
    ("columns", "option", "says"),
    [
        (
            ["title", "body"],
            None,
            "no column is known to hold the question; name one with --column: title, body",
        ),
        (["text", "query"], None, "several columns could hold the question; .* text, query"),
        (["text", "lang"], "txt", "--column: there is no column 'txt'; there are: text, lang"),
    ],
)
def test_without_an_obvious_column_the_columns_are_listed(
    tmp_path: Path, columns: list[str], option: str | None, says: str
) -> None:
    raw = json.dumps(dict.fromkeys(columns, "x")).encode()
    with pytest.raises(UsageError, match=says):
        questions.read(written(tmp_path, "in.jsonl", raw), option, None)


def test_every_bad_line_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    raw = b"\n".join(
        [
            b'{"id": 1, "question": "good"}',
            b"{not json",
            b"[1]",
            b'{"id": 2}',
            b'{"id": 3, "question": " "}',
            b"",
            b'{"id": 1, "question": "again"}',
            b'{"id": 4, "question": 5}',
            b'{"id": 5, "question": "\xff"}',
            b'{"id": 6, "question": "\\ud800"}',
            b'{"id": true, "question": "x"}',
        ]
    )
    with pytest.raises(CommandError, match=r"9 lines are wrong, so nothing was sent") as caught:
        questions.read(written(tmp_path, "in.jsonl", raw), None, None)
    lines = caught.value.details
    assert [line.split()[1] for line in lines] == ["2", "3", "4", "5", "7", "8", "9", "10", "11"]
    assert lines[4] == "line 7 'id' 1 stands in line 1 already"
    assert lines[6] == "line 9 is not UTF-8"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (r'{"id": "\ud800", "question": "x"}', "'id' holds a lone surrogate, which is no character"),
        (
            r'{"question": [{"type": "text", "text": "\ud800"}]}',
            "'question' holds a lone surrogate, which is no character",
        ),
        ('{"question": [{"type": "text", "text": 5}]}', "'question'[0].text expected `str`, got `int`"),
        ('{"question": []}', "'question' must be a string or a list of parts with a type"),
        ('{"question": "lost", "question": "kept"}', "has 'question' twice"),
        ('{"question": "x", "price": NaN}', "is not JSON: NaN is no JSON number"),
        ('{"question": "%s"}' % ("x" * 300_000), "'question' is longer than 262144 bytes"),
        ('{"question": [{"type": "file", "file": {"a": %s}}]}' % ("[" * 99 + "]" * 99),
         "'question' is nested more than 16 deep"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_named_by_its_line(tmp_path: Path, line: str, says: str) -> None:
    raw = b'{"question": "good"}\n' + line.encode() + b"\n"
    with pytest.raises(CommandError, match="1 line is wrong, so nothing was sent") as caught:
        questions.read(written(tmp_path, "in.jsonl", raw), None, None)
    assert caught.value.details == (f"line 2 {says}",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"id,question\n1\n2,x\n", ("line 2 has 1 cells where the header has 2",)),
        (b'id,question\n1,x\n2,"open', ("line 3 is not CSV: unexpected end of data",)),
        (b"id,question\n1,\xe9t\xe9\n", ("line 2 is not UTF-8",)),
        (b"id,question\n1,\n", ("line 2 'question' must not be empty",)),
        (b"q,q\nlost,kept\n", ("line 1 has the column 'q' twice",)),
        (b"question\nshort\n" + b"x" * 300_000, ("line 3 'question' is longer than 262144 bytes",)),
    ],
)
def test_bad_csv(tmp_path: Path, content: bytes, says: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as caught:
        questions.read(written(tmp_path, "in.csv", content), None, None)
    assert caught.value.details == says


def test_files_that_cannot_be_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"name it \.jsonl or \.csv"):
        questions.read("questions.txt", None, None)
    with pytest.raises(UsageError, match="no such file"):
        questions.read(str(tmp_path / "none.csv"), None, None)
    with pytest.raises(CommandError, match="there is no question in it"):
        questions.read(written(tmp_path, "in.csv", b"question\n"), None, None)


def answers(tmp_path: Path, name: str) -> str:
    target = tmp_path / name
    failure = Failure("rate_limited", "no")
    with writing(str(target), "jsonl" if name.endswith("l") else "csv") as out:
        out.write(
            0, Question(1, "a", ODD), Row(index=0, status="ok", answer=f'{ODD}\r\n,"x"', latency_ms=1.26)
        )
        out.write(1, Question(2, None, [{"type": "text"}]), Row(index=1, status="error", error=failure))
    return target.read_bytes().decode()


def test_answers_as_jsonl_are_one_line_for_every_reader(tmp_path: Path) -> None:
    text = answers(tmp_path, "out.jsonl")
    assert len(text.splitlines()) == 2
    first, second = map(json.loads, text.splitlines())
    assert tuple(first) == COLUMNS
    assert (first["question"], first["answer"], first["latency_ms"]) == (ODD, f'{ODD}\r\n,"x"', 1.3)
    assert (second["status"], second["error_code"], second["cost_usd"]) == ("error", "rate_limited", None)
    assert second["question"] == [{"type": "text"}]


def test_answers_as_csv_come_back_as_they_were(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(answers(tmp_path, "out.csv"), newline="")))
    assert (rows[0]["question"], rows[0]["answer"]) == (ODD, f'{ODD}\r\n,"x"')
    assert (rows[1]["id"], rows[1]["error_code"]) == ("", "rate_limited")


def test_many_questions_become_several_batches() -> None:
    many = [Question(number, None, "x") for number in range(2 * BATCH_ITEMS + 1)]
    assert [(first, len(part)) for first, part in split(many)] == [
        (0, BATCH_ITEMS),
        (BATCH_ITEMS, BATCH_ITEMS),
        (2 * BATCH_ITEMS, 1),
    ]
    large = [Question(number, None, "x" * (BATCH_BYTES // 2)) for number in range(3)]
    assert [first for first, _ in split(large)] == [0, 1, 2]


def test_the_shipped_questions() -> None:
    found = questions.read(str(EXAMPLE), None, None)
    texts = [row.text for row in found.rows]
    assert len(texts) == 200
    assert [row.id for row in found.rows] == [f"q{number:03}" for number in range(1, 201)]
    assert len(set(map(str, texts))) < 200
    assert min(map(len, texts)) < 10
    assert max(map(len, texts)) > 500
