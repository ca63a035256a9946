"""A conversation over HTTP with a real worker: every setting at the provider's wire, and its past."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from aiforge.client import BadRequestError, Client, ConflictError, NotFoundError
from aiforge.core.events import Done, Message, Reset, Token
from aiforge.testing import FakeProvider, Gate, RecordedCall, Reply
from tests.support.processes import Start
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


@pytest.fixture
def talk(tmp_path: Path, worker_process: Start, api_process: Start) -> Iterator[Client]:
    tools, workspace = "tests.support.till:tools", str(tmp_path)
    worker = worker_process(wait=False, tools=tools, workspace=workspace)
    api = api_process(tools=tools, workspace=workspace)
    worker.ready()
    with Client(api.url) as client:
        yield client


def ask(
    client: Client, provider: FakeProvider, question: str, conversation: str = "c", **options: Any
) -> RecordedCall:
    """A turn; what the provider was asked last."""
    provider.push(f"answer to {question}")
    turn = client.submit(question, conversation_id=conversation, wait=20, **options)
    assert (turn.state, turn.error) == ("completed", None)
    return list(provider.calls)[-1]


def said(call: RecordedCall) -> list[str]:
    return [str(message["content"]) for message in call.messages]


def test_every_setting_is_honoured_at_the_wire(
    talk: Client, provider: FakeProvider, server: RedisServer, namespace: str
) -> None:
    for field, value in (("tools", ["no_such_tool"]), ("memory", "all"), ("ttl", 0)):
        with pytest.raises(BadRequestError) as refused:
            talk.create_conversation("c", **{field: value})  # type: ignore[arg-type]
        assert refused.value.param == field
    made = talk.create_conversation(
        "c", model="m1", system_prompt="Be brief.", memory_k=2, tools=["look_up"], temperature=0.25,
        max_tokens=77, ttl=600, metadata={"team": "red"},
    )  # fmt: skip
    assert (made.ttl, made.metadata) == (600, {"team": "red"})
    ask(talk, provider, "q1")
    call = ask(talk, provider, "q2")
    assert said(call) == ["Be brief.", "q1", "answer to q1", "q2"]
    assert (call.body["model"], call.body["temperature"], call.body["max_tokens"]) == ("m1", 0.25, 77)
    assert [tool["function"]["name"] for tool in call.body["tools"]] == ["look_up"]
    assert said(ask(talk, provider, "q3")) == ["Be brief.", "q2", "answer to q2", "q3"]
    keys = [name.decode() for name in server.ask("KEYS", f"*{namespace}:*:default:c")]
    assert {name.split("}:")[1].partition(":")[0] for name in keys} == {"conv", "msgs", "turns", "history"}
    assert all(0 < server.ask("PTTL", name) <= 600_000 for name in keys)

    changed = talk.change_conversation(
        "c", model="m2", system_prompt="Be kind.", memory="none", tools=["refund"], temperature=None,
        max_tokens=None,
    )  # fmt: skip
    assert (changed.revision, changed.memory_k) == (1, 2)
    call = ask(talk, provider, "q4")
    assert said(call) == ["Be kind.", "q4"]
    assert call.body["model"] == "m2"
    assert [tool["function"]["name"] for tool in call.body["tools"]] == ["refund"]
    assert call.body.get("max_tokens") != 77
    with pytest.raises(BadRequestError) as refused:
        talk.submit("q5", conversation_id="c", tools=["no_such_tool"])
    assert refused.value.param == "tools"
    with pytest.raises(BadRequestError) as refused:
        talk.change_conversation("c", tools=["no_such_tool"])
    assert refused.value.param == "tools"


def test_a_running_turn_keeps_what_it_was_begun_with_and_blocks_going_back(
    talk: Client, provider: FakeProvider
) -> None:
    ask(talk, provider, "q1")
    provider.push(Reply(chunks=["a", Gate("go"), "nswer"]))
    running = talk.submit("q2", conversation_id="c")
    wait_until(lambda: len(provider.calls) == 2, 20)
    assert talk.conversation("c").busy
    with pytest.raises(ConflictError) as busy:
        talk.checkout("c", 0)
    assert busy.value.code == "conversation_busy"
    talk.change_conversation("c", system_prompt="Changed.", memory="none")
    talk.compact("c")
    twin = talk.branch("c")
    assert twin.messages == 2
    provider.open("go")
    assert talk.wait(running.turn_id, 20).answer == "answer"
    assert [version.kind for version in talk.versions("c")] == ["snapshot", "turn"]
    assert said(ask(talk, provider, "q3")) == ["Changed.", "q3"]


def test_back_forth_and_aside(talk: Client, provider: FakeProvider) -> None:
    for number in range(3):
        ask(talk, provider, f"q{number}")
    turn_id = list(talk.versions("c"))[-1].turn_id
    assert turn_id is not None
    replayed = list(talk.stream(turn_id))
    assert [event for _, event in replayed][-2:] == [Message("answer to q2"), Done()]
    talk.checkout("c", 1, if_version=3)
    assert said(ask(talk, provider, "other"))[1:] == ["q0", "answer to q0", "other"]
    talk.checkout("c", 3)
    assert said(ask(talk, provider, "q3"))[-3:] == ["q2", "answer to q2", "q3"]
    diff = talk.diff("c", 5, 7)
    assert [message.content for message in diff.removed] == ["other", "answer to other"]
    assert [message.content for message in diff.added][::2] == ["q1", "q2", "q3"]
    assert list(talk.stream(turn_id)) == replayed
    assert not any(isinstance(event, Reset) for _, event in replayed)
    assert talk.compact("c", keep=1).baseline == 6
    with pytest.raises(ConflictError) as gone:
        talk.checkout("c", 3)
    assert gone.value.code == "version_compacted"
    with pytest.raises(NotFoundError):
        talk.checkout("c", 99)


def test_a_turn_that_was_stopped_makes_a_version_if_it_left_an_answer(
    talk: Client, provider: FakeProvider
) -> None:
    ways: tuple[Literal["interrupt", "rollback"], ...] = ("interrupt", "rollback")
    for how in ways:
        provider.push(Reply(chunks=["half ", Gate("never"), "answer"]))
        first = talk.submit("q1", conversation_id=how)
        next(event for _, event in talk.stream(first.turn_id) if isinstance(event, Token))
        ask(talk, provider, "q2", how, on_busy=how)
        assert talk.wait(first.turn_id, 20).state == "cancelled"
        found = [(version.turn_id == first.turn_id, version.messages) for version in talk.versions(how)]
        assert found == ([(False, 2)] if how == "rollback" else [(True, 2), (False, 4)])
        talk.checkout(how, 1)
        assert [message.stopped for message in talk.history(how)][-1] is (how == "interrupt")


def test_a_summary_is_made_in_the_worker_and_paid_in_the_ledger(talk: Client, provider: FakeProvider) -> None:
    talk.create_conversation("c", memory="summary", memory_k=1)
    ask(talk, provider, "q1")
    ask(talk, provider, "q2")
    provider.push("They said q1.")
    last = said(ask(talk, provider, "q3"))
    assert "They said q1." in last[1]
    assert last[2:] == ["q2", "answer to q2", "q3"]
    rows = {row.purpose: row.calls for row in talk.usage(group_by=["purpose"]).data}
    assert rows == {"answer": 3, "summary": 1}
    talk.checkout("c", 1)
    assert said(ask(talk, provider, "q4"))[1:] == ["q1", "answer to q1", "q4"]
