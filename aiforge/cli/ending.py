"""How a run of questions ends: whole, detached from a service that goes on with it, or cancelled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from aiforge.cli.errors import CommandError
from aiforge.cli.job import Job
from aiforge.cli.output import duration, note
from aiforge.cli.progress import Tally
from aiforge.cli.runs import Run
from aiforge.cli.signals import Ended, undisturbed
from aiforge.client import Client, ClientError
from aiforge.client.options import BatchOptions
from aiforge.questions.errors import QuestionsError
from aiforge.questions.output import Output, unused_file

_NAMED: Final = 3
"""How many batches are named where many run."""


def answer_all(
    client: Client,
    out: Output,
    run: Run,
    options: BatchOptions,
    *,
    stays: bool = False,
    retry_failed: bool = False,
) -> Tally:
    """Answer what has no answer and write every row; the sums.

    An early end leaves the batches at work if the service `stays`, else it cancels them.
    """
    out.flush()
    job = Job(client, out, run, options, retry_failed=retry_failed)
    try:
        job.answer()
    except (Ended, CommandError, ClientError, OSError, QuestionsError) as end:
        with undisturbed() as hurry:
            goes_on = isinstance(end, Ended | OSError | QuestionsError)
            goes_on = goes_on or (isinstance(end, ClientError) and end.retryable)
            if stays and goes_on:
                _detach(job, is_away=isinstance(end, ClientError) or job.is_away)
            else:
                _cancel(job, hurry)
        raise
    finish(out, run)
    note(f"{out.written} rows in {duration(job.tally.elapsed)} → {run.name}")
    return job.tally


def finish(out: Output, run: Run) -> None:
    """Put the output in order and say where what failed is; a run that has asked everything is over."""
    errors = out.finish()
    if out.is_whole and not out.not_asked:
        run.end()
    if errors is not None:
        note(f"what failed is in {errors.name}, too")
    if out.unused:
        kept = unused_file(Path(run.name)).name
        are = "1 answer belongs" if out.unused == 1 else f"{out.unused} answers belong"
        note(f"{are} to no question any more; kept in {kept}", style="yellow")


def _detach(job: Job, *, is_away: bool) -> None:
    with suppress(OSError, QuestionsError):
        job.out.flush()
    if not job.has_posted:
        note(_nothing_known(job.run), style="yellow")
        return
    if is_away:
        what = "the service does not answer; it goes on with the rest when it is back"
    elif all(batch.paused_at for batch in job.batches):
        what = "the rest is paused"
    else:
        what = "the service goes on with the rest, which costs"
    note(f"detached: {job.rows}, and {what}", style="yellow")
    if job.run.is_file:
        note(f"come back with the same command, which writes the rest into {job.run.name}", style="yellow")
    into = "" if job.run.is_file else " -o OUT"
    for batch in job.batches[:_NAMED]:
        note(f"aiforge batch watch {batch.id}{into}; to end it: aiforge batch cancel {batch.id}")
    if len(job.batches) > _NAMED:
        note(f"and {len(job.batches) - _NAMED} more: aiforge batch ls")


def _nothing_known(run: Run) -> str:
    if not run.has_posted:
        return "ended before a batch was posted"
    where = "the same command finds out and goes on" if run.is_file else "aiforge batch ls shows it"
    return f"detached while a batch was posted or looked for: it may be at work, which costs; {where}"


def _cancel(job: Job, hurry: Callable[[], bool]) -> None:
    if job.run.has_posted:
        note("cancelling; once more hurries it")
    with suppress(OSError, QuestionsError):
        job.cancel(hurry)
        finish(job.out, job.run)
    if not job.has_posted:
        return
    again = "; the same command goes on from there" if job.run.is_file else ""
    note(f"cancelled: {job.rows}{again}", style="yellow")
