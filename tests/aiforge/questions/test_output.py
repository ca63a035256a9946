"""Answers beside their questions: written once, in the input's order, whatever happened on the way."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiforge.questions.errors import QuestionsError
from aiforge.questions.reading import Choices, opened
from aiforge.questions.shape import COLUMNS, NotOurs, shape_for
from tests.aiforge.questions.support import BOM, ODD, answer, answered, failed, output, put

TEXTS = ["first?", "=1+1", "日本😀", f'{ODD}\r\n,"x";\r']


def table(texts: list[str], ids: bool = True) -> bytes:
    out = io.StringIO()
    rows = [[f"n{number}" if ids else "", text, f"tag {text}"] for number, text in enumerate(texts)]
    csv.writer(out, lineterminator="\r\n").writerows([["id", "question", "answer"], *rows])
    return out.getvalue().encode()


def rows_of(target: Path) -> list[dict[str, Any]]:
    text = target.read_bytes().decode("utf-8-sig")
    if target.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def sizes(first: int, end: int) -> Iterator[int]:
    """Every byte of the last rows, in which every kind of cell stands, and some before."""
    yield from range(first, max(first, end - 150), 23)
    yield from range(max(first, end - 150), end)


SUFFIXES = pytest.mark.parametrize("suffix", [".jsonl", ".csv"])


@SUFFIXES
def test_a_row_says_all_and_carries_the_rest(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    with opened(put(tmp_path, "in.csv", table(TEXTS))) as found:
        answer(target, found)
    rows = rows_of(target)
    assert [row["question"] for row in rows] == TEXTS
    assert [row["answer"] for row in rows] == [f"re: {text}" for text in TEXTS]
    assert [str(row["index"]) for row in rows] == ["0", "1", "2", "3"]
    assert tuple(rows[0])[: len(COLUMNS)] == COLUMNS
    carried = [row["input"]["answer"] if suffix == ".jsonl" else row["input_answer"] for row in rows]
    assert carried == [f"tag {text}" for text in TEXTS]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", target.name]


@SUFFIXES
def test_after_a_kill_at_any_byte_the_next_run_ends_with_the_same_file(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    with opened(put(tmp_path, "in.csv", table(TEXTS))) as found:
        answer(target, found)
        whole = target.read_bytes()
        for size in sizes(0, len(whole)):
            target.write_bytes(whole[:size])
            asked = answer(target, found)
            assert target.read_bytes() == whole, size
            kept = len(TEXTS) - len(asked)
            assert asked == [f"n{number}" for number in range(kept, len(TEXTS))], size
        assert answer(target, found) == []


@SUFFIXES
def test_after_a_kill_of_the_run_that_went_on_nothing_is_asked_twice(tmp_path: Path, suffix: str) -> None:
    """The second run's rows stand below the first one's, in any order; both count, wherever it broke off."""
    target = tmp_path / f"out{suffix}"
    inserted = ["new", *TEXTS[:2], "newer", *TEXTS[2:]]
    with opened(put(tmp_path, "in.csv", table(TEXTS, ids=False))) as found:
        answer(target, found, limit=2)
    with opened(put(tmp_path, "in.csv", table(inserted, ids=False))) as found:
        before = target.stat().st_size
        with output(target, found) as out:
            out.begin()
            for place, question in out.pending():
                out.write(place, question, answered(question))
            out.flush()
        killed = target.read_bytes()
        for size in sizes(before, len(killed)):
            target.write_bytes(killed[:size])
            asked = answer(target, found)
            assert [row["question"] for row in rows_of(target)] == inserted
            assert [row["answer"] for row in rows_of(target)] == [f"re: {text}" for text in inserted]
            assert len(asked) <= len(inserted) - 2


@SUFFIXES
def test_moved_added_changed_and_removed_rows(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    first = b"id,question,tag\na,one,1\nb,two,2\nc,three,3\nd,four,4\n"
    second = b"id,question,tag\nd,four,new tag\nx,added,5\nb,two changed,2\na,one,1\n"
    with opened(put(tmp_path, "in.csv", first)) as found:
        assert answer(target, found) == ["a", "b", "c", "d"]
    with opened(put(tmp_path, "in.csv", second)) as found:
        assert answer(target, found) == ["x", "b"]
    rows = rows_of(target)
    assert [(row["id"], row["answer"]) for row in rows] == [
        ("d", "re: four"), ("x", "re: added"), ("b", "re: two changed"), ("a", "re: one")
    ]  # fmt: skip
    assert (rows[0]["input"] if suffix == ".jsonl" else rows[0])["tag"] == "new tag"


@SUFFIXES
def test_blank_lines_that_an_editor_has_added_are_passed_over(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    name = put(tmp_path, "in.csv", b"id,question\na,one\nb,two\nc,three\n")
    with opened(name) as found:
        assert answer(target, found, limit=2) == ["a", "b"]
        target.write_bytes(target.read_bytes().replace(b"\n", b"\n\r\n"))
        assert answer(target, found) == ["c"]
    assert [(row["id"], row["answer"]) for row in rows_of(target)] == [
        ("a", "re: one"), ("b", "re: two"), ("c", "re: three")
    ]  # fmt: skip


@pytest.mark.parametrize("harm", ["removed", "replaced", "cut"])
def test_an_output_that_somebody_changes_meanwhile_is_not_said_to_be_written(
    tmp_path: Path, harm: str
) -> None:
    target = tmp_path / "out.csv"
    with (
        opened(put(tmp_path, "in.csv", b"id,question\na,one\nb,two\n")) as found,
        output(target, found) as out,
    ):
        out.begin()
        (first, one), (second, two) = out.pending()
        out.write(first, one, answered(one))
        out.flush()
        if harm == "cut":
            os.truncate(target, 10)
        else:
            target.unlink()
        if harm == "replaced":
            target.write_text("mine")
        out.write(second, two, answered(two))
        with pytest.raises(QuestionsError, match=r"removed or changed meanwhile; the same command"):
            out.finish()


def test_an_input_that_is_written_over_while_it_is_read_gives_no_line_of_another_file(tmp_path: Path) -> None:
    lines = [f"{number},{'word ' * 50}{number}?\n" for number in range(200)]
    source = tmp_path / "in.csv"
    source.write_text("id,question\n" + "".join(lines))
    with opened(str(source)) as found:
        read = iter(found)
        assert next(read).id == "0"
        source.write_text("id,question\nnew,line\n" + "".join(lines))
        with pytest.raises(QuestionsError, match=r"has changed since it was checked; the same command"):
            list(read)


def test_an_output_that_was_saved_in_utf_16_is_refused_in_one_line(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    with opened(put(tmp_path, "in.csv", b"id,question\na,one\n")) as found:
        answer(target, found)
        target.write_bytes(target.read_bytes().decode().encode("utf-16"))
        with pytest.raises(NotOurs, match=r"line 1 is no row of answers"):
            answer(target, found)


@SUFFIXES
def test_what_else_decides_the_answer_asks_anew(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    name = put(tmp_path, "in.csv", b"id,question\na,one\n")
    with opened(name) as found:
        assert answer(target, found) == ["a"]
        assert answer(target, found) == []
        assert answer(target, found, model="other") == ["a"]
    with opened(name, Choices(prompt_template="Please: {question}")) as found:
        assert answer(target, found, model="other") == ["a"]
    assert len(rows_of(target)) == 1


@SUFFIXES
@pytest.mark.parametrize(("retry", "again"), [(False, ["c"]), (True, ["b", "c"])])
def test_failures_are_kept_or_asked_again(tmp_path: Path, suffix: str, retry: bool, again: list[str]) -> None:
    """Only what was cancelled is asked again without a word: nobody has ever answered it."""
    target = tmp_path / f"out{suffix}"
    with opened(put(tmp_path, "in.csv", b"id,q\na,one\nb,two\nc,three\n")) as found:
        with output(target, found) as out:
            out.begin()
            for (place, question), error in zip(
                out.pending(), ["", "rate_limited", "cancelled"], strict=True
            ):
                out.write(place, question, failed(error) if error else answered(question))
            errors = out.finish()
        assert errors == tmp_path / f"out.errors{suffix}"
        told = rows_of(errors)
        assert [(row["id"], row["error_class"], row["error_message"]) for row in told] == [
            ("b", "rate_limited", "no"), ("c", "cancelled", "no")
        ]  # fmt: skip
        with output(target, found) as out:
            out.begin(retry_failed=retry)
            assert (out.kept, out.kept_failed) == (3 - len(again), 2 - len(again))
            for place, question in out.pending():
                assert question.id in again
                out.write(place, question, answered(question))
            assert (out.finish() is None) is retry
        assert errors.exists() is not retry
        assert [row["id"] for row in rows_of(target)] == ["a", "b", "c"]


@SUFFIXES
def test_equal_questions_without_ids_have_an_answer_each(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    with opened(put(tmp_path, "in.csv", b"q\nsame\nsame\nsame\n")) as found:
        assert len(answer(target, found, limit=2)) == 2
        assert len(answer(target, found)) == 1
        assert len(rows_of(target)) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("out.csv", b"my,own,table\n1,2,3\n"),
        ("out.csv", b"\xff\xfe\x00"),
        ("out.jsonl", b'{"my": "own"}\n'),
        ("out.jsonl", b"notes\n"),
    ],
)
def test_somebody_elses_file_is_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    target = Path(put(tmp_path, name, content))
    with (
        opened(put(tmp_path, "in.csv", b"q\nx\n")) as found,
        pytest.raises(NotOurs, match="another file with -o"),
    ):
        answer(target, found)
    assert target.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "delimiter", "mark"),
    [
        (b"id,question\n1,x\n", ",", False),
        (BOM + b"id;question\n1;x\n", ";", True),
        ("id\tquestion\n1\tx\n".encode("utf-16"), "\t", True),
        ("id|question\n1|gr\u00fcn\n".encode("cp1252"), "|", True),
        (b"question\nx\n", ",", False),
    ],
)
def test_an_output_looks_like_its_input(tmp_path: Path, content: bytes, delimiter: str, mark: bool) -> None:
    with opened(put(tmp_path, "in.csv", content)) as found:
        shape = shape_for(found, None)
        answer(tmp_path / "out.csv", found)
        again = answer(tmp_path / "out.csv", found)
    assert (shape.delimiter, shape.mark, again) == (delimiter, mark, [])
    assert (tmp_path / "out.csv").read_bytes().startswith(BOM) is mark


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    with opened(put(tmp_path, "in.csv", b"q\nx\n")) as found:
        put(tmp_path, "in.csv", b"q\nx\ny\n")
        with pytest.raises(QuestionsError, match="has changed since it was checked"):
            list(found)


@SUFFIXES
def test_what_was_never_asked_to_the_end_is_asked_again(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    with opened(put(tmp_path, "in.csv", b"id,q\na,one\nb,two\nc,three\nd,four\n")) as found:
        errors = ["budget_exceeded", "unpriced_model", "batch_expired", "provider_refused"]
        with output(target, found) as out:
            out.begin()
            for (place, question), error in zip(out.pending(), errors, strict=True):
                out.write(place, question, failed(error))
            out.finish()
            assert (out.written_failed, out.not_asked) == (4, 3)
        assert answer(target, found) == ["a", "b", "c"]


@SUFFIXES
def test_answers_to_what_is_asked_no_more_are_kept(tmp_path: Path, suffix: str) -> None:
    target, unused = tmp_path / f"out{suffix}", tmp_path / f"out{suffix}.unused.jsonl"
    target.touch(mode=0o600)
    kept = []
    for texts in (["one", "two"], ["three", "two"], ["four", "five"]):
        with opened(put(tmp_path, "in.csv", table(texts, ids=False))) as found:
            answer(target, found)
        assert [row["question"] for row in rows_of(target)] == texts
        kept.append([row["answer"] for row in rows_of(unused)] if unused.exists() else [])
    assert kept == [[], ["re: one"], ["re: one", "re: three", "re: two"]]
    assert unused.stat().st_mode & 0o777 == 0o600


@SUFFIXES
def test_a_continued_output_keeps_its_link_and_who_may_read_it(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "real").mkdir()
    target, real = tmp_path / f"out{suffix}", tmp_path / "real" / f"file{suffix}"
    real.touch(mode=0o600)
    target.symlink_to(real)
    with opened(put(tmp_path, "in.csv", b"q\none\ntwo\n")) as found:
        answer(target, found, limit=1)
        with output(target, found) as out:
            out.begin()
            for place, question in out.pending():
                out.write(place, question, failed())
            errors = out.finish()
    assert target.is_symlink()
    assert errors is not None
    assert [path.stat().st_mode & 0o777 for path in (real, errors)] == [0o600, 0o600]
    assert len(rows_of(target)) == 2
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == [real.name]


def test_a_column_that_somebody_has_added_stays(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    with opened(put(tmp_path, "a.csv", b"id,question\n1,a?\n")) as found:
        answer(target, found)
    header, row = target.read_text().splitlines()
    target.write_text(f"{header},checked by\n{row},me\n")
    with opened(put(tmp_path, "a.csv", b"id,question,lang\n2,b?,en\n1,a?,en\n")) as found:
        assert answer(target, found) == ["2"]
    with target.open(newline="") as file:
        rows = [(row["id"], row["lang"], row["checked by"]) for row in csv.DictReader(file)]
    assert rows == [("2", "en", ""), ("1", "en", "me")]


@SUFFIXES
def test_nothing_is_written_before_there_is_a_row(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    with opened(put(tmp_path, "in.csv", b"q\none\ntwo\n")) as found:
        answer(target, found, limit=1)
        torn = target.read_bytes() + b"torn"
        target.write_bytes(torn)
        with output(target, found) as out:
            out.begin()
            assert [question.text for _, question in out.pending()] == ["two"]
        assert target.read_bytes() == torn
        assert answer(target, found) == [None]


@pytest.mark.parametrize("content", [b"mine\n", ",".join(COLUMNS).encode() + b"\n"])
@pytest.mark.parametrize("name", ["out.errors.csv", "out.csv.unused.jsonl"])
def test_somebody_elses_file_beside_is_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    """Also when it is the output of another run."""
    beside = Path(put(tmp_path, name, content))
    with opened(put(tmp_path, "in.csv", b"q\nx\n")) as found, pytest.raises(NotOurs, match=name):
        answer(tmp_path / "out.csv", found)
    assert beside.read_bytes() == content


def test_outputs_of_two_formats_share_no_file(tmp_path: Path) -> None:
    with opened(put(tmp_path, "in.csv", b"q\nx\n")) as found:
        for target in (tmp_path / "out.csv", tmp_path / "out.jsonl"):
            with output(target, found) as out:
                out.begin()
                for place, question in out.pending():
                    out.write(place, question, failed(target.suffix))
                out.finish()
    (line,), (record,) = rows_of(tmp_path / "out.errors.csv"), rows_of(tmp_path / "out.errors.jsonl")
    assert (line["error_class"], record["error_class"], record["attempts"]) == (".csv", ".jsonl", 1)


def test_other_columns_keep_their_numbers_as_they_stand_there(tmp_path: Path) -> None:
    given = b'{"q": "one", "score": 1E+400, "exact": 0.12345678901234567890123, "list": [1.50]}\n'
    with opened(put(tmp_path, "in.jsonl", given)) as found:
        answer(tmp_path / "out.jsonl", found)
        answer(tmp_path / "out.jsonl", found)
    assert (
        b'"input":{"score":1E+400,"exact":0.12345678901234567890123,"list":[1.50]}'
        in (tmp_path / "out.jsonl").read_bytes()
    )


def test_a_full_disk_is_said_of_its_file(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    with opened(put(tmp_path, "in.csv", b"q\nx\n")) as found, output(target, found) as out:
        out.begin()
        target.symlink_to("/dev/full")
        with pytest.raises(OSError, match=r"No space left on device: '.*out\.csv'"):
            out.flush()
