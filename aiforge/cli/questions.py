"""Files of questions at the command line: read as `aiforge.questions` reads them, refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

import typer

from aiforge.cli import settings
from aiforge.cli.arguments import whole
from aiforge.cli.connect import running_url
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.output import note
from aiforge.client.options import BatchOptions
from aiforge.core.parameters import ParameterError, check_parameters
from aiforge.questions import reading
from aiforge.questions.errors import QuestionsError, UnclearError
from aiforge.questions.reading import NO_CHOICES, Choices, Questions
from aiforge.tools import registry

FINEST_USD: Final = Decimal("1e-12")
MOST_USD: Final = 9 * 10**6
"""As the service counts money."""

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
CacheTtlOption = Annotated[
    int | None,
    typer.Option(
        "--cache-ttl",
        metavar="SECONDS",
        min=1,
        help="Take what an earlier batch was answered no longer ago, and keep the answers for so long.",
    ),
]
ConversationColumnOption = Annotated[
    str | None,
    typer.Option(
        "--conversation-column",
        help="The column that names the conversation that a question goes on with; '' where there is none.",
        callback=whole,
    ),
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
    conversation_column: str | None = None,
) -> Choices:
    """What the command line says about a file; raises UsageError."""
    mark = "\t" if delimiter in {"tab", "\\t"} else delimiter
    if mark is not None and (len(mark) != 1 or mark in '"\r\n\0'):
        raise UsageError("--delimiter: one character such as ; or |, or the word tab")
    return Choices(
        column,
        id_column,
        encoding,
        mark,
        header=not no_header,
        prompt_template=prompt_template,
        conversation_column=conversation_column,
        tools=_tools(),
    )


def _tools() -> frozenset[str] | None:
    """The tools that a service has which is started here, None where one runs already."""
    configuration = settings.load()
    return None if running_url(configuration) else registry.names(configuration.library)


def must_be_right(options: BatchOptions) -> None:
    """Raises UsageError for an option that no call can have."""
    try:
        check_parameters(model=options.get("model"), max_tokens=options.get("max_tokens"))
    except ParameterError as error:
        raise UsageError(f"--{error.name.replace('_', '-')}: {error}") from None


def must_have_no_cap(found: Questions, options: BatchOptions) -> None:
    """Raises UsageError: turns of conversations are held by budgets, not by what a batch may cost."""
    if found.conversations and options.get("max_cost"):
        raise UsageError(
            "--max-cost: turns of conversations are held by the budgets of their tenant and conversation"
        )


def usd(amount: str | None) -> str | None:
    """An amount as the service takes it; raises UsageError."""
    if amount is None:
        return None
    try:
        found = Decimal(amount)
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite() or not 0 < found <= MOST_USD:
        raise UsageError(f"--max-cost: an amount in USD above 0, at most {MOST_USD:,}, such as 2.50")
    if found != found.quantize(FINEST_USD):
        raise UsageError("--max-cost: is finer than 10^-12 USD")
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
