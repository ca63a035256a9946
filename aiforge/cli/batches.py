"""`aiforge batch …`: batches that run on their own, posted, looked at, steered and fetched."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Final

import typer

from aiforge.cli import ids
from aiforge.cli.arguments import JsonOption, whole
from aiforge.cli.connect import connected, is_gone
from aiforge.cli.errors import CommandError
from aiforge.cli.fetch import fetch, must_be_free
from aiforge.cli.output import as_json, clock, data, listed, note, told, when
from aiforge.cli.progress import Tally, dollars, say_paused, shown
from aiforge.cli.signals import Ended
from aiforge.client import Batch, Client, ClientError

POLL_SECONDS: Final = 0.5
_SHOWN_ERRORS: Final = 20

BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id.", callback=ids.batch)]
_OUTPUT_HELP: Final = "JSONL or CSV by its suffix; - is stdout."
OutputOption = Annotated[
    str, typer.Option("--output", "-o", metavar="OUT", help=_OUTPUT_HELP, callback=whole)
]
LaterOption = Annotated[
    str | None, typer.Option("--output", "-o", metavar="OUT", help=_OUTPUT_HELP, callback=whole)
]


def ls(
    *,
    limit: Annotated[int | None, typer.Option(min=1, help="How many; all when left out.")] = None,
    json: JsonOption = False,
) -> None:
    """List batches, the newest first; with --json one object a line."""
    line = _short_line if sys.stdout.isatty() else _line
    with connected(start=False) as client:
        found = islice(client.batches(), limit)
        listed((as_json(each) if json else line(each) for each in found), "no batches")


def status(batch_id: BatchArgument, *, json: JsonOption = False) -> None:
    """Show how far a batch is, and what is wrong with it."""
    with connected(start=False) as client:
        found = client.batch(batch_id)
    data(as_json(found) if json else _line(found))
    if not json:
        _say_errors(found)


def watch(batch_id: BatchArgument, *, target: LaterOption = None, json: JsonOption = False) -> None:
    """Follow a batch to its end, then fetch its rows if -o says where to.

    Ctrl-C leaves the batch at work. Exit code 1 when it has failed, or an item of it.
    """
    if target is not None:
        must_be_free(target)
    with connected(start=False) as client:
        try:
            found = _followed(client, batch_id)
        except Ended:
            into = "" if target is None else f" -o {target}"
            note(f"detached; come back with: aiforge batch watch {batch_id}{into}", style="yellow")
            raise
        if target is not None:
            fetch(client, found, target)
    if target != "-":
        data(as_json(found) if json else _line(found))
    _say_errors(found)
    if found.status != "completed" or found.request_counts.failed:
        raise CommandError(f"{found.request_counts.failed} failed, the batch is {found.status}")


def pause(batch_id: BatchArgument, *, json: JsonOption = False) -> None:
    """Let no further item of a batch begin; its time goes on."""
    _steer(lambda client: client.pause_batch(batch_id), json)


def resume(batch_id: BatchArgument, *, json: JsonOption = False) -> None:
    """Let a paused batch go on."""
    _steer(lambda client: client.resume_batch(batch_id), json)


def cancel(batch_id: BatchArgument, *, json: JsonOption = False) -> None:
    """End a batch; what is answered stays."""
    _steer(lambda client: client.cancel_batch(batch_id), json)


def retry(batch_id: BatchArgument, *, json: JsonOption = False) -> None:
    """Run again what has failed in a batch that is over, or was never run."""
    _steer(lambda client: client.retry_batch(batch_id), json)


def rm(batch_id: BatchArgument) -> None:
    """Forget a batch that is over; its files stay."""
    with connected(start=False) as client:
        client.delete_batch(batch_id)
    note(f"{batch_id} is gone")


def clear_cache() -> None:
    """Erase the answers that are kept for later batches."""
    with connected(start=False) as client:
        note(f"{client.forget_answers()} answers are not kept any more")


def export(batch_id: BatchArgument, *, target: OutputOption = "-") -> None:
    """Write the rows of a batch that is over, in the order of its items.

    Of a batch that was a file, JSONL is its output file, with its error file beside it.
    """
    must_be_free(target)
    with connected(start=False) as client:
        found = client.batch(batch_id)
        if not found.ended:
            counts = found.request_counts
            raise CommandError(
                f"{batch_id} is {_state(found)}, {counts.done} of {counts.total} are done; "
                f"wait for it with: aiforge batch watch {batch_id} -o OUT"
            )
        fetch(client, found, target)


def _steer(how: Callable[[Client], Batch], json: bool) -> None:
    with connected(start=False) as client:
        found = how(client)
    data(as_json(found) if json else _line(found))


def _followed(client: Client, batch_id: str) -> Batch:
    """The batch at its end; raises ClientError when the service is away for too long."""
    found = client.batch(batch_id)
    tally = Tally(found.request_counts.total)
    tally.begin([found])
    say_paused(found)
    with shown(tally) as lines:
        answered_at = time.monotonic()
        while not found.ended:
            time.sleep(POLL_SECONDS)
            try:
                found = client.batch(batch_id)
                answered_at = time.monotonic()
            except ClientError as error:
                if is_gone(error, answered_at):
                    raise
            tally.total = found.request_counts.total
            tally.update([found])
            if lines:
                lines.say()
        tally.end()
    return found


def _state(found: Batch) -> str:
    return "paused" if found.paused_at and not found.ended else found.status


def _short_line(found: Batch) -> str:
    """Of many batches on a terminal: what tells them apart."""
    counts = found.request_counts
    parts = [found.id, _state(found), f"{counts.done}/{counts.total}"]
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    return told([*parts, dollars(found.cost), clock(found.created_at)])


def _line(found: Batch) -> str:
    counts = found.request_counts
    parts = [found.id, _state(found), f"{counts.done}/{counts.total} done, {counts.failed} failed"]
    if found.waits_until and not found.ended:
        parts.append(f"waits for its budget until {when(found.waits_until)}")
    if found.saved_calls:
        parts.append(f"{found.saved_calls} saved")
    most = "" if found.max_cost is None else f" of at most ${found.max_cost:f}"
    unpriced = f" + {found.unpriced_calls} unpriced" if found.unpriced_calls else ""
    parts += [dollars(found.cost) + most + unpriced, when(found.created_at)]
    for name, file_id in (("output", found.output_file_id), ("errors", found.error_file_id)):
        if file_id:
            parts.append(f"{name} {file_id}")
    return told(parts)


def _say_errors(found: Batch) -> None:
    """What is wrong with the lines of a batch that was refused."""
    wrong = found.errors.data if found.errors else []
    for error in wrong[:_SHOWN_ERRORS]:
        note(f"{'' if error.line is None else f'line {error.line} '}{error.message} (code {error.code})")
    if (more := max(found.invalid_lines, len(wrong)) - _SHOWN_ERRORS) > 0:
        note(f"and {more} more")
