"""`aiforge conversations …`: list them, erase one, take one elsewhere."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from aiforge.cli.arguments import ConversationArgument, JsonOption, whole
from aiforge.cli.connect import connected
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.history import NoteOption, notes
from aiforge.cli.output import as_json, data, listed, note, when
from aiforge.client import Conversation, Export


def ls(
    *,
    limit: Annotated[int | None, typer.Option(min=1, help="How many; all when left out.")] = None,
    busy: Annotated[
        bool | None, typer.Option("--busy/--idle", help="Only those with a turn under way, or without.")
    ] = None,
    metadata: NoteOption = None,
    json: JsonOption = False,
) -> None:
    """List conversations by their latest turn, the newest first; with --json one object a line."""
    with connected(start=False) as client:
        found = islice(client.conversations(busy=busy, metadata=notes(metadata)), limit)
        listed((as_json(each) if json else _line(each) for each in found), "no conversations")


def rm(conversation: ConversationArgument, *, json: JsonOption = False) -> None:
    """Erase a conversation with all its turns, for good; a turn that runs is stopped."""
    with connected(start=False) as client:
        receipt = client.erase(conversation)
    counts = f"{receipt.messages} messages, {receipt.turns} turns erased, {receipt.stopped} stopped"
    if receipt.items:
        counts += f", {receipt.items} items of batches"
    if receipt.files:
        counts += f"; lines of it are left in {', '.join(receipt.files)}"
    data(as_json(receipt) if json else f"{conversation}  {counts}")


def export(
    conversation: ConversationArgument,
    *,
    target: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="A file; - is stdout.")] = "-",
) -> None:
    """Write a conversation as one JSON document: settings, and messages in order."""
    if target != "-" and not Path(target).resolve().parent.is_dir():
        raise UsageError(f"{target}: there is no such folder")
    with connected(start=False) as client:
        document = client.export(conversation)
    if target == "-":
        data(as_json(document))
    else:
        Path(target).write_text(as_json(document) + "\n", encoding="utf-8")
    note(f"{len(document.messages)} messages of {conversation}")


def import_(
    source: Annotated[str, typer.Argument(metavar="FILE", help="What export has written; - is stdin.")],
    *,
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", "-c", help="Another id than the document's.", callback=whole),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make an exported conversation anew; prints its id. Refused when there is one under that id."""
    document = _read(source)
    with connected(start=False) as client:
        made = client.import_conversation(document, conversation_id=conversation)
    data(as_json(made) if json else made.conversation_id)
    note(f"{made.messages} messages")


def _read(source: str) -> Export:
    name = "stdin" if source == "-" else source
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return msgspec.json.decode(raw, type=Export)
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandError(f"{name}: is no exported conversation: {error}") from None


def _line(found: Conversation) -> str:
    return f"{found.conversation_id}  {when(found.last_turn_at)}  {found.messages} messages"
