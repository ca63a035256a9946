"""Questions that go on with conversations: which column names them, and what a second run asks anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiforge.questions.errors import BadLinesError, UnclearError
from aiforge.questions.reading import NO_CHOICES, Choices, opened
from tests.aiforge.questions.support import BOM, ODD, answer, put, read


@pytest.mark.parametrize(
    ("name", "content", "choices"),
    [
        ("a.csv", b"conversation,question\na,x?\n,y?\nb,z?\n", NO_CHOICES),
        ("a.csv", BOM + b"Conversation ID;Question\r\na;x?\r\n;y?\r\nb;z?", NO_CHOICES),
        ("a.csv", b"who,question\na,x?\n,y?\nb,z?\n", Choices(conversation_column="who")),
        ("a.csv", b"Who,question\na,x?\n,y?\nb,z?\n", Choices(conversation_column="who")),
        (
            "a.jsonl",
            b'{"q": "x?", "conversation_id": "a"}\n{"q": "y?"}\n{"q": "z?", "conversation_id": "b"}\n',
            NO_CHOICES,
        ),
        (
            "a.jsonl",
            b'{"messages": [{"role": "user", "content": "x?"}], "conversation": "a"}\n'
            b'{"messages": [{"role": "user", "content": "y?"}], "conversation": null}\n'
            b'{"custom_id": "3", "conversation": "b",'
            b' "body": {"messages": [{"role": "user", "content": "z?"}]}}\n',
            NO_CHOICES,
        ),
    ],
)
def test_a_column_names_the_conversation(tmp_path: Path, name: str, content: bytes, choices: Choices) -> None:
    found = read(tmp_path, name, content, choices)
    assert [(question.text, question.conversation) for question in found] == [
        ("x?", "a"), ("y?", None), ("z?", "b"),
    ]  # fmt: skip
    with opened(put(tmp_path, name, content), choices) as questions:
        assert questions.conversations
        assert "conversation from " in questions.note


def test_it_is_carried_along_as_well(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    with opened(put(tmp_path, "a.csv", b"conversation,question\nuser-1,x?\n")) as found:
        answer(target, found)
    header, row = target.read_text().splitlines()
    assert (header.rpartition(",")[2], row.rpartition(",")[2]) == ("conversation", "user-1")


@pytest.mark.parametrize("cell", ["a b", "..", "ä", "x" * 129, "a:b", ODD])
def test_what_can_be_no_conversation_is_named_with_its_line(tmp_path: Path, cell: str) -> None:
    content = f'conversation,question\nok,x?\n"{cell}",y?\n'.encode()
    with pytest.raises(BadLinesError) as caught:
        read(tmp_path, "a.csv", content)
    (line,) = caught.value.details
    assert line.startswith("line 3 'conversation' must be 1 to 128 characters of A-Z a-z 0-9 . _ -")


def test_a_column_that_is_called_so_and_is_none(tmp_path: Path) -> None:
    content = b'{"q": "x?", "conversation": ["Hello", "Hi"]}\n'
    with pytest.raises(BadLinesError) as caught:
        read(tmp_path, "a.jsonl", content)
    assert "must be text or a whole number" in caught.value.details[0]
    (question,) = read(tmp_path, "a.jsonl", content, Choices(conversation_column=""))
    assert (question.conversation, question.extra) == (None, {"conversation": ["Hello", "Hi"]})
    with pytest.raises(UnclearError, match="--conversation-column: there is no column 'who'"):
        read(tmp_path, "a.jsonl", content, Choices(conversation_column="who"))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_second_run_asks_what_has_no_answer_in_order(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    content = b"conversation,question\na,Go on\nb,Go on\na,Go on\n,Go on\nb,Go on\n"
    with opened(put(tmp_path, "a.csv", content)) as found:
        answer(target, found, limit=2)
        asked = list(found)[2:]
        assert [question.conversation for question in asked] == ["a", None, "b"]
        assert len(answer(target, found)) == 3
        assert answer(target, found) == []
    moved = content.replace(b"\na,", b"\nc,")
    with opened(put(tmp_path, "a.csv", moved)) as found:
        assert len(answer(target, found)) == 2, "the same words to somebody else are another question"


def test_a_question_without_one_has_the_digest_that_it_always_had(tmp_path: Path) -> None:
    (plain,) = read(tmp_path, "a.csv", b"question\nx?\n")
    (empty,) = read(tmp_path, "b.csv", b"conversation,question\n,x?\n")
    assert plain.digest({}) == empty.digest({}) == "219cc9da71dd4c115d8d91e5"
