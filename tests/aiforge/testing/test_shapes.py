"""Whatever shape tool calls are streamed in, they are the same calls."""

from __future__ import annotations

import msgspec
import pytest

from aiforge.testing import TOOL_SHAPES, Reply, ToolCall, tool_deltas
from aiforge.testing.script import ToolShape
from aiforge.testing.shapes import merge

CALLS = [ToolCall("add", {"a": 1, "text": "é } {"}, id="x"), ToolCall("get-order.now", '{"b":2}', id="y")]


@pytest.mark.parametrize("shape", [shape for shape in TOOL_SHAPES if shape != "empty_arguments"])
def test_merging_gives_back_the_calls(shape: ToolShape) -> None:
    merged = merge([delta.delta for delta in tool_deltas(CALLS, shape)])
    found = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in merged]
    assert found == [("x", "add", '{"a":1,"text":"é } {"}'), ("y", "get-order.now", '{"b":2}')]


def test_the_shapes_differ_as_they_say() -> None:
    parts = {s: [p for d in tool_deltas(CALLS, s) for p in d.delta["tool_calls"]] for s in TOOL_SHAPES}
    assert [part.get("id") for part in parts["openai"]].count("x") == 1
    assert parts["openai"][0]["function"]["arguments"] == ""
    assert parts["null_arguments"][0]["function"]["arguments"] is None
    assert [part["index"] for part in parts["interleaved"]][:4] == [0, 1, 0, 1]
    assert [(part["index"], part["id"]) for part in parts["same_index"]] == [(0, "x"), (0, "y")]
    assert all("index" not in part for part in parts["no_index"])
    assert {part["id"] for part in parts["repeated_ids"]} == {"x", "y"}
    assert len(parts["repeated_ids"]) > 2
    assert [part["function"]["arguments"] for part in parts["empty_arguments"]] == ["", ""]
    assert len(tool_deltas(CALLS, "whole")) == 2
    assert len(tool_deltas(CALLS, "together")) == 1


@pytest.mark.parametrize("shape", TOOL_SHAPES)
def test_no_calls_are_no_deltas(shape: ToolShape) -> None:
    assert tool_deltas([], shape) == []


def test_scripts_travel_as_json() -> None:
    reply = Reply(tool_calls=CALLS, tool_shape="no_index", gap=[0.1, 0.2], headers={"x-a": "b"}, split_at=[3])
    assert msgspec.json.decode(msgspec.json.encode(reply), type=Reply) == reply
