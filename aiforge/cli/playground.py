"""`aiforge playground`: the chat page in a browser, without a service."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from aiforge.cli import settings
from aiforge.cli.errors import SetupError
from aiforge.cli.output import note
from aiforge.cli.ports import HOST, checked, is_free

PORT: Final = 8501
_OPTIONS: Final = (
    f"--server.address={HOST}",
    "--server.headless=true",
    "--server.fileWatcherType=none",
    "--browser.gatherUsageStats=false",
    "--client.toolbarMode=minimal",
)


def playground(
    port: Annotated[
        int | None, typer.Option(help=f"Where the page is, on {HOST}; {PORT} or the next that is free.")
    ] = None,
) -> None:
    """Chat with an agent in the browser, until Ctrl-C."""
    if find_spec("streamlit") is None:
        raise SetupError("streamlit is missing: pip install aiforge[playground]")
    configuration = settings.load()
    environment = dict(os.environ)
    if configuration.lacks_key:
        if configuration.endpoint is not None:
            raise SetupError(
                f"there is no key for {configuration.endpoint}: set OPENAI_API_KEY "
                "(any text for a server that asks for none), or AIFORGE_PROVIDER=offline"
            )
        note("no OPENAI_API_KEY found: provider set to offline, a built-in model that only pretends")
        environment["AIFORGE_PROVIDER"] = "offline"
    chosen = _free_port() if port is None else checked(port)
    note(f"playground on http://{HOST}:{chosen}; Ctrl-C stops it")
    page = Path(__file__).with_name("page.py")
    command = [
        sys.executable,
        "-P",
        "-m",
        "streamlit",
        "run",
        str(page),
        f"--server.port={chosen}",
        *_OPTIONS,
    ]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.execve(command[0], command, environment)  # noqa: S606  # our own page


def _free_port() -> int:
    port = next((port for port in range(PORT, PORT + 100) if is_free(port)), None)
    if port is None:
        raise SetupError(f"the ports from {PORT} on are taken: name another with --port")
    return port
