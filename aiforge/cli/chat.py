"""Commands about single turns: `chat`, `submit`, `tail`, `history`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from aiforge.cli.connect import connected
from aiforge.cli.errors import CommandError
from aiforge.cli.output import as_json, data, note
from aiforge.cli.signals import Ended, undisturbed
from aiforge.cli.transcript import Transcript, summary
from aiforge.client import Client, ClientError, Message, Turn
from aiforge.client.options import Options

MessageArgument = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="What to say; - reads it from stdin.")
]
ConversationOption = Annotated[
    str | None, typer.Option("--conversation", "-c", help="Go on with this conversation, or begin it.")
]
SystemPromptOption = Annotated[str | None, typer.Option(help="Instructions for this turn.")]
ModelOption = Annotated[str | None, typer.Option(help="The model; the service's own when left out.")]
MaxTokensOption = Annotated[int | None, typer.Option(min=1, help="The longest answer, in tokens.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def chat(
    message: MessageArgument,
    *,
    conversation: ConversationOption = None,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    json: JsonOption = False,
) -> None:
    """Say something and watch the answer come.

    With nothing running here, a worker and an API are started for the time of the command.
    """
    options = Options(system_prompt=system_prompt, model=model, max_tokens=max_tokens)
    with connected(start=True) as client:
        turn = client.submit(_text(message), conversation_id=conversation, **options)
        turn, _ = answer(client, turn, quiet=json)
    if json:
        data(as_json(turn))
    _must_have_succeeded(turn)


def answer(client: Client, turn: Turn, *, quiet: bool = False) -> tuple[Turn, Transcript]:
    """Stream a turn to its end; the finished turn. Ended cancels it and passes on."""
    transcript = Transcript()
    try:
        if quiet:
            while not turn.finished:
                turn = client.wait(turn.turn_id, 60)
        else:
            transcript.follow(client.stream(turn.turn_id))
            turn = client.turn(turn.turn_id)
    except Ended:
        with undisturbed(), suppress(ClientError):
            client.cancel(turn.turn_id)
        note("cancelled", style="yellow")
        raise
    if turn.state == "completed" and not quiet:
        note(summary(turn))
    return turn, transcript


def submit(
    message: MessageArgument,
    *,
    conversation: ConversationOption = None,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the end of the turn.")] = 0,
    json: JsonOption = False,
) -> None:
    """Leave a turn to the running service and print its id."""
    options = Options(system_prompt=system_prompt, model=model, max_tokens=max_tokens)
    with connected(start=False) as client:
        turn = client.submit(_text(message), conversation_id=conversation, **options)
        if wait:
            turn = client.wait(turn.turn_id, wait)
    data(as_json(turn) if json else turn.turn_id)
    if turn.finished:
        _must_have_succeeded(turn)


def tail(
    turn_id: Annotated[str, typer.Argument(metavar="TURN")],
    *,
    after: Annotated[int, typer.Option(min=0, help="Begin behind the event with this number.")] = 0,
    json: JsonOption = False,
) -> None:
    """Show a turn's answer as it comes, from the beginning; with --json all its events."""
    with connected(start=False) as client:
        stream = client.stream(turn_id, after=after)
        if json:
            for number, event in stream:
                data(f'{{"id":{number},"event":{as_json(event)}}}')
        else:
            Transcript().follow(stream)
        turn = client.turn(turn_id)
    _must_have_succeeded(turn)


def history(
    conversation: Annotated[str, typer.Argument(metavar="CONVERSATION")],
    *,
    json: JsonOption = False,
) -> None:
    """Print the messages of a conversation; with --json one object a line."""
    with connected(start=False) as client:
        for message in client.history(conversation):
            data(as_json(message) if json else _readable(message))


def _readable(message: Message) -> str:
    content = message.content if isinstance(message.content, str) else as_json(message.content)
    if message.tool_calls:
        content = as_json(message.tool_calls)
    return f"{message.role}: {content}"


def _text(message: str) -> str:
    text = sys.stdin.read() if message == "-" else message
    if not text.strip():
        raise CommandError("the message is empty")
    return text


def _must_have_succeeded(turn: Turn) -> None:
    if turn.state == "completed" or not turn.finished:
        return
    why = f": {turn.error.message} (code {turn.error.code})" if turn.error else ""
    raise CommandError(f"the turn is {turn.state}{why}")
