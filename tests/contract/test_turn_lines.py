"""Lines of a file that continue conversations: which can, what they mean, and in which order they run."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.contract.test_batch_steps import posted, step
from tests.support.slices import Sliced, take
from worker.contract.batch.batches import VALIDATE
from worker.contract.batch.line_schemas import Wrong
from worker.contract.batch.lines import REFUSED, Lines
from worker.contract.batch.steps import BatchSteps
from worker.contract.batch.turn_lines import turn_item
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.schemas import BATCH_VERSION, Batch, BatchItem, BatchRequest, BatchState

pytestmark = pytest.mark.anyio
CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
USER = {"role": "user", "content": "Go on"}
ODD = "a\u2028b\u2029c\u0085d\r\ne \U0001f600"


def line(own: str, conversation: str | None, *, url: str = CHAT, **body: Any) -> bytes:
    asked = {"messages": [USER]} if url == CHAT else {"input": "Go on"}
    said: dict[str, Any] = {"custom_id": own, "method": "POST", "url": url}
    if conversation is not None:
        said["conversation"] = conversation
    return json.dumps({**said, "body": {"model": "m", **asked, **body}}, ensure_ascii=False).encode()


def lines(*, url: Any = CHAT, **more: Any) -> Lines:
    return Lines(BatchRequest(input_file_id="f", endpoint=url, completion_window="24h", **more))


def meant(url: Any = CHAT, **body: Any) -> BatchItem:
    asked = {"messages": [USER]} if url == CHAT else {"input": "Go on"}
    return turn_item(url, "own", "c", json.dumps({"model": "m", **asked, **body}).encode())


@pytest.mark.parametrize(
    ("url", "body", "expected"),
    [
        (CHAT, {}, {}),
        (
            CHAT,
            {"messages": [{"role": "system", "content": "Be brief."}, USER]},
            {"system_prompt": "Be brief."},
        ),
        (CHAT, {"messages": [{"role": "developer", "content": "B."}, USER]}, {"system_prompt": "B."}),
        (CHAT, {"messages": [{"role": "user", "content": ODD}]}, {"message": ODD}),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
            {"message": [{"type": "text", "text": "x"}]},
        ),
        (CHAT, {"temperature": 0, "max_tokens": 9, "stream": False}, {"temperature": 0.0, "max_tokens": 9}),
        (CHAT, {"max_completion_tokens": 7, "top_p": None}, {"max_tokens": 7}),
        (CHAT, {"metadata": {"a": "b"}}, {"metadata": {"a": "b"}}),
        (RESPONSES, {"instructions": "B.", "max_output_tokens": 5}, {"system_prompt": "B.", "max_tokens": 5}),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]},
            {"message": [{"type": "text", "text": "x"}]},
        ),
        (RESPONSES, {"input": [{"role": "user", "content": ODD}]}, {"message": ODD}),
    ],
)
def test_what_a_line_means(url: Any, body: dict[str, Any], expected: dict[str, Any]) -> None:
    plain = {"message": "Go on", "id": "own", "conversation": "c", "model": "m"}
    assert meant(url, **body) == BatchItem(**{**plain, **expected})


@pytest.mark.parametrize(
    ("url", "body", "code", "param"),
    [
        (CHAT, {"top_p": 0.5}, "unsupported_parameter", "body.top_p"),
        (CHAT, {"tools": []}, "unsupported_parameter", "body.tools"),
        (CHAT, {"n": 2}, "unsupported_parameter", "body.n"),
        (CHAT, {"max_output_tokens": 2}, "unsupported_parameter", "body.max_output_tokens"),
        (CHAT, {"messages": [USER, USER]}, "invalid_value", "body.messages"),
        (CHAT, {"messages": [USER, {"role": "assistant", "content": "x"}]}, "invalid_value", "body.messages"),
        (CHAT, {"messages": ["x"]}, "invalid_value", "body.messages"),
        (CHAT, {"messages": [{"role": "user"}]}, "invalid_value", "body.messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": []}]}, "invalid_value", "body.messages[0].content"),
        (CHAT, {"messages": [{"role": "system"}, USER]}, "invalid_value", "body.messages[0].content"),
        (CHAT, {"temperature": 3}, "invalid_value", "body.temperature"),
        (CHAT, {"temperature": "warm"}, "invalid_value", "body.temperature"),
        (CHAT, {"max_tokens": 0}, "invalid_value", "body.max_tokens"),
        (CHAT, {"max_completion_tokens": 0}, "invalid_value", "body.max_completion_tokens"),
        (RESPONSES, {"max_output_tokens": "x"}, "invalid_value", "body.max_output_tokens"),
        (CHAT, {"metadata": {"a": 1}}, "invalid_value", "body.metadata"),
        (RESPONSES, {"input": [USER, USER]}, "invalid_value", "body.input"),
        (RESPONSES, {"instructions": 1}, "invalid_value", "body.instructions"),
        (RESPONSES, {"previous_response_id": "r"}, "unsupported_parameter", "body.previous_response_id"),
    ],
)
def test_what_a_turn_cannot_be_is_named(url: Any, body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(Wrong) as found:
        meant(url, **body)
    assert (found.value.code, found.value.param) == (code, param)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a:b", "ä", "x" * 129, 7, ["a"], {}])
def test_what_is_no_conversation_is_named(name: Any) -> None:
    with pytest.raises(Wrong, match="conversation must be") as found:
        turn_item(CHAT, "own", name, b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
    assert found.value.param == "conversation"


@pytest.mark.parametrize("text", [rb"\ud800", rb"\udc00x", b"[" * 3_000 + b"]" * 3_000])
@pytest.mark.parametrize("within", [b'"conversation":"c",', b""])
def test_half_a_character_and_bottomless_json_are_refused_with_their_line(text: bytes, within: bytes) -> None:
    found = lines()
    content = text if text.startswith(b"[") else b'"' + text + b'"'
    bad = (
        b'{"custom_id":"x","method":"POST","url":"/v1/chat/completions",' + within + b'"body":{"model":"m",'
        b'"messages":[{"role":"user","content":' + content + b"}]}}"
    )
    found.take([line("a", "c"), bad])
    assert found.failed is not None
    (error,) = found.failed.data
    assert error.line == 2


def test_both_halves_of_a_character_are_one() -> None:
    found = lines()
    whole = line("a", "c").replace(b"Go on", rb"\ud83d\ude00")
    entries, _ = found.take([whole, whole.replace(b'"a"', b'"b"').replace(b'"c"', b"null")])
    assert (found.failed, len(entries)) == (None, 2)
    assert "\U0001f600".encode() in entries[0]


def test_each_line_stands_behind_the_one_before_it_in_its_conversation() -> None:
    found = lines(metadata={"on_invalid": "skip"})
    entries, _ = found.take(
        [
            line("0", "a"), line("1", "b"), line("2", None), line("3", "a", n=2), line("4", "a"),
            line("5", "b"), line("6", "a"),
        ]
    )  # fmt: skip
    marks = [entry.partition(b"{")[0] for entry in entries]
    assert marks == [b"> ", b"> ", b"", REFUSED, b">0 ", b">1 ", b">4 "]
    assert found.turns


def test_equal_lines_of_conversations_are_asked_each() -> None:
    found = lines(dedupe=True)
    entries, _ = found.take([line("0", "a"), line("1", "a"), line("2", None), line("3", None)])
    assert [entry[:1] for entry in entries] == [b">", b">", b"{", b"="]
    assert not lines().turns


def test_ids_are_unique_across_both_kinds_of_lines() -> None:
    found = lines()
    found.take([line("0", "a"), line("0", None)])
    assert found.failed is not None
    assert [(error.code, error.line) for error in found.failed.data] == [("duplicate_custom_id", 2)]


def test_max_cost_cannot_hold_turns() -> None:
    found = lines(max_cost=1)
    found.take([line("0", None), line("1", "a")])
    assert found.failed is not None
    assert [(error.line, error.param) for error in found.failed.data] == [(2, "conversation")]


async def begun(client: TurnClient, *names: str | None) -> Batch:
    batch = await posted(client)
    checked = lines()
    entries, _ = checked.take([line(str(number), name) for number, name in enumerate(names)])
    held = await step(client, batch, VALIDATE)
    assert await client.batches.add_items(batch.batch_id, 0, entries) == len(names)
    assert (
        await BatchSteps(client.batches).begin(held, len(names), None, turns=checked.turns) == "in_progress"
    )
    return batch


async def taken(client: TurnClient, batch: Batch, index: int) -> Sliced:
    found = await take(client.batches, batch.batch_id)
    assert isinstance(found, Sliced), found
    assert found.items == [index]
    return found


async def test_lines_run_in_order_within_and_side_by_side_across(client: TurnClient) -> None:
    batch = await begun(client, "a", "a", None, "b")
    first, plain, other = [await taken(client, batch, index) for index in (0, 2, 3)]
    assert await take(client.batches, batch.batch_id) == Refused("refused", "handed out")
    ((_, item),) = first.taken.items
    assert isinstance(item, BatchItem)
    assert (item.conversation, item.id, item.message) == ("a", "0", "Go on")
    await first.answer_all()
    for sliced in (await taken(client, batch, 1), plain, other):
        await sliced.answer_all()
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed) == (BatchState.FINALIZING, 4)


async def test_an_older_worker_leaves_such_a_batch_alone(client: TurnClient) -> None:
    plain, turns = await begun(client, None), await begun(client, "a")
    found = [
        int(await client.connection.command("HGET", client.batches.keys.batch(batch.batch_id), "version"))
        for batch in (plain, turns)
    ]
    assert found[0] < found[1] == BATCH_VERSION


async def test_lines_that_never_ran_keep_their_ids(client: TurnClient) -> None:
    batch = await begun(client, "a", "a")
    await client.cancel_batch(batch.batch_id)
    held = await take(client.batches, batch.batch_id)
    assert isinstance(held, Sliced)
    assert await BatchSteps(client.batches).ids(held.taken, 0, 1) == ["0", "1"]
