"""One real stack, and the commands about turns that wait, ask or died, whole conversations, and usage."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from aiforge.core.events import Failed
from aiforge.testing import FakeProvider, Gate, Reply, ToolCall
from tests.aiforge.cli.command import FREE_PORTS, Desk, Ended, Room
from tests.support.turns import DEAD
from tests.support.waiting import wait_until
from worker.contract.calls.providers import FAILURES, Wants
from worker.contract.calls.providers import Ended as EndedCall
from worker.contract.client import TurnClient
from worker.contract.settings import ContractSettings

ROOT: Final = Path(__file__).parents[3]
REFUND: Final = Reply(tool_calls=[ToolCall("refund", {"order": "A1"})])
SHOP: Final[dict[str, Any]] = {
    "version": 1,
    "conversation_id": "shop",
    "created_at": 1_767_225_600.5,
    "settings": {"tools": ["refund"], "memory_k": 5},
    "messages": [{"role": "user", "content": "\u2028 Hello?"}, {"role": "assistant", "content": "Hi!"}],
}


class Shop:
    """The stack, its provider, and the commands that are tried on it."""

    def __init__(self, desk: Desk, provider: FakeProvider, room: Callable[[], Room]) -> None:
        self.desk = desk
        self.provider = provider
        self._room = room

    def run(self, *arguments: str) -> Ended:
        return self._room().run(*arguments)

    def json(self, *arguments: str) -> Any:
        """The one object that a command writes."""
        ended = self.run(*arguments, "--json")
        assert ended.code == 0, ended
        return json.loads(ended.out)

    def lines(self, *arguments: str) -> list[Any]:
        """The objects that a command writes, one a line."""
        ended = self.run(*arguments, "--json")
        assert ended.code == 0, ended
        return [json.loads(line) for line in ended.out.splitlines()]

    def submit(self, *arguments: str) -> str:
        ended = self.run("submit", *arguments)
        assert ended.code == 0, ended
        return ended.out.strip()

    def state(self, turn_id: str) -> str:
        return str(self.json("status", turn_id)["state"])

    def wait_for(self, turn_id: str, state: str) -> None:
        wait_until(lambda: self.state(turn_id) == state, 20)

    @contextmanager
    def held(self, conversation: str) -> Iterator[str]:
        """A turn that runs until the block ends."""
        gate = f"{conversation} {len(self.provider.calls)}"
        self.provider.push(Reply(chunks=["one ", Gate(gate), "two"]))
        turn_id = self.submit("Hold", "-c", conversation)
        self.wait_for(turn_id, "running")
        try:
            yield turn_id
        finally:
            self.provider.open(gate)


def a_busy_conversation(shop: Shop) -> None:
    with shop.held("busy") as active:
        refused = shop.run("chat", "Hello?", "-c", "busy", "--on-busy", "reject")
        assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
        assert "(code conversation_busy)" in refused.err
        wrong = shop.run("chat", "Hello?", "-c", "busy", "--on-busy", "wait")
        assert (wrong.code, wrong.err.count("\n")) == (2, 1)
        interrupted = shop.run("chat", "Never mind", "-c", "busy", "--on-busy", "interrupt")
        assert interrupted.code == 0, interrupted
        assert shop.state(active) == "cancelled"


def the_queue_is_shown_and_put_in_order(shop: Shop) -> None:
    with shop.held("line") as active:
        waiting = [shop.submit(f"question {number}", "-c", "line") for number in range(3)]
        assert shop.json("queue", "line") == {"active": active, "waiting": waiting}
        shown = shop.run("queue", "line").out.splitlines()
        assert shown == [f"{active}  active", *(f"{turn_id}  waiting" for turn_id in waiting)]
        order = shop.json("queue", "line", "--order", f"{waiting[2]},{waiting[1]}")
        assert order["waiting"] == [waiting[2], waiting[1], waiting[0]]
        for given, says in ((f"{waiting[0]},{waiting[0]}", "names a turn twice"), (active, "does not wait")):
            ended = shop.run("queue", "line", "--order", given)
            assert ended.code == 2
            assert says in ended.err
        assert shop.run("cancel", waiting[1]).out == f"{waiting[1]}  cancelled\n"
        assert shop.json("queue", "line")["waiting"] == [waiting[2], waiting[0]]
    for turn_id in (waiting[2], waiting[0]):
        shop.wait_for(turn_id, "completed")
    empty = shop.run("queue", "line")
    assert (empty.code, empty.out, empty.err) == (0, "", "no turn is under way\n")


def a_turn_begins_later_and_is_cancelled_as_it_was_seen(shop: Shop) -> None:
    later = shop.json("submit", "Hello?", "--run-after", "2h")
    assert later["state"] == "scheduled"
    assert 7100 < later["run_after"] - time.time() < 7300
    seen = shop.run("cancel", later["turn_id"], "--if-state", "queued")
    assert (seen.code, seen.out) == (1, "")
    assert "(code turn_changed)" in seen.err
    assert shop.json("cancel", later["turn_id"], "--if-state", "scheduled")["state"] == "cancelled"
    soon = shop.json("submit", "Hello?", "--run-after", "0s", "--wait", "20")
    assert soon["state"] == "completed"
    for wrong in ("soon", "2w", "-1s"):
        ended = shop.run("submit", "Hello?", f"--run-after={wrong}")
        assert (ended.code, ended.err.count("\n")) == (2, 1)


def a_question_without_a_terminal_is_printed_and_answered_later(shop: Shop) -> None:
    assert shop.json("conversations", "import", "shop.json")["tools"] == ["refund"]
    shop.provider.push(REFUND, "It is paid back.")
    asked = shop.run("chat", "Refund A1", "-c", "shop")
    assert (asked.code, asked.out) == (4, "")
    problem, how = asked.err.splitlines()[-2:]
    assert problem.startswith("aiforge: the turn asks: ")
    assert '(refund {"order":"A1"})' in problem
    _, _, turn_id, _, _, question_id = how.split()
    assert shop.run("tail", turn_id).code == 4
    assert shop.run("resume", turn_id, "yes", "--question", "q_other").code == 1
    assert shop.json("resume", turn_id, "yes", "--question", question_id)["state"] == "queued"
    tail = shop.run("tail", turn_id)
    assert (tail.code, tail.out.splitlines()[-1]) == (0, "It is paid back.")
    done = shop.run("resume", turn_id, "yes")
    assert (done.code, done.err) == (1, "aiforge: the turn asks nothing, it is completed\n")
    other = shop.run("resume", turn_id, "no", "--question", question_id)
    assert (other.code, "(code already_answered)" in other.err) == (1, True)


def a_question_with_json_is_in_the_turn(shop: Shop) -> None:
    shop.provider.push(REFUND, "Then not.")
    asked = shop.run("chat", "Refund A1", "-c", "shop", "--json")
    turn = json.loads(asked.out)
    assert (asked.code, turn["state"], turn["question"]["tool"]) == (4, "requires_action", "refund")
    assert shop.run("resume", turn["turn_id"], "the order is too old").code == 0
    shop.wait_for(turn["turn_id"], "completed")
    assert "the order is too old" in shop.provider.calls[-1].messages[-1]["content"]


def the_person_at_the_terminal_is_asked(shop: Shop) -> None:
    shop.provider.push(REFUND, "It is paid back.")
    ours, theirs = pty.openpty()
    try:
        chat = shop.desk.start_at(theirs, "chat", "Refund A1", "-c", "shop")
        chat.wait_for('(refund {"order":"A1"})')
        os.write(ours, b"\n yes \n")
        ended = chat.end()
    finally:
        os.close(ours)
        os.close(theirs)
    assert ended.code == 0, ended
    assert ended.out.splitlines()[-1] == "It is paid back."
    assert ended.err.count("yes lets it run, anything else is told to the model: ") == 2


def ctrl_c_at_a_question_cancels_the_turn(shop: Shop) -> None:
    shop.provider.push(REFUND)
    ours, theirs = pty.openpty()
    try:
        chat = shop.desk.start_at(theirs, "chat", "Refund A1", "-c", "shop")
        chat.wait_for('(refund {"order":"A1"})')
        ended = chat.end(signal.SIGINT)
    finally:
        os.close(ours)
        os.close(theirs)
    assert ended.code == 130
    assert ended.err.endswith("cancelled\n")
    assert shop.json("queue", "shop") == {"active": None, "waiting": []}


def conversations_are_listed_taken_elsewhere_and_erased(shop: Shop) -> None:
    assert "shop" in [found["conversation_id"] for found in shop.lines("conversations", "ls")]
    assert len(shop.lines("conversations", "ls", "--limit", "1")) == 1
    assert shop.run("conversations", "ls").out.count("\n") == len(shop.lines("conversations", "ls"))
    written = shop.run("conversations", "export", "shop", "-o", "out.json")
    assert (written.code, written.out) == (0, "")
    out = shop.run("conversations", "export", "shop").out
    assert json.loads(out) == json.loads((shop.desk.folder / "out.json").read_text())
    assert (out.count("\n"), len(out.splitlines())) == (1, 1)
    document = json.loads(out)
    assert document["messages"][:2] == SHOP["messages"]

    taken = shop.run("conversations", "import", "out.json")
    assert (taken.code, "(code conversation_exists)" in taken.err) == (1, True)
    made = shop.run("conversations", "import", "out.json", "-c", "other")
    assert (made.code, made.out) == (0, "other\n")
    moved = json.loads(shop.run("conversations", "export", "other").out)
    assert moved == {**document, "conversation_id": "other"}

    receipt = shop.json("conversations", "rm", "other")
    assert receipt == {
        "conversation_id": "other", "messages": len(document["messages"]),
        "turns": 0, "stopped": 0, "schedules": 0, "items": 0, "files": [],
    }  # fmt: skip
    assert shop.run("conversations", "rm", "other").code == 1
    (shop.desk.folder / "bad.json").write_text('{"version": 1}')
    for name, code in (("bad.json", 1), ("none.json", 2)):
        ended = shop.run("conversations", "import", name)
        assert (ended.code, ended.err.count("\n")) == (code, 1)


def a_conversation_is_set_up_and_gone_back_in(shop: Shop) -> None:
    def ask(verb: str, *arguments: str) -> Any:
        return shop.json("conversations", verb, "past", *arguments)

    shop.provider.push("a0", "a1")
    for question in ("q0", "q1"):
        assert shop.run("chat", question, "-c", "past").code == 0
    assert ask("set", "--model", "gpt-4o", "--metadata", "team=red", "--memory", "none")["revision"] == 1
    changed = ask("set", "--unset", "model", "--unset", "metadata.team", "--ttl", "600", "--tool", "refund")
    assert (changed["model"], changed["metadata"], changed["memory"]) == (None, None, "none")
    assert (changed["ttl"], changed["tools"]) == (600, ["refund"])
    for wrong in (["--unset", "colour"], [], ["--metadata", "team"], ["--memory", "all"]):
        assert shop.run("conversations", "set", "past", *wrong).code == 2
    stale = shop.run("conversations", "set", "past", "--ttl", "9", "--if-revision", "1")
    assert (stale.code, "(code conversation_changed)" in stale.err) == (1, True)
    ask("set", "--metadata", "team=blue")
    assert [
        found["conversation_id"] for found in shop.lines("conversations", "ls", "--metadata", "team=blue")
    ] == ["past"]
    assert shop.lines("conversations", "ls", "--busy", "--metadata", "team=blue") == []

    assert [one["version"] for one in shop.lines("conversations", "versions", "past")] == [1, 2]
    assert shop.run("conversations", "versions", "past").out.count("turn") == 2
    assert ask("checkout", "1", "--if-version", "2")["version"] == 3
    shown = shop.run("conversations", "diff", "past", "2", "3")
    assert shown.out == "- user: q1\n- assistant: a1\n"
    made = shop.run("conversations", "branch", "past", "--version", "2", "--as", "twin")
    assert (made.code, made.out) == (0, "twin\n")
    assert [message["content"] for message in shop.lines("history", "twin")] == ["q0", "a0", "q1", "a1"]
    assert ask("compact", "--keep", "0")["baseline"] == 3
    gone = shop.run("conversations", "checkout", "past", "1")
    assert (gone.code, "(code version_compacted)" in gone.err) == (1, True)


def dead_letters_are_shown_posted_again_and_dropped(shop: Shop) -> None:
    assert shop.lines("dead", "ls") == []
    with shop.held("grave") as first:
        asyncio.run(bury(shop, first))
    with shop.held("grave") as second:
        asyncio.run(bury(shop, second))
    assert [letter["turn_id"] for letter in shop.lines("dead", "ls")] == [second, first]
    assert shop.run("dead", "list").out.count("conversation grave") == 2
    assert shop.json("dead", "show", first)["error"]["code"] == "dead_lettered"
    shop.provider.push("Risen.")
    risen = shop.run("dead", "requeue", first).out.strip()
    shop.wait_for(risen, "completed")
    dropped = shop.run("dead", "drop", second)
    assert (dropped.code, dropped.out) == (0, "")
    assert shop.run("dead", "drop", second).code == 1
    shown = shop.run("dead", "show", risen)
    assert (shown.code, shown.err) == (1, f"aiforge: turn '{risen}' is no dead letter (code not_found)\n")
    assert shop.lines("dead", "ls") == []


async def bury(shop: Shop, turn_id: str) -> None:
    """As if the process that has the turn to itself had died."""
    url = json.loads((shop.desk.data / "run.json").read_text())["redis_url"]
    async with await TurnClient.connect(ContractSettings(redis_url=url)) as client:
        place = await client.turns.place(turn_id)
        fence = int(await client.connection.command("HGET", client.turns.keys.turn(turn_id), "fence"))
        answer, _ = await client.turns.requeue(
            place, fence, died=DEAD, events=[Failed(DEAD.code, DEAD.message)]
        )
    assert answer == "dead"


def a_model_that_fails_is_listed_and_called_again(shop: Shop) -> None:
    assert shop.lines("providers", "ls") == []
    asyncio.run(break_model(shop, "openai/org/m"))
    (health,) = shop.lines("providers", "ls")
    assert (health["name"], health["circuit"], health["failures"]) == ("openai/org/m", "open", FAILURES)
    assert "openai/org/m  circuit open  pace 1  open until " in shop.run("providers", "ls").out
    reset = shop.run("providers", "reset", "openai/org/m")
    assert (reset.code, reset.err) == (0, "openai/org/m is called again\n")
    assert shop.json("providers", "ls")["circuit"] == "closed"
    assert shop.run("providers", "reset", "x/y").code == 1


async def break_model(shop: Shop, name: str) -> None:
    url = json.loads((shop.desk.data / "run.json").read_text())["redis_url"]
    async with await TurnClient.connect(ContractSettings(redis_url=url)) as client:
        await client.providers.step(name, "worker", 1, Wants(ended=[EndedCall("", "failed")] * FAILURES))


def usage_is_summed(shop: Shop) -> None:
    calls = len(shop.provider.calls)
    rows = shop.lines("usage")
    assert sum(row["calls"] for row in rows) == calls
    assert "gpt-4o-mini" in [row["model"] for row in rows]
    grouped = shop.lines("usage", "--by", "provider", "--by", "purpose")
    assert sum(row["calls"] for row in grouped) == calls
    assert {row["provider"] for row in grouped} == {"openai"}
    assert "answer" in {row["purpose"] for row in grouped}
    text = shop.run("usage", "--by", "provider")
    header, line = text.out.splitlines()
    assert header.split("\t")[:2] == ["provider", "calls"]
    assert line.split("\t")[:2] == ["openai", str(calls)]
    total = sum(Decimal(row["cost"]) for row in rows)
    assert text.err.startswith(f"total ${total:f}")
    ledger = shop.lines("usage", "--calls")
    assert 0 < len(ledger) <= calls, "what was erased has no rows any more, but its sums"
    assert 0 < sum(Decimal(row["cost"]) for row in ledger if row["cost"] is not None) <= total
    one = ledger[0]["turn_id"]
    own = [row for row in ledger if row["turn_id"] == one]
    assert shop.lines("usage", "--calls", "--turn", one) == own
    line, *_ = shop.run("usage", "--calls", "--turn", one, "--limit", "1").out.splitlines()
    assert f"{own[0]['call_id']}  attempt 1, " in line
    assert shop.lines("usage", "--to", "2020-01-31") == []
    for arguments in (
        ["--from", "yesterday"], ["--by", "tenant"], ["--calls", "--by", "day"], ["--turn", one],
    ):  # fmt: skip
        ended = shop.run("usage", *arguments)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
    late = shop.run("usage", "--from", "2030-01-02", "--to", "2030-01-01")
    assert (late.code, "(code invalid_value)" in late.err) == (1, True)


@pytest.mark.timeout(240)
def test_what_is_asked_of_turns_that_wait_ask_or_died(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    (desk.folder / "shop.json").write_text(json.dumps(SHOP))
    (desk.folder / "done.txt").touch()
    with FakeProvider() as provider:
        up = desk.start(
            "up", **FREE_PORTS, OPENAI_API_KEY="sk-test", AIFORGE_OPENAI_BASE_URL=provider.url,
            AIFORGE_TOOLS="tests.support.till:tools", AIFORGE_WORKSPACE=str(desk.folder),
            PYTHONPATH=str(ROOT),
        )  # fmt: skip
        up.wait_for("ready; Ctrl-C stops everything")
        shop = Shop(desk, provider, lambda: Room(desk.folder, monkeypatch, capsys))
        for question in (
            a_busy_conversation,
            the_queue_is_shown_and_put_in_order,
            a_turn_begins_later_and_is_cancelled_as_it_was_seen,
            a_question_without_a_terminal_is_printed_and_answered_later,
            a_question_with_json_is_in_the_turn,
            the_person_at_the_terminal_is_asked,
            ctrl_c_at_a_question_cancels_the_turn,
            a_conversation_is_set_up_and_gone_back_in,
            conversations_are_listed_taken_elsewhere_and_erased,
            dead_letters_are_shown_posted_again_and_dropped,
            a_model_that_fails_is_listed_and_called_again,
            usage_is_summed,
        ):
            with subtests.test(question.__name__):
                question(shop)
        assert up.end(signal.SIGTERM).code == 0
