"""Commands about single turns: `chat`, `submit`, `tail`, `history`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from aiforge.cli.arguments import (
    ConversationArgument,
    ConversationOption,
    JsonOption,
    MaxTokensOption,
    MessageArgument,
    ModelOption,
    OnBusyOption,
    SystemPromptOption,
    TurnArgument,
    moment,
    read_text,
    whole,
)
from aiforge.cli.connect import connected
from aiforge.cli.errors import CommandError
from aiforge.cli.human import ask, must_not_ask
from aiforge.cli.output import as_json, data, note
from aiforge.cli.signals import Ended, undisturbed
from aiforge.cli.transcript import Transcript, summary
from aiforge.client import Client, ClientError, ConflictError, Message, Turn
from aiforge.client.options import TurnOptions


def chat(
    message: MessageArgument,
    *,
    conversation: ConversationOption = None,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    on_busy: OnBusyOption = None,
    json: JsonOption = False,
) -> None:
    """Say something and watch the answer come.

    With nothing running here, a worker and an API are started for the time of the command. A question to
    a human is asked here when stdin is a terminal; else the command ends with exit code 4.
    """
    text = read_text(message)
    options = TurnOptions(
        system_prompt=system_prompt,
        model=model,
        max_tokens=max_tokens,
        on_busy=on_busy.value if on_busy else None,
    )
    with connected(start=True) as client:
        turn = client.submit(text, conversation_id=conversation, **options)
        turn, _ = answer(client, turn, quiet=json)
    if json:
        data(as_json(turn))
    _must_have_succeeded(turn)


def answer(client: Client, turn: Turn, *, quiet: bool = False) -> tuple[Turn, Transcript]:
    """Stream a turn to its end, or to a question that nobody here answers. Ended cancels it and passes on."""
    transcript = Transcript(quiet=quiet)
    try:
        while True:
            transcript.follow(client.stream(turn.turn_id, after=transcript.last))
            turn = client.turn(turn.turn_id)
            if turn.finished or not _answered(client, turn):
                break
    except Ended:
        with undisturbed(), suppress(ClientError):
            client.cancel(turn.turn_id)
        note("cancelled", style="yellow")
        raise
    if turn.state == "completed" and not quiet:
        note(summary(turn))
    return turn, transcript


def _answered(client: Client, turn: Turn) -> bool:
    """Whether the turn goes on: somebody here, or elsewhere in the meantime, has answered."""
    if turn.question is None:
        return True
    said = ask(turn.question)
    if said is None:
        return False
    try:
        client.resume(turn.turn_id, turn.question.question_id, said)
    except ConflictError:
        note("somebody else was faster, or time is over", style="yellow")
    return True


def submit(
    message: MessageArgument,
    *,
    conversation: ConversationOption = None,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    on_busy: OnBusyOption = None,
    run_after: Annotated[
        str | None, typer.Option(metavar="WHEN", help="90s, 10m, 2h, 1d from now, or 2030-01-31T08:00.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Submitted again with the same key within a day, the message is taken once.",
            callback=whole,
        ),
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the end of the turn.")] = 0,
    json: JsonOption = False,
) -> None:
    """Leave a turn to the running service and print its id."""
    text = read_text(message)
    options = TurnOptions(
        system_prompt=system_prompt,
        model=model,
        max_tokens=max_tokens,
        on_busy=on_busy.value if on_busy else None,
        run_after=moment(run_after),
    )
    with connected(start=False) as client:
        turn = client.submit(text, conversation_id=conversation, idempotency_key=key, **options)
        if wait:
            turn = client.wait(turn.turn_id, wait)
    data(as_json(turn) if json else turn.turn_id)
    _must_have_succeeded(turn)


def tail(
    turn_id: TurnArgument,
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
    conversation: ConversationArgument,
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


def _must_have_succeeded(turn: Turn) -> None:
    must_not_ask(turn)
    if turn.finished and turn.state != "completed":
        raise CommandError(f"the turn is {outcome(turn)}")


def outcome(turn: Turn) -> str:
    """How a turn ended, and why where it failed."""
    return f"{turn.state}: {turn.error.message} (code {turn.error.code})" if turn.error else turn.state
