"""What spreadsheets and people leave in a table beside its questions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiforge.questions.errors import BadLinesError, UnclearError
from aiforge.questions.reading import Choices, opened
from aiforge.questions.shape import COLUMNS, shape_for
from tests.aiforge.questions.support import BOM, put, read

SCRIPTS = {
    "Japanese": ("cp932", "番号,質問\n1,荷物はどこですか①\n"),
    "Chinese": ("gb18030", "编号,问题\n1,我的包裹在哪里\uff1f\n"),
    "Korean": ("cp949", "번호,질문\n1,제 소포는 어디에 있나요?\n"),
    "Arabic": ("cp1256", "رقم;سؤال\n1;أين طلبي؟\n"),
    "Hebrew": ("cp1255", "מספר;שאלה\n1;איפה?\n"),
    "a line longer than what is shown": ("cp932", "id,q\n12," + "荷物はどこですか" * 10 + "\n"),
    "Japanese among English": ("cp932", "id,q\n1,Is the SONY 製品 ok, and where is it made?\n"),
}  # fmt: skip


@pytest.mark.parametrize(("codec", "text"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_of_every_script_one_of_the_readings_is_right(tmp_path: Path, codec: str, text: str) -> None:
    with pytest.raises(UnclearError, match=r"is not UTF-8 .*; --encoding says it") as caught:
        read(tmp_path, "a.csv", text.encode(codec))
    lines = text.splitlines()
    right = [
        told
        for told in caught.value.details
        if any(line.startswith(told.split(": ", 1)[1]) for line in lines)
    ]
    assert [told.split()[1] for told in right] == [f"{codec}:"], caught.value.details


def test_a_text_of_utf_8_with_a_torn_character_is_still_utf_8(tmp_path: Path) -> None:
    content = "id,q\n1,荷物は\n2,どこ\n".encode() + b"3,\xe3\x81?\n"
    with pytest.raises(BadLinesError) as caught:
        read(tmp_path, "a.csv", content)
    assert caught.value.details[0].startswith("line 4 is not UTF-8")


@pytest.mark.parametrize(
    "name",
    [
        "Fråga", "Kysymys", "Pytanie", "Otázka", "Soru", "¿Pregunta?", "Вопрос",
        "質問", "问题", "질문", "سؤال", "שאלה",
        "Spørsma\u030al", "\u200equestion\u200f", "que\u00adstion", "Ｑｕｅｓｔｉｏｎ",
    ],
)  # fmt: skip
def test_a_name_is_known_in_many_languages_however_it_is_typed(tmp_path: Path, name: str) -> None:
    (row,) = read(tmp_path, "a.csv", f"nr;{name}\n1;a?\n".encode())
    assert row.text == "a?"


def test_what_was_put_together_from_several_files_has_no_question_that_is_a_header(tmp_path: Path) -> None:
    content = b"id,question\n1,a?\n" + BOM + b"id,question\n2,b?\n" + BOM + b"3,c?\n"
    with opened(put(tmp_path, "a.csv", content)) as found:
        assert [(row.id, row.text) for row in found] == [("1", "a?"), ("2", "b?"), ("3", "c?")]
        assert "1 repeated header skipped" in found.note
    single = read(tmp_path, "b.csv", b"help\nhelp\nwhy?\n", Choices("help"))
    assert [row.text for row in single] == ["help", "why?"], "a single column can ask what it is called"


def test_a_title_over_several_columns_is_no_header(tmp_path: Path) -> None:
    content = b"Product;;Questions;\nnr;name;question;kind\n1;x;a?;k\n"
    (row,) = read(tmp_path, "a.csv", content)
    assert (row.text, row.extra) == ("a?", {"nr": "1", "name": "x", "kind": "k"})


def test_blank_columns_without_a_name_are_none(tmp_path: Path) -> None:
    edge = b";" * 2000
    content = b"id;question" + edge + b"\n1;a?" + edge + b"\n2;b?;;note" + edge[2:] + b"\n"
    with opened(put(tmp_path, "a.csv", content)) as found:
        assert [row.extra for row in found] == [{}, {"column 4": "note"}]
        assert shape_for(found, None).columns == (*COLUMNS, "column 4")


def test_a_table_of_markdown_has_cells_without_padding(tmp_path: Path) -> None:
    content = b"| id | question |\n| --- | :--- |\n| 1 | a? |\n| 2 | b? |\n"
    rows = read(tmp_path, "a.csv", content)
    assert [(row.id, row.text, row.extra) for row in rows] == [("1", "a?", {}), ("2", "b?", {})]


def test_a_header_that_cannot_be_read_is_what_is_said(tmp_path: Path) -> None:
    """And not that the first row has no column of questions."""
    for content in (b"id,question\r1,a?\r\n2,b?\n", b"id,question\r1,a?\r\n"):
        with pytest.raises(BadLinesError) as caught:
            read(tmp_path, "a.csv", content)
        assert caught.value.details == ("line 1 is not CSV: a CR without LF stands outside quotes",)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b'id,"Customer\n question"\n1,a?\n', "--column: id, Customer question"),
        ("a.csv", b"id,question,input\n1,a?,b\n", "several columns could .*--column: question, input$"),
        ("a.jsonl", b'{"q": "a?"},\n', "line 1 is not JSON: Extra data at character 12$"),
        ("a.csv", b"id,question\n1\n", "line 2 has 1 cell where the header has 2"),
    ],
)
def test_an_error_is_one_line_that_helps(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    with pytest.raises((UnclearError, BadLinesError)) as caught:
        read(tmp_path, name, content)
    told = " ".join([str(caught.value), *caught.value.details])
    assert "\n" not in told
    assert re.search(says, told), told
