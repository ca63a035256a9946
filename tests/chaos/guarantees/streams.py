"""What readers see: every event once and in order, one end, and never two attempts mixed."""

from __future__ import annotations

from aiforge.core.events import TERMINAL_EVENTS, Queued, Reset, Started
from tests.chaos.evidence import Evidence
from tests.chaos.guarantees.findings import Findings, completed, shows, text


def one_end(evidence: Evidence, found: Findings) -> None:
    """A turn's log begins with `queued` and has exactly one terminal event, at its end."""
    for turn_id, facts in completed(evidence):
        ends = [place for place, event in enumerate(facts.log) if isinstance(event, TERMINAL_EVENTS)]
        good = ends == [len(facts.log) - 1] and isinstance(facts.log[0], Queued)
        found.expect(good, f"{turn_id} has {len(facts.log)} events, terminal ones at {ends}")


def reset_between(evidence: Evidence, found: Findings) -> None:
    """Each run of a turn begins with `started`, every one but the first with a `reset` before it."""
    for turn_id, facts in completed(evidence):
        marks = [type(event) for event in facts.log if isinstance(event, (Reset, Started))]
        expected = [Started, *[Reset, Started] * (facts.fence - 1)]
        found.expect(marks == expected, f"{turn_id} ran {facts.fence} times and has {marks}")


def text_is_answer(evidence: Evidence, found: Findings) -> None:
    """The tokens after the last reset are the stored answer, and so is the one `message`."""
    for turn_id, facts in completed(evidence):
        found.expect(shows(facts.log, facts.turn.answer), f"{turn_id} shows {text(facts.log)!r}")


def read_whole(evidence: Evidence, found: Findings) -> None:
    """A reader gets every event once, numbered 1, 2, 3 …, to the end, across whatever hit its turn."""
    for reading, facts in evidence.read_along():
        numbers = [number for number, _ in reading.events]
        found.expect(
            reading.broken is None
            and numbers == list(range(1, len(facts.log) + 1))
            and [event for _, event in reading.events] == facts.log,
            f"{reading.turn_id}: {reading.broken or 'a reader'} got {numbers} of {len(facts.log)} events",
        )


def read_again(evidence: Evidence, found: Findings) -> None:
    """A reader attached before its turn was hit sees a `reset`, then the whole second answer."""
    hits = evidence.lasting()
    for reading, facts in evidence.read_along():
        during = [hit for hit in hits if hit.turn_id == reading.turn_id and 0 < reading.opened < hit.at]
        if during:
            events = [event for _, event in reading.events]
            resets = sum(isinstance(event, Reset) for event in events)
            good = resets >= len(during) and shows(events, facts.turn.answer)
            found.expect(good, f"{reading.turn_id}: {resets} resets, {len(during)} hits, {text(events)!r}")
