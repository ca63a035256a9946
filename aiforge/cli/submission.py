"""`aiforge batch submit`: a batch that runs on its own, from a file of questions or of OpenAI's requests."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Final

import msgspec
import typer

from aiforge.cli import questions
from aiforge.cli.arguments import JsonOption, MaxTokensOption, ModelOption, whole
from aiforge.cli.connect import connected
from aiforge.cli.errors import UsageError
from aiforge.cli.files import must_be_file
from aiforge.cli.history import NoteOption, notes
from aiforge.cli.output import as_json, data, note
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
    SystemPromptOption,
)
from aiforge.cli.split import must_go_in_order, share, split
from aiforge.client import Batch
from aiforge.client.options import BatchOptions, FileOptions
from aiforge.questions.lines import LONGEST_RECORD
from aiforge.questions.reading import Choices

_WINDOW: Final = "24h"
_MARK: Final = b"\xef\xbb\xbf"


def submit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Questions as for run, or OpenAI's batch lines; - is stdin.", callback=whole
        ),
    ],
    *,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Of OpenAI's batch lines; the first line's url when left out.", callback=whole),
    ] = None,
    completion_window: Annotated[
        str | None, typer.Option(help="How long it may take: 90s, 45m, 24h, 7d.", callback=whole)
    ] = None,
    metadata: NoteOption = None,
    dedupe: DedupeOption = False,
    cache_ttl: CacheTtlOption = None,
    max_cost: MaxCostOption = None,
    column: ColumnOption = None,
    id_column: IdColumnOption = None,
    conversation_column: ConversationColumnOption = None,
    prompt_template: PromptTemplateOption = None,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    no_header: NoHeaderOption = False,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    json: JsonOption = False,
) -> None:
    """Post a batch and print its id; a long file of questions becomes several, one id a line."""
    choices = questions.choices(
        column, id_column, prompt_template, encoding, delimiter, no_header=no_header,
        conversation_column=conversation_column,
    )  # fmt: skip
    posted = BatchOptions(
        system_prompt=system_prompt,
        model=model,
        max_tokens=max_tokens,
        completion_window=completion_window,
        metadata=notes(metadata) or None,
        dedupe=dedupe or None,
        cache_ttl=cache_ttl,
        max_cost=questions.usd(max_cost),
    )
    made = _made(source, endpoint, choices, posted)
    for batch in made:
        data(as_json(batch) if json else batch.id)
    note(f"how far it is: aiforge batch watch {made[0].id}")


def _made(source: str, endpoint: str | None, choices: Choices, posted: BatchOptions) -> list[Batch]:
    questions.must_be_right(posted)
    url = _url(source)
    if url is not None:
        _must_suit_requests(source, choices, posted)
        return [_file_batch(Path(source), endpoint or url, posted)]
    if endpoint is not None:
        raise UsageError(f"--endpoint: {source} has questions; it is for OpenAI's batch lines")
    return _question_batches(source, choices, posted)


def _file_batch(path: Path, endpoint: str, posted: BatchOptions) -> Batch:
    options = FileOptions(
        metadata=posted["metadata"],
        dedupe=posted["dedupe"],
        max_cost=posted["max_cost"],
        cache_ttl=posted["cache_ttl"],
    )
    with connected(start=False) as client:
        file = client.upload(path)
        return client.submit_batch_file(
            file.id,
            endpoint=endpoint,
            completion_window=posted["completion_window"] or _WINDOW,
            idempotency_key=f"submit-{token_hex(16)}",
            **options,
        )


def _question_batches(source: str, choices: Choices, posted: BatchOptions) -> list[Batch]:
    with questions.opened(source, choices) as found, connected(start=False) as client:
        questions.must_have_no_cap(found, posted)
        if found.conversations:
            must_go_in_order(found)
        return [
            client.submit_batch(
                items, idempotency_key=f"submit-{token_hex(16)}", **share(posted, len(items), found.count)
            )
            for items in split(found)
        ]


def _must_suit_requests(source: str, choices: Choices, posted: BatchOptions) -> None:
    for name in ("system_prompt", "model", "max_tokens"):
        if posted[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option}: the lines of {source} are requests, which say that themselves")
    if choices != Choices():
        raise UsageError(f"{source}: its lines are OpenAI's requests; options of columns are for questions")


def _url(source: str) -> str | None:
    """What the first line asks for, where that is a request in OpenAI's form; None for questions."""
    path = Path(source)
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return None
    must_be_file(path)
    with path.open("rb") as file:
        first = next((line for line in iter(lambda: file.readline(LONGEST_RECORD), b"") if line.strip()), b"")
    try:
        line: Any = msgspec.json.decode(first.removeprefix(_MARK))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if isinstance(line, dict) and isinstance(line.get("body"), dict) and isinstance(line.get("url"), str):
        return str(line["url"])
    return None
