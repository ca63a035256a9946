"""`aiforge batch run`: questions from a file, answers into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aiforge.cli import answers, questions
from aiforge.cli.arguments import MaxTokensOption, ModelOption, whole
from aiforge.cli.connect import attached
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.forecast import forecast
from aiforge.cli.job import answer_all, finish
from aiforge.cli.output import note
from aiforge.cli.questions import (
    ColumnOption,
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
from aiforge.cli.runs import Run
from aiforge.client.options import BatchOptions, Options
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
    prompt_template: PromptTemplateOption = None,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    no_header: NoHeaderOption = False,
    retry_failed: RetryFailedOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take: tokens, USD, time. Nothing is asked.")
    ] = False,
    dedupe: DedupeOption = False,
    max_cost: MaxCostOption = None,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
) -> None:
    """Answer every question of a file.

    The same command again goes on where it ended: questions with an answer in OUT are not asked anew, and
    a batch that is still at work is gone on with. Ctrl-C detaches from a service that keeps running; from a
    temporary one it cancels the batch. Exit code 1 when an item failed.
    """
    _must_be_apart(source, target)
    choices = questions.choices(column, id_column, prompt_template, encoding, delimiter, no_header=no_header)
    posted = BatchOptions(
        system_prompt=system_prompt,
        model=model,
        max_tokens=max_tokens,
        dedupe=dedupe or None,
        max_cost=questions.usd(max_cost),
    )
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
        broken_off = Run(target)
        out.begin(retry_failed=retry_failed, since=broken_off.since)
        if out.kept:
            note(f"{out.kept} of {found.count} are answered in {target} already")
        if dry_run:
            forecast(out, posted)
            return
        if out.kept < found.count:
            with attached(start=True) as (client, stays):
                answer_all(client, out, broken_off, posted, stays=stays)
        else:
            finish(out, broken_off)
    if failed := out.kept_failed + out.written_failed:
        raise CommandError(
            f"{failed} of {found.count} failed; error_class says why, --retry-failed asks again"
        )


def _decisive(posted: BatchOptions) -> Options:
    """The options that an answer depends on."""
    return Options(
        system_prompt=posted["system_prompt"], model=posted["model"], max_tokens=posted["max_tokens"]
    )


def _must_be_apart(source: str, target: str) -> None:
    if target == "-":
        return
    if not Path(target).resolve().parent.is_dir():
        raise UsageError(f"{target}: there is no such folder")
    if source != "-" and Path(source).resolve() == Path(target).resolve():
        raise UsageError(f"{target}: input and output are the same file")
