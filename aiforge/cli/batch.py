"""`aiforge batch run`: questions from a file, answers into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aiforge.cli import answers, questions
from aiforge.cli.arguments import MaxTokensOption, ModelOption, whole
from aiforge.cli.connect import attached
from aiforge.cli.ending import answer_all, finish
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.forecast import forecast
from aiforge.cli.output import note
from aiforge.cli.questions import (
    CacheTtlOption,
    ColumnOption,
    ConversationColumnOption,
    DedupeOption,
    DelimiterOption,
    EncodingOption,
    IdColumnOption,
    MaxCostOption,
    NoHeaderOption,
    PromptTemplateOption,
    RetryFailedOption,
    SystemPromptOption,
)
from aiforge.cli.runs import Run, earlier
from aiforge.client.options import BatchOptions, Options
from aiforge.questions.output import Output, errors_file, real, unused_file
from aiforge.questions.reading import Choices


def run(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="JSONL, CSV or TSV by its suffix; - is stdin.", callback=whole)
    ],
    *,
    target: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="JSONL or CSV by its suffix; - is stdout.")
    ] = "-",
    column: ColumnOption = None,
    id_column: IdColumnOption = None,
    conversation_column: ConversationColumnOption = None,
    prompt_template: PromptTemplateOption = None,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    no_header: NoHeaderOption = False,
    retry_failed: RetryFailedOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take: tokens, USD, time. Nothing is asked.")
    ] = False,
    dedupe: DedupeOption = False,
    cache_ttl: CacheTtlOption = None,
    max_cost: MaxCostOption = None,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
) -> None:
    """Answer every question of a file.

    Questions of a column that names conversations are turns of these, in order within each.
    The same command again goes on where it ended: questions with an answer in OUT are not asked anew, and
    a batch that is still at work is gone on with. Ctrl-C detaches from a service that keeps running; from a
    temporary one it cancels the batch. Exit code 1 when an item failed.
    """
    _must_be_apart(source, target)
    choices = questions.choices(
        column, id_column, prompt_template, encoding, delimiter, no_header=no_header,
        conversation_column=conversation_column,
    )  # fmt: skip
    posted = BatchOptions(
        system_prompt=system_prompt,
        model=model,
        max_tokens=max_tokens,
        dedupe=dedupe or None,
        max_cost=questions.usd(max_cost),
        cache_ttl=cache_ttl,
    )
    questions.must_be_right(posted)
    _run(source, target, choices, posted, retry_failed=retry_failed, dry_run=dry_run)


def _run(
    source: str,
    target: str,
    choices: Choices,
    posted: BatchOptions,
    *,
    retry_failed: bool,
    dry_run: bool,
) -> None:
    with questions.opened(source, choices) as found, answers.output(target, found, _decisive(posted)) as out:
        questions.must_have_no_cap(found, posted)
        if dry_run:
            with earlier(target) as run:
                _begin(out, target, retry_failed)
                forecast(out, posted, run, retry_failed=retry_failed)
            return
        with Run(target) as begun:
            _begin(out, target, retry_failed)
            if out.is_whole and not begun.has_posted:
                finish(out, begun)
            else:
                with attached(start=True) as (client, stays):
                    answer_all(client, out, begun, posted, stays=stays, retry_failed=retry_failed)
    if failed := out.kept_failed + out.written_failed:
        raise CommandError(f"{failed} of {found.count} failed; {_what_next(out.not_asked, failed)}")


def _what_next(not_asked: int, failed: int) -> str:
    """`not_asked` of those that failed were never asked to the end, as where a budget has no room."""
    if not not_asked:
        return "error_class says why, --retry-failed asks again"
    what = "none was" if not_asked == failed else f"{not_asked} were not"
    return f"{what} asked to the end; the same command asks again (after --max-cost, with a higher one)"


def _begin(out: Output, target: str, retry_failed: bool) -> None:
    out.begin(retry_failed=retry_failed)
    if out.kept:
        note(f"{out.kept} of {out.count} are answered in {target} already")


def _decisive(posted: BatchOptions) -> Options:
    """The options that an answer depends on."""
    return Options(
        system_prompt=posted["system_prompt"], model=posted["model"], max_tokens=posted["max_tokens"]
    )


def _must_be_apart(source: str, target: str) -> None:
    for name, option in ((source, "IN"), (target, "--output")):
        if not name:
            raise UsageError(f"{option}: must not be empty; - is {'stdin' if option == 'IN' else 'stdout'}")
    if target == "-":
        return
    path = Path(target)
    if not real(path).parent.is_dir():
        raise UsageError(f"{target}: there is no such folder")
    if path.exists() and not path.is_file():
        raise UsageError(f"{target}: is no file; rows for something else go to stdout")
    answers.must_have_format(target)
    if source == "-":
        return
    if real(Path(source)) == real(path):
        raise UsageError(f"{target}: input and output are the same file")
    if real(Path(source)) in (real(errors_file(path)), real(unused_file(path))):
        raise UsageError(f"{source}: is written beside {target}; name another file with -o")
