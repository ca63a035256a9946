"""Each question is answered once, in its place in the conversation."""

from __future__ import annotations

from aiforge.core.types import StreamCutError, UnavailableError
from tests.chaos.evidence import Evidence
from tests.chaos.guarantees.findings import Findings, call_of, completed, completed_of, turn_of
from tests.chaos.provider import whole_answer
from worker.contract.schemas import Turn, TurnState


def accepted(evidence: Evidence, found: Findings) -> None:
    """Every submission is accepted in the end, repeated under its key while API or Redis are away."""
    found.seen = sum(map(len, evidence.accepted.values()))
    for reason in evidence.refused:
        found.expect(False, reason)


def answered(evidence: Evidence, found: Findings) -> None:
    """Every accepted turn is completed, not lost, no dead letter; or its provider was cut off meanwhile."""
    for turn in (turn for turns in evidence.accepted.values() for turn in turns):
        facts = evidence.facts.get(turn.turn_id)
        state, error = (facts.turn.state, facts.turn.error) if facts is not None else ("gone", None)
        good = state is TurnState.COMPLETED or (facts is not None and _cut_off(evidence, facts.turn))
        found.expect(good, f"{turn.turn_id} is {state}, {error}")


def _cut_off(evidence: Evidence, turn: Turn) -> bool:
    return (
        turn.error is not None
        and turn.error.code in (UnavailableError.code, StreamCutError.code)
        and any(
            turn.created_at < ended and began < (turn.finished_at or 0.0)
            for began, ended in evidence.disturbed
        )
    )


def remembered_once(evidence: Evidence, found: Findings) -> None:
    """A conversation remembers of each answered turn one question and one answer, in the order asked."""
    for conversation, turns in evidence.accepted.items():
        expected = [
            line
            for turn, facts in completed_of(evidence, turns)
            for line in (
                ("user", turn.question, turn.turn_id),
                ("assistant", facts.turn.answer, turn.turn_id),
            )
        ]
        memory = [(entry.role, entry.content, entry.turn_id) for entry in evidence.memory[conversation]]
        found.expect(memory == expected, f"{conversation} holds {memory}, not {expected}")


def in_order(evidence: Evidence, found: Findings) -> None:
    """The turns of a conversation end one after the other, first in, first out."""
    for conversation, turns in evidence.accepted.items():
        ends = [facts.turn.finished_at or 0.0 for _, facts in completed_of(evidence, turns)]
        found.expect(ends == sorted(ends), f"{conversation} ended at {ends}")


def of_one_call(evidence: Evidence, found: Findings) -> None:
    """The stored answer is the whole answer of one provider call of that turn, never a mixture of two."""
    calls = {asked.number: turn_of(asked.call_id) for asked in evidence.asked}
    for turn_id, facts in completed(evidence):
        number, answer = call_of(facts), facts.turn.answer
        good = calls.get(number) == turn_id and answer == whole_answer(number, evidence.plan.words)
        found.expect(good, f"{turn_id} answers {answer!r}")


def in_context(evidence: Evidence, found: Findings) -> None:
    """The call whose answer is stored was asked with exactly the conversation as it was before."""
    calls = {asked.number: asked.messages for asked in evidence.asked}
    for conversation, turns in evidence.accepted.items():
        before: list[tuple[str, object]] = []
        for turn, facts in completed_of(evidence, turns):
            messages = calls.get(call_of(facts), [])
            told = [(line["role"], line["content"]) for line in messages if line["role"] != "system"]
            expected = [*before, ("user", turn.question)]
            found.expect(told == expected, f"{conversation} asked with {told}, not {expected}")
            before = [*expected, ("assistant", facts.turn.answer)]
