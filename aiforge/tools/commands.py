"""run_command: chosen programs, without a shell, in the workspace.

No check makes a program harmless that can start others or reach the network. So only the programs of
the setting `COMMANDS` run; those of its default only read, and only what their words name or what lies
below it, because they have no options but those of `OPTIONS`. Whoever adds another program there trusts
the model with everything that it can do, and wants a container around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Final

from aiforge.core.settings import AIForgeSettings
from aiforge.tools.command_options import OPTIONS
from aiforge.tools.tool import AsyncTool, ShippedTool, parameters
from aiforge.tools.workspace import Workspace

LARGEST_OUTPUT: Final = 64_000
"""Bytes of output that are kept; a program that writes more is ended."""

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_SHELL_ONLY: Final = re.compile(r"[;&|<>`$\n\r\0]")
_ABSOLUTE: Final = re.compile(r"(^|[=:,@'\"(\[{]|^-\w+)[/~]")
_UPWARDS: Final = re.compile(r"(^|[/=:,]|^-\w+)\.\.(/|$)")


def tools(settings: AIForgeSettings) -> tuple[ShippedTool, ...]:
    """The tool for programs in the folder `WORKSPACE`."""
    commands = Commands(Workspace(settings.WORKSPACE), tuple(settings.COMMANDS), settings.TOOL_TIMEOUT)
    return (
        AsyncTool(
            "run_command",
            f"Run one program in the workspace, without a shell. Programs: {', '.join(settings.COMMANDS)}.",
            parameters(["command"], command={"type": "string", "description": "such as: grep -rn name src"}),
            commands.run,
        ),
    )


class Commands:
    """Runs `allowed` programs, each for at most `timeout` seconds."""

    def __init__(self, workspace: Workspace, allowed: tuple[str, ...], timeout: float) -> None:
        self._workspace = workspace
        self._allowed = allowed
        self._timeout = timeout

    async def run(self, command: str) -> str:
        """Exit code and output; raises ValueError on a command that is refused or takes too long."""
        program, arguments = self._checked(command)
        self._workspace.make()
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            cwd=self._workspace.root,
            env={"PATH": _PATH, "HOME": str(self._workspace.root), "LANG": "C.UTF-8"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        ended = False
        try:
            async with asyncio.timeout(self._timeout):
                assert process.stdout is not None
                output = await _read(process.stdout)
                if len(output) <= LARGEST_OUTPUT:
                    await process.wait()
                    ended = True
        except TimeoutError:
            raise ValueError(f"the command did not end within {self._timeout:g} s") from None
        finally:
            if not ended:
                await _end(process)
        text = output[:LARGEST_OUTPUT].decode(errors="replace")
        if len(output) > LARGEST_OUTPUT:
            return f"{text}\n[ended after {LARGEST_OUTPUT} bytes of output]"
        return f"exit code {process.returncode}\n{text}"

    def _checked(self, command: str) -> tuple[str, list[str]]:
        """The program's own path, and its arguments; raises ValueError."""
        if _SHELL_ONLY.search(command):
            raise ValueError("there is no shell: no pipes, redirections, variables or further commands")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"the command cannot be read: {error}") from None
        if not words or words[0] not in self._allowed:
            raise ValueError(f"only these programs run here: {', '.join(self._allowed)}")
        program = shutil.which(words[0], path=_PATH)
        if program is None:
            raise ValueError(f"{words[0]} is not installed")
        options = OPTIONS.get(words[0])
        for word in words[1:]:
            # An argument of an option may look like one, so that "--" ends nothing here.
            if options is not None and word.startswith("-") and word != "-" and not options.allows(word):
                raise ValueError(f"{words[0]} has no option {word!r} here; write options in full")
            if _ABSOLUTE.search(word) or _UPWARDS.search(word) or self._leaves(word):
                raise ValueError(f"{word!r} leads out of the workspace")
        return program, [*(options.always if options is not None else ()), *words[1:]]

    def _leaves(self, word: str) -> bool:
        """Whether an argument names a link, or a path over one, to a place outside."""
        root = Path(os.path.realpath(self._workspace.root))
        candidates = {word, *re.split(r"[=:,]", word)}
        if word.startswith("-"):
            candidates.add(word[2:])
        return not all(
            Path(os.path.realpath(root / candidate)).is_relative_to(root) for candidate in candidates
        )


async def _read(stream: asyncio.StreamReader) -> bytes:
    """All there is, or a little more than is kept."""
    output = b""
    while len(output) <= LARGEST_OUTPUT and (piece := await stream.read(65_536)):
        output += piece
    return output


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the program and all that it started, and collect it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(asyncio.ensure_future(process.wait()))
