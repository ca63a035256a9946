"""What a line cannot be is refused by its field and its number, never read as something else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from worker.contract.batch.lines import Lines
from worker.contract.schemas import BatchRequest, BatchRow

USER = '"messages":[{"role":"user","content":"a"}]'
BODY = '{"model":"m",' + USER + "}"


def line(body: str = BODY, more: str = "", own: str = '"custom_id":"a"') -> str:
    return f'{{{own},"method":"POST","url":"/v1/chat/completions","body":{body}{more}}}'


def found(*written: str | bytes, **more: Any) -> Lines:
    lines = Lines(BatchRequest(input_file_id="f", endpoint="/v1/chat/completions", **more))
    lines.take([one.encode() if isinstance(one, str) else one for one in written])
    return lines


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (line(BODY[:-1] + ',"temperature":1e400}'), "invalid_value", "body.temperature"),
        (line(BODY[:-1] + ',"x":{"y":[1e999]}}'), "invalid_value", "body.x"),
        (line("[1]"), "missing_required_parameter", "body"),
        (line(BODY[:-1] + ',"model":"n"}'), "duplicate_key", "body.model"),
        (line(BODY[:-1] + "," + USER + "}"), "duplicate_key", "body.messages"),
        (line(BODY[:-1] + ',"x":1,"x":2}'), "duplicate_key", "body.x"),
        (line(BODY[:-1] + ',"m\\u006fdel":"n"}'), "duplicate_key", "body.model"),
        (line(own='"custom_id":"a","custom_id":"b"'), "duplicate_key", "custom_id"),
        (line(more=',"body":{}'), "duplicate_key", "body"),
        (line(more=',"url":"/v1/chat/completions"'), "duplicate_key", "url"),
        (line(BODY[:-1] + ',"x":' + "[" * 5_000 + "]" * 5_000 + "}"), None, None),
        (line(BODY[:-1] + ',"x":' + "[" * 129 + "]" * 129 + "}"), "invalid_value", "body.x"),
        (line(more=',"conversation_id":"c"'), "unknown_field", "conversation_id"),
    ],
)
def test_what_is_wrong_is_named(text: str, code: str | None, param: str | None) -> None:
    lines = found(line(own='"custom_id":"first"'), text)
    assert lines.failed is not None
    (error,) = lines.failed.data
    assert error.line == 2
    if code is not None:
        assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize(
    "body",
    [
        BODY[:-1] + ',"user":"user","metadata":{"model":"x","messages":"y"}}',
        BODY.replace('"a"', r'"say \"model\": \u0022model\u0022 \u00e4"'),
        BODY[:-1] + ',"tools":[{"type":"function","function":{"name":"f","parameters":{"model":{}}}}]}',
        BODY[:-1] + ',"seed":' + "9" * 40 + "}",
    ],
)
def test_a_name_that_stands_again_further_in_is_none_that_stands_twice(body: str) -> None:
    assert found(line(body)).failed is None


@pytest.mark.parametrize(
    "deep", ["[" * 128 + "]" * 128, '{"y":' * 128 + "1" + "}" * 128, "[" + "[]," * 200 + "[]]"]
)
def test_a_body_may_be_deep_and_is_compared_all_the_same(deep: str) -> None:
    """At temperature 0 each body is compared with those before it, which walks through it."""
    body = BODY[:-1] + ',"temperature":0,"x":' + deep + "}"
    assert found(line(body)).failed is None


@pytest.mark.parametrize("depth", [129, 500])
def test_a_body_that_is_too_deep_is_named_whatever_is_done_with_it(depth: int) -> None:
    body = BODY[:-1] + ',"temperature":0,"x":' + "[" * depth + "]" * depth + "}"
    failed = found(line(body)).failed
    assert failed is not None
    assert [(one.code, one.param, one.line) for one in failed.data] == [("invalid_value", "body.x", 1)]


def test_a_line_that_is_left_out_keeps_its_own_id() -> None:
    lines = Lines(
        BatchRequest(input_file_id="f", endpoint="/v1/chat/completions", metadata={"on_invalid": "skip"})
    )
    _, rows = lines.take([line(more=',"priority":5').encode()])
    assert msgspec.json.decode(rows[0], type=BatchRow).id == "a"


@pytest.mark.parametrize(
    ("mark", "named"), [(b"\x1f\x8b\x08\0", "gzip"), (b"PK\x03\x04", "ZIP"), (b"\x28\xb5\x2f\xfd", "zstd")]
)
def test_a_packed_file_is_called_so(mark: bytes, named: str) -> None:
    failed = found(mark + b"\xff\xfe").failed
    assert failed is not None
    assert named in failed.data[0].message
    assert (failed.data[0].code, len(failed.data)) == ("invalid_encoding", 1)


@pytest.mark.parametrize(
    ("encoding", "mark", "named"),
    [
        ("utf-16-le", "\ufeff", "UTF-16"),
        ("utf-16-be", "\ufeff", "UTF-16"),
        ("utf-32-le", "\ufeff", "UTF-32"),
        ("utf-32-be", "\ufeff", "UTF-32"),
        ("utf-16-le", "", "UTF-16"),
        ("utf-16-be", "", "UTF-16"),
        ("utf-32-le", "", "UTF-32"),
        ("utf-32-be", "", "UTF-32"),
    ],
)
@pytest.mark.parametrize("metadata", [None, {"on_invalid": "skip"}])
def test_another_encoding_is_one_error(
    encoding: str, mark: str, named: str, metadata: dict[str, str] | None
) -> None:
    text = (mark + line() + "\n" + line() + "\n").encode(encoding)
    lines = found(*text.split(b"\n"), metadata=metadata)
    assert lines.failed is not None
    (error,) = lines.failed.data
    assert error.code == "invalid_encoding"
    assert named in error.message
