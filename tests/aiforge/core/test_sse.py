"""Events come out the same however their bytes were cut, and lines end only where the standard says."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiforge.core.openai_chat.sse import MAX_EVENT_BYTES, EventReader, EventTooLargeError


def read(*chunks: bytes) -> list[bytes]:
    reader = EventReader()
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.close()


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one\n\n", [b" one"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b": ping\n\ndata: one\n: ping\n\n", [b"one"]),
        (b": ping\ndata: one\n\n", [b"one"]),
        (b"event: message\nid: 7\nretry: 10\ndata: one\n\n", [b"one"]),
        (b"data: {\ndata: }\n\n", [b"{\n}"]),
        (b"data: one\n\ndata: two", [b"one", b"two"]),
        (b"data: one\n\ndata: two\n", [b"one", b"two"]),
        (b"\n\n\ndata: one\n\n\n\n", [b"one"]),
        (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
        (
            "data: a\u0085b\u2028c\u2029d\x0be\x0cf\x1cg\n\n".encode(),
            ["a\u0085b\u2028c\u2029d\x0be\x0cf\x1cg".encode()],
        ),
        (b"data\n\ndatabase: x\n\n", []),
        (b"", []),
    ],
)
def test_one_stream_cut_at_every_byte(stream: bytes, events: list[bytes]) -> None:
    assert read(stream) == events
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == events
    assert read(*(bytes([byte]) for byte in stream)) == events


TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)


@given(
    st.lists(TEXT, max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_any_text_in_any_cut(texts: list[str], end: str, cuts: list[int]) -> None:
    stream = "".join(f"data: {text}{end}: ping{end}{end}" for text in texts).encode()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert read(*chunks) == [text.encode() for text in texts]


def test_an_endless_event_is_refused() -> None:
    reader = EventReader()
    reader.feed(b"x" * MAX_EVENT_BYTES)
    with pytest.raises(EventTooLargeError, match="larger than"):
        reader.feed(b"x")
