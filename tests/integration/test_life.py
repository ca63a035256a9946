"""The life of a turn in real workers: it is stopped, forgotten, paused for a human, or begins later."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aiforge.core.events import Cancelled, Event, Message, RequiresAction, Reset, Token
from aiforge.testing import FakeProvider, Reply, ToolCall
from tests.support.processes import Start
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict
from worker.contract.schemas import OnBusy, Turn, TurnRequest, TurnState

pytestmark = pytest.mark.anyio
SLOW = Reply(text="one two three four five six", gap=0.5)


async def first_token(client: TurnClient, turn: Turn) -> str:
    async for _, event in client.events(turn.turn_id):
        if isinstance(event, Token):
            return event.text
    raise AssertionError("no token came")


async def events(client: TurnClient, turn: Turn) -> list[Event]:
    return [event async for _, event in client.events(turn.turn_id)]


async def ask(client: TurnClient, message: str, on_busy: OnBusy = "enqueue") -> Turn:
    return await client.submit(TurnRequest(message=message, on_busy=on_busy), conversation_id="c")


@pytest.mark.parametrize("how", ["interrupt", "rollback"])
async def test_a_new_turn_stops_the_running_one_and_goes_next(
    how: OnBusy, client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    worker_process()
    provider.push(SLOW, "second", "third")
    first = await ask(client, "first?")
    third = await ask(client, "third?")
    seen = await first_token(client, first)
    second = await ask(client, "second?", how)
    stopped = await client.wait(first.turn_id, 20)
    assert stopped.state is TurnState.CANCELLED
    assert (await client.wait(third.turn_id, 20)).answer == "third"
    assert (await client.wait(second.turn_id, 20)).answer == "second"
    told = [(message.role, message.content, message.stopped) for message in await client.messages("c")]
    rest = [
        ("user", "second?", False), ("assistant", "second", False),
        ("user", "third?", False), ("assistant", "third", False),
    ]  # fmt: skip
    last = (await events(client, first))[-2:]
    if how == "rollback":
        assert told == rest
        assert (stopped.answer, last[-1]) == (None, Cancelled())
        assert not isinstance(last[0], Message)
    else:
        assert told == [("user", "first?", False), ("assistant", stopped.answer, True), *rest]
        assert (stopped.answer or "").startswith(seen)
        assert last == [Message(stopped.answer or "", stopped=True), Cancelled()]
    assert stopped.cost is not None


@pytest.fixture
def till(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace whose `done.txt` says what the tools have really done."""
    monkeypatch.setenv("AIFORGE_TOOLS", "tests.support.till:tools")
    (tmp_path / "done.txt").touch()
    return tmp_path


@pytest.fixture
async def shop(till: Path, connect: Connect) -> TurnClient:
    return await connect()


def worker(start: Start, till: Path, *, lease_seconds: str = "12") -> None:
    start(tools="tests.support.till:tools", workspace=str(till), lease_seconds=lease_seconds)


def done(till: Path) -> list[str]:
    return (till / "done.txt").read_text().splitlines()


