"""A RabbitMQ of one's own, where rabbitmq-server is installed: ports, data and name server of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.servers import free_port
from tests.support.waiting import wait_until

START_SECONDS: Final = 90.0


def program(name: str) -> str | None:
    """The path of one of RabbitMQ's programs; Debian's on the PATH is a script that changes the user."""
    return shutil.which(name, path=f"/usr/lib/rabbitmq/bin:{os.environ.get('PATH', '')}")


class RabbitMQ:
    """with RabbitMQ() as broker: … broker.url"""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="aiforge-rabbitmq-"))
        self._stopping = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            names = free_port()
            environment = self._environment(names)
            for command in (["epmd", "-port", str(names), "-address", "127.0.0.1"], ["rabbitmq-server"]):
                self._run(stack, command, environment)
            try:
                wait_until(self._answers, START_SECONDS)
            except AssertionError as error:
                raise AssertionError((self.folder / "rabbitmq-server.output").read_text()[-1_000:]) from error
            self._stopping = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.close()

    def _environment(self, names: int) -> dict[str, str]:
        settings = self.folder / "rabbitmq.conf"
        settings.write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\nlog.console = true\nlog.file = false\n"
        )
        plugins = self.folder / "enabled_plugins"
        plugins.write_text("[].\n")
        return {
            **os.environ,
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": f"aiforge-{secrets.token_hex(4)}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
        }

    def _run(self, stack: contextlib.ExitStack, command: list[str], environment: dict[str, str]) -> None:
        found = program(command[0])
        assert found is not None, f"{command[0]} is not installed"
        with (self.folder / f"{command[0]}.output").open("wb") as output:
            process = subprocess.Popen(
                [found, *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        stack.callback(process.wait)
        stack.callback(_end, process.pid)

    def _answers(self) -> bool:
        """Whether it speaks AMQP: it opens the port before it does."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(probe.recv(1))
        except OSError:
            return False


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 9)
