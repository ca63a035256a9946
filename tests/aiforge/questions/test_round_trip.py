"""Any text goes in, and the same text comes out: through CSV and JSONL, in every encoding."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiforge.questions.errors import QuestionsError
from aiforge.questions.reading import Choices, opened
from tests.aiforge.questions.support import ODD, answer, read

NO_TEXT = "\0"
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]
TEXTS = st.lists(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters=NO_TEXT), min_size=1, max_size=30)
    .filter(str.strip),
    min_size=1, max_size=5,
)  # fmt: skip
EXAMPLES = [ODD, 'say "hi"', ' "x" ', "x\r", "a\r\nb\rc\n", "# no comment", "sep=;", ",;|\t", "=1", "\ufeffx"]


def encodable(text: str, encoding: str) -> bool:
    try:
        return text.encode(encoding).decode(encoding) == text
    except UnicodeError:
        return False


def as_csv(texts: list[str], delimiter: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerows([["id", "question"], *([f"n{number}", text] for number, text in enumerate(texts))])
    return out.getvalue()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@settings(max_examples=15)
@given(texts=TEXTS)
@example(texts=EXAMPLES)
def test_csv_in(encoding: str, delimiter: str, texts: list[str]) -> None:
    texts = [text for text in texts if encodable(text, encoding)] or ["x"]
    raw = as_csv(texts, delimiter).encode(encoding)
    with tempfile.TemporaryDirectory() as folder:
        found = read(Path(folder), "in.csv", raw, Choices(encoding=encoding, delimiter=delimiter))
    assert [row.text for row in found] == texts


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("ascii_only", [True, False])
@settings(max_examples=20)
@given(texts=TEXTS)
@example(texts=EXAMPLES)
def test_jsonl_in_and_nothing_to_decide(encoding: str, ascii_only: bool, texts: list[str]) -> None:
    raw = "\r\n".join(json.dumps({"q": text}, ensure_ascii=ascii_only) for text in texts).encode(encoding)
    with tempfile.TemporaryDirectory() as folder:
        found = read(Path(folder), "in.jsonl", raw)
    assert [row.text for row in found] == texts


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@settings(max_examples=40)
@given(texts=TEXTS)
@example(texts=EXAMPLES)
def test_out_and_in_again(suffix: str, texts: list[str]) -> None:
    """What is written can be read as questions, and is continued without asking anything."""
    raw = "\n".join(json.dumps({"id": str(number), "q": text}) for number, text in enumerate(texts)).encode()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.jsonl").write_bytes(raw)
        target = folder / f"out{suffix}"
        with opened(str(folder / "in.jsonl")) as found:
            answer(target, found)
            assert answer(target, found) == []
        assert len(target.read_text(encoding="utf-8").splitlines()) == len(texts) or suffix == ".csv"
        with opened(str(target), Choices(column="answer", id_column="id")) as again:
            assert [row.text for row in again] == [f"re: {text}" for text in texts]


@settings(max_examples=300)
@given(raw=st.binary(max_size=200), name=st.sampled_from(["a.csv", "a.tsv", "a.jsonl"]))
def test_no_bytes_get_past_the_errors(raw: bytes, name: str) -> None:
    """Whatever is in a file: questions of whole characters, or an error of ours."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = read(Path(folder), name, raw)
        except QuestionsError:
            found = []
    assert all(str(row.text).encode() and "\0" not in row.text for row in found)