async def test_a_human_is_asked_and_another_worker_goes_on(
    shop: TurnClient, till: Path, worker_process: Start, provider: FakeProvider
) -> None:
    first = worker_process(tools="tests.support.till:tools", workspace=str(till))
    provider.push(Reply(tool_calls=[ToolCall("refund", {"order": "A1"})]), "It is paid back.", "Fine.")
    turn = await shop.submit(TurnRequest(message="Refund A1", tools=["refund"]), conversation_id="c")
    waiting = await ask(shop, "Thanks")
    await eventually(lambda: _is(shop, turn, TurnState.REQUIRES_ACTION))
    asked = await shop.turn(turn.turn_id)
    assert asked.question is not None
    assert (asked.question.tool, asked.question.input) == ("refund", {"order": "A1"})
    assert done(till) == []
    first.kill()
    worker(worker_process, till)
    assert (await shop.turn(waiting.turn_id)).state is TurnState.QUEUED

    await shop.resume(turn.turn_id, asked.question.question_id, "approved")
    with pytest.raises(Conflict):
        await shop.resume(turn.turn_id, asked.question.question_id, "no")
    answered = await shop.wait(turn.turn_id, 20)
    assert (answered.answer, answered.attempts, answered.usage is not None) == ("It is paid back.", 1, True)
    assert done(till) == ["refund A1"]
    assert (await shop.wait(waiting.turn_id, 20)).answer == "Fine."
    told = await events(shop, turn)
    assert sum(isinstance(event, RequiresAction) for event in told) == 1
    assert not any(isinstance(event, Reset) for event in told)
    calls = await shop.turns.calls(turn.turn_id)
    assert [call.outcome for call in calls] == ["ok", "ok"]
    assert answered.cost == sum(call.cost for call in calls if call.cost is not None)
    assert [message["role"] for message in provider.calls[-1].messages][1:] == [
        "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip


async def test_a_refusal_is_told_to_the_model(
    shop: TurnClient, till: Path, worker_process: Start, provider: FakeProvider
) -> None:
    worker(worker_process, till)
    provider.push(Reply(tool_calls=[ToolCall("refund", {"order": "A1"})]), "Then not.")
    turn = await shop.submit(TurnRequest(message="Refund A1", tools=["refund"]))
    await eventually(lambda: _is(shop, turn, TurnState.REQUIRES_ACTION))
    asked = await shop.turn(turn.turn_id)
    assert asked.question is not None
    await shop.resume(turn.turn_id, asked.question.question_id, "the order is too old")
    assert (await shop.wait(turn.turn_id, 20)).answer == "Then not."
    assert "the order is too old" in provider.calls[-1].messages[-1]["content"]
    assert done(till) == []


async def test_what_a_tool_has_done_survives_the_worker(
    shop: TurnClient, till: Path, worker_process: Start, provider: FakeProvider
) -> None:
    """Killed behind the tool: the second attempt asks the model, with the result, and makes no call again."""
    first = worker_process(tools="tests.support.till:tools", workspace=str(till), lease_seconds="2")
    provider.push(Reply(tool_calls=[ToolCall("look_up", {"order": "A1"})]), Reply(instead="silence"))
    provider.push("On its way.")
    turn = await shop.submit(TurnRequest(message="Where is A1?", tools=["look_up"]))
    await eventually(lambda: len(provider.calls) == 2)
    first.kill()
    worker(worker_process, till, lease_seconds="2")
    answered = await shop.wait(turn.turn_id, 30)
    assert (answered.answer, answered.attempts) == ("On its way.", 2)
    assert done(till) == ["look up A1"]
    assert [message["role"] for message in provider.calls[-1].messages][1:] == ["user", "assistant", "tool"]
    assert len(await shop.messages(turn.conversation_id)) == 4


@pytest.mark.parametrize(
    ("name", "told", "times"), [("ship", "may have completed", 1), ("stamp", "stamp A1: done", 2)]
)
async def test_a_tool_in_flight_is_made_again_only_if_it_may_be(
    name: str,
    told: str,
    times: int,
    *,
    shop: TurnClient,
    till: Path,
    worker_process: Start,
    provider: FakeProvider,
) -> None:
    worker(worker_process, till, lease_seconds="2")
    worker(worker_process, till, lease_seconds="2")
    provider.push(Reply(tool_calls=[ToolCall(name, {"order": "A1"})]), "Seen to.")
    turn = await shop.submit(TurnRequest(message="See to A1", tools=[name]))
    answered = await shop.wait(turn.turn_id, 30)
    assert (answered.answer, answered.attempts) == ("Seen to.", 2)
    assert done(till) == [f"{name} A1"] * times
    assert told in provider.calls[-1].messages[-1]["content"]


async def _is(client: TurnClient, turn: Turn, state: TurnState) -> bool:
    return (await client.turn(turn.turn_id)).state is state


async def test_a_turn_for_later_runs_when_it_is_due(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    worker_process()
    provider.push("now")
    turn = await client.submit(TurnRequest(message="later", run_after=time.time() + 1.5))
    assert turn.state is TurnState.SCHEDULED
    ended = await client.wait(turn.turn_id, 20)
    assert ended.answer == "now"
    assert ended.finished_at is not None
    assert ended.finished_at >= (turn.run_after or 0)


async def test_a_turn_that_was_cancelled_while_its_worker_was_dead_is_not_answered(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    first = worker_process(lease_seconds="2")
    provider.push(SLOW)
    turn = await ask(client, "first?")
    await first_token(client, turn)
    first.kill()
    await client.cancel(turn.turn_id)
    worker_process(lease_seconds="2")
    assert (await client.wait(turn.turn_id, 30)).state is TurnState.CANCELLED
    assert len(provider.calls) == 1


async def test_an_erased_turn_is_stopped_and_leaves_nothing(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    worker_process()
    provider.push(SLOW, "new")
    turn = await ask(client, "first?")
    await first_token(client, turn)
    assert (await client.erase("c")).stopped == 1
    await eventually(lambda: provider.calls[0].end == "closed")
    again = await ask(client, "again?")
    assert (await client.wait(again.turn_id, 20)).answer == "new"
    assert len(await client.messages("c")) == 2
