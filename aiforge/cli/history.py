"""`aiforge conversations …` about past and settings: list versions, go back, branch off, compare, set."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
import typer

from aiforge.cli.arguments import ConversationArgument, JsonOption, MaxTokensOption, OnBusyOption, whole
from aiforge.cli.connect import connected
from aiforge.cli.errors import UsageError
from aiforge.cli.output import as_json, data, note, when
from aiforge.client import Conversation, Message, Version
from aiforge.client.options import ConversationChanges

NoteOption = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="May be given several times."),
]
VersionOption = Annotated[int | None, typer.Option(min=0, help="A version; the latest when left out.")]
VersionArgument = Annotated[int, typer.Argument(metavar="VERSION", min=0, help="0 is the empty one.")]
_NOTE: Final = "metadata."


class Memory(StrEnum):
    """What a turn is shown of those before it."""

    BUFFER = "buffer"
    SUMMARY = "summary"
    NONE = "none"


def versions(conversation: ConversationArgument, *, json: JsonOption = False) -> None:
    """List the versions that can be checked out, oldest first; with --json one object a line."""
    with connected(start=False) as client:
        for found in client.versions(conversation):
            data(as_json(found) if json else _line(found))


def checkout(
    conversation: ConversationArgument,
    version: VersionArgument,
    *,
    if_version: Annotated[int | None, typer.Option(min=0, help="Only if this is the latest version.")] = None,
    json: JsonOption = False,
) -> None:
    """Make a conversation again what it was at a version; what came after can be checked out again."""
    with connected(start=False) as client:
        moved = client.checkout(conversation, version, if_version=if_version)
    _tell(moved, json=json)


def branch(
    conversation: ConversationArgument,
    *,
    version: VersionOption = None,
    new_id: Annotated[
        str | None,
        typer.Option("--as", metavar="ID", help="The new one's id; issued when left out.", callback=whole),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Begin a new conversation where this one is, or was at a version; prints its id."""
    with connected(start=False) as client:
        made = client.branch(conversation, version=version, new_id=new_id)
    data(as_json(made) if json else made.conversation_id)
    note(f"{made.messages} messages")


def diff(
    conversation: ConversationArgument,
    old: Annotated[int, typer.Argument(metavar="FROM", min=0, help="The version to compare with.")],
    new: Annotated[int, typer.Argument(metavar="TO", min=0, help="The version that is compared.")],
    *,
    json: JsonOption = False,
) -> None:
    """Show the messages that one version lacks (-) and has (+), compared with another."""
    with connected(start=False) as client:
        found = client.diff(conversation, old, new)
    if json:
        data(as_json(found))
    else:
        for sign, messages in (("-", found.removed), ("+", found.added)):
            for message in messages:
                data(f"{sign} {message.role}: {_text(message)}")


def compact(
    conversation: ConversationArgument,
    *,
    version: VersionOption = None,
    keep: Annotated[
        int | None, typer.Option(min=0, help="How many of the latest versions stay beside it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fold the versions up to one into it; messages stay. What is older can no longer be checked out."""
    if version is not None and keep is not None:
        raise UsageError("give --version or --keep, not both")
    with connected(start=False) as client:
        folded = client.compact(conversation, version=version, keep=keep)
    _tell(folded, json=json)


def set_(
    conversation: ConversationArgument,
    *,
    model: Annotated[str | None, typer.Option(callback=whole)] = None,
    system_prompt: Annotated[str | None, typer.Option(callback=whole)] = None,
    memory: Memory | None = None,
    memory_k: Annotated[int | None, typer.Option(min=1, max=1000, help="Messages a turn is shown.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    max_tokens: MaxTokensOption = None,
    tool: Annotated[list[str] | None, typer.Option(help="A tool's name; may be given several times.")] = None,
    on_busy: OnBusyOption = None,
    ttl: Annotated[int | None, typer.Option(min=1, help="Seconds after its last turn's end.")] = None,
    metadata: NoteOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Back to the default: model, metadata.team, …; several times."),
    ] = None,
    if_revision: Annotated[int | None, typer.Option(min=0, help="Only if the settings are at this.")] = None,
    json: JsonOption = False,
) -> None:
    """Change a conversation's settings; those that are not named stay, and so does a turn that runs."""
    given = {
        "model": model,
        "system_prompt": system_prompt,
        "memory": memory and memory.value,
        "memory_k": memory_k,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "tools": tool or None,
        "on_busy": on_busy and on_busy.value,
        "ttl": ttl,
    }
    changes = _changes({name: value for name, value in given.items() if value is not None}, metadata, unset)
    with connected(start=False) as client:
        changed = client.change_conversation(conversation, if_revision=if_revision, **changes)
    data(as_json(changed) if json else f"{changed.conversation_id}  revision {changed.revision}")


def notes(given: list[str] | None) -> dict[str, str]:
    """`key=value`, several times, as metadata."""
    found: dict[str, str] = {}
    for one in given or ():
        key, sign, value = one.partition("=")
        if not sign or not key:
            raise UsageError(f"--metadata: key=value, not {one!r}")
        found[key] = value
    return found


def _changes(
    given: dict[str, object], metadata: list[str] | None, unset: list[str] | None
) -> ConversationChanges:
    noted: dict[str, str | None] = dict(notes(metadata))
    for name in unset or ():
        if name.startswith(_NOTE):
            noted[name.removeprefix(_NOTE)] = None
        elif name in ConversationChanges.__annotations__:
            given[name] = None
        else:
            known = ", ".join(ConversationChanges.__annotations__)
            raise UsageError(f"--unset: there is no setting {name!r}; there are {known}, and metadata.KEY")
    if noted:
        given["metadata"] = noted
    if not given:
        raise UsageError("name a setting that is to change, such as --model")
    return msgspec.convert(given, ConversationChanges)


def _tell(found: Conversation, *, json: bool) -> None:
    counts = f"version {found.version}, baseline {found.baseline}, {found.messages} messages"
    data(as_json(found) if json else f"{found.conversation_id}  {counts}")


def _line(found: Version) -> str:
    whence = found.turn_id or (f"of {found.to}" if found.to is not None else "")
    made = f"{found.kind} {whence}".rstrip()
    return f"{found.version}  {when(found.at)}  {made}  {found.messages} messages"


def _text(message: Message) -> str:
    """A message in one line."""
    content = message.content
    if isinstance(content, str):
        return content.replace("\n", "\\n")
    return as_json(message.tool_calls if content is None else content)
