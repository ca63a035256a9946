"""Files of questions at the command line: read as `aiforge.questions` reads them, refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from aiforge.cli.arguments import whole
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.output import note
from aiforge.questions import reading
from aiforge.questions.errors import QuestionsError, UnclearError
from aiforge.questions.reading import NO_CHOICES, Choices, Questions

ColumnOption = Annotated[
    str | None, typer.Option("--column", help="The column that holds the question.", callback=whole)
]
IdColumnOption = Annotated[
    str | None, typer.Option("--id-column", help="The column that holds your own id.", callback=whole)
]
PromptTemplateOption = Annotated[
    str | None,
    typer.Option(
        "--prompt-template",
        help='What is sent, with columns by name: "Answer briefly: {question}"; {{ is a brace.',
        callback=whole,
    ),
]
EncodingOption = Annotated[
    str | None,
    typer.Option("--encoding", help="The file's encoding, where its bytes do not show it.", callback=whole),
]
DelimiterOption = Annotated[
    str | None,
    typer.Option("--delimiter", help="What stands between cells: one character, or tab.", callback=whole),
]
RetryFailedOption = Annotated[
    bool, typer.Option("--retry-failed", help="Ask again what failed in an earlier run.")
]
NoHeaderOption = Annotated[bool, typer.Option("--no-header", help="The first row is a question.")]
DedupeOption = Annotated[
    bool, typer.Option("--dedupe", help="Ask once what is asked twice; with temperature 0 it is so anyway.")
]
MaxCostOption = Annotated[
    str | None,
    typer.Option(
        "--max-cost",
        metavar="USD",
        help="Ask nothing any more that would cost more than this in all.",
        callback=whole,
    ),
]
SystemPromptOption = Annotated[
    str | None, typer.Option(help="Instructions for every question.", callback=whole)
]


def choices(
    column: str | None,
    id_column: str | None,
    prompt_template: str | None,
    encoding: str | None,
    delimiter: str | None,
    *,
    no_header: bool,
) -> Choices:
    """What the command line says about a file; raises UsageError."""
    mark = "\t" if delimiter in {"tab", "\\t"} else delimiter
    if mark is not None and (len(mark) != 1 or mark in '"\r\n\0'):
        raise UsageError("--delimiter: one character such as ; or |, or the word tab")
    return Choices(column, id_column, encoding, mark, header=not no_header, prompt_template=prompt_template)


def usd(amount: str | None) -> str | None:
    """An amount as the service takes it; raises UsageError."""
    if amount is None:
        return None
    try:
        found = Decimal(amount)
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite() or found <= 0:
        raise UsageError("--max-cost: an amount in USD above 0, such as 2.50")
    return f"{found:f}"


@contextmanager
def opened(name: str, choices: Choices = NO_CHOICES) -> Iterator[Questions]:
    """The checked questions of a file, or of stdin for `-`; says on stderr how it is read.

    Raises UsageError and CommandError, also for what is found about the file later in the block.
    """
    try:
        with reading.opened(name, choices) as found:
            note(found.note)
            yield found
    except UnclearError as error:
        raise UsageError(str(error), error.details) from None
    except QuestionsError as error:
        raise CommandError(str(error), error.details) from None
