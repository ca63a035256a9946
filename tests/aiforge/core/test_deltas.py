"""Fragments of tool calls in every shape that providers send."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiforge.core.deltas import AssembledCall, ToolCallDelta, assemble

Piece = tuple[int | None, str | None, str | None, str]


def calls(*pieces: Piece) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, call.arguments) for call in assemble(ToolCallDelta(*p) for p in pieces)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(
            [(0, "x", "f", '{"a":'), (1, "y", "g", '{"b":'), (0, None, None, "1}"), (1, None, None, "2}")],
            [("x", "f", '{"a":1}'), ("y", "g", '{"b":2}')],
            id="interleaved, ids only on the first (T1)",
        ),
        pytest.param(
            [(0, "x", "f", '{"a":1}'), (0, "y", "f", '{"a":2}')],
            [("x", "f", '{"a":1}'), ("y", "f", '{"a":2}')],
            id="both index 0, different ids (T2)",
        ),
        pytest.param(
            [(0, "x", "f", ""), (0, None, None, '{"a":1}'), (0, "y", "g", ""), (0, None, None, '{"a":2}')],
            [("x", "f", '{"a":1}'), ("y", "g", '{"a":2}')],
            id="both index 0, in fragments",
        ),
        pytest.param(
            [(None, "x", "f", "{}"), (None, "y", "g", "{}")],
            [("x", "f", "{}"), ("y", "g", "{}")],
            id="no index",
        ),
        pytest.param(
            [(None, None, "f", '{"a":1}'), (None, None, "f", '{"a":2}')],
            [("call_0", "f", '{"a":1}'), ("call_1", "f", '{"a":2}')],
            id="neither index nor id, whole calls",
        ),
        pytest.param(
            [(None, None, "f", ""), (None, None, "g", "")],
            [("call_0", "f", "{}"), ("call_1", "g", "{}")],
            id="neither index nor id nor arguments",
        ),
        pytest.param(
            [(None, "", "f", '{"a"'), (None, "", None, ":1}")],
            [("call_0", "f", '{"a":1}')],
            id="empty ids, in fragments",
        ),
        pytest.param(
            [(0, None, "f", '{"a":1}'), (0, None, "g", '{"b":2}')],
            [("call_0", "f", '{"a":1}'), ("call_1", "g", '{"b":2}')],
            id="index 0 for whole calls without ids",
        ),
        pytest.param(
            [(0, "x", "f", '{"a'), (0, "x", "f", '":1'), (0, "x", "f", "}")],
            [("x", "f", '{"a":1}')],
            id="id and name repeated",
        ),
        pytest.param(
            [(0, "x", "get_", ""), (0, None, "weather", ""), (0, None, None, "{}")],
            [("x", "get_weather", "{}")],
            id="name in pieces",
        ),
        pytest.param(
            [(0, "x", "get", ""), (0, "x", "get_weather", "{}")],
            [("x", "get_weather", "{}")],
            id="name that grows",
        ),
        pytest.param(
            [(0, None, "f", ""), (0, "x", None, '{"a":1}')],
            [("x", "f", '{"a":1}')],
            id="id after the name",
        ),
        pytest.param(
            [(0, "x", "f", "{}"), (0, None, None, '{"a":'), (0, None, None, '{"b":1}}')],
            [("x", "f", '{"a":{"b":1}}')],
            id="an empty object ahead",
        ),
        pytest.param(
            [(0, "x", "f", '{"a":1}'), (0, "x", "f", '{"a":1}')],
            [("x", "f", '{"a":1}')],
            id="said twice",
        ),
        pytest.param(
            [(0, "x", "f", "{}"), (1, "x", "g", "{}")],
            [("x", "f", "{}"), ("x_1", "g", "{}")],
            id="one id for two calls",
        ),
        pytest.param(
            [(0, "x", "f", ""), (0, None, None, "{}"), (0, None, None, ""), (1, None, None, "")],
            [("x", "f", "{}")],
            id="empty pieces after the end",
        ),
        pytest.param([(2, "x", "f", "not json")], [("x", "f", "not json")], id="arguments that are no JSON"),
        pytest.param([], [], id="none"),
    ],
)
def test_shapes(pieces: list[Piece], expected: list[tuple[str, str, str]]) -> None:
    assert calls(*pieces) == expected


@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3),
        min_size=1,
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_indexed_fragments_in_any_order_between_calls(objects: list[dict[str, object]], dice: object) -> None:
    assert isinstance(dice, random.Random)
    texts = [json.dumps(value) for value in objects]
    queues = [
        [ToolCallDelta(n, f"id{n}", f"f{n}", "")] + [ToolCallDelta(n, None, None, char) for char in text]
        for n, text in enumerate(texts)
    ]
    pieces = []
    while any(queues):
        pieces.append(dice.choice([queue for queue in queues if queue]).pop(0))
    found = {call.id: call for call in assemble(pieces)}
    assert found == {f"id{n}": AssembledCall(f"id{n}", f"f{n}", text) for n, text in enumerate(texts)}


def test_openai_form() -> None:
    assert AssembledCall("x", "f", "{}").as_openai() == {
        "id": "x",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }
