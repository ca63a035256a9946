r"""A character that a provider cut between its two halves: `\ud83d` in one chunk, `\ude00` in the next."""

from __future__ import annotations

import asyncio
import json

import pytest

from aiforge.core.deltas import assemble
from aiforge.core.openai_chat import halves
from aiforge.testing import FakeProvider, Raw, Reply
from tests.aiforge.core.support import KEY, WEATHER, ask, hear, openai_model

END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


def chunk(delta: str) -> bytes:
    return f'data: {{"model": "m", "choices": [{{"index": 0, "delta": {delta}}}]}}\n\n'.encode()


def say(text: str) -> bytes:
    """A chunk with these characters between the quotes of its JSON."""
    return chunk(f'{{"content": "{text}"}}')


def hearing(*pieces: bytes) -> str:
    with FakeProvider(api_key=KEY) as provider:
        provider.push(Reply(chunks=[Raw(piece) for piece in pieces], ending="none"))
        heard = asyncio.run(hear(openai_model(provider.url)))
    assert heard.error is None
    heard.text.encode()
    return heard.text


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([r"\ud83d", r"\ude00"], "😀"),
        ([r"Hi \uD83D", r"\uDE00!", "plain"], "Hi 😀!plain"),
        ([r"\ud83d", r"\ude00\ud83d", r"\ude01"], "😀😁"),
        (["a", r"\ud83d", "", r"\ude00"], "a😀"),
        ([r"\ud83d\ude00", "日本"], "😀日本"),
        ([r"\ud83d", "lost"], "\ufffdlost"),
        ([r"\ude00", "begins"], "\ufffdbegins"),
        (["ends", r"\ud83d"], "ends\ufffd"),
    ],
)
def test_the_halves_of_a_text_are_joined(pieces: list[str], text: str) -> None:
    assert hearing(*map(say, pieces), END) == text


def test_the_halves_of_a_tool_call_s_arguments_are_joined() -> None:
    def piece(index: int, arguments: str, name: str = "null", id_: str = "null") -> bytes:
        function = f'{{"name": {name}, "arguments": "{arguments}"}}'
        return chunk(f'{{"tool_calls": [{{"index": {index}, "id": {id_}, "function": {function}}}]}}')

    pieces = [
        piece(0, r"{\"city\": \"\ud83d", '"weather"', '"a"'),
        piece(1, r"{\"city\": \"\ud83d", '"weather"', '"b"'),
        piece(0, r"\ude00\"}"),
        piece(1, r"\ude01\"}"),
    ]
    with FakeProvider(api_key=KEY) as provider:
        provider.push(Reply(chunks=[Raw(each) for each in [*pieces, END]], ending="none"))
        heard = asyncio.run(hear(openai_model(provider.url), tools=[WEATHER]))
    assert heard.error is None
    found = assemble(heard.pieces)
    assert [json.loads(call.arguments) for call in found] == [{"city": "😀"}, {"city": "😁"}]


def test_half_a_character_elsewhere_does_no_harm() -> None:
    with FakeProvider(api_key=KEY) as provider:
        body = r'{"model": "m\ud83d", "choices": [{"index": 0, "message": {"content": "Hi \ud83d"},'
        body += r' "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
        provider.push(Reply(chunks=[Raw(f"data: {body}\n\ndata: [DONE]\n\n".encode())], ending="none"))
        heard = asyncio.run(hear(openai_model(provider.url)))
        assert (heard.error, heard.text) == (None, "Hi \ufffd")
        provider.push(Reply(text="Whole."))
        assert asyncio.run(ask(openai_model(provider.url))).text == "Whole."


@pytest.mark.parametrize(
    ("reply", "whole"),
    [
        (rb'{"a": "cut \ud83d"}', rb'{"a": "cut \ufffd"}'),
        (rb'{"a": "\uD83D\uDE00 \uDE00\uD83D"}', rb'{"a": "\uD83D\uDE00 \ufffd\ufffd"}'),
        (rb'{"a": "\ud83d\ud83d\ude00"}', rb'{"a": "\ufffd\ud83d\ude00"}'),
        (rb'{"a": "\\ud83d \\\ud83d\n"}', rb'{"a": "\\ud83d \\\ufffd\n"}'),
        (b'{"a": "caf\xe9"}', '{"a": "caf\ufffd"}'.encode()),
        ('{"a": "日本😀\u2028", "b": 1e400}'.encode(), '{"a": "日本😀\u2028", "b": 1e400}'.encode()),
    ],
)
def test_of_a_whole_reply_only_what_is_no_character_is_replaced(reply: bytes, whole: bytes) -> None:
    assert halves.whole(reply) == whole
    json.dumps(json.loads(whole), ensure_ascii=False).encode()
