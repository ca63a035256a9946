"""A whole service on this machine: embedded Valkey, one worker, the API."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final, Self

from aiforge.cli.embedded import Embedded
from aiforge.cli.errors import SetupError
from aiforge.cli.folder import make_data_folder
from aiforge.cli.output import note
from aiforge.cli.packages import must_be_installed
from aiforge.cli.processes import Service, stop
from aiforge.cli.settings import Configuration
from aiforge.cli.signals import deferred, undisturbed
from aiforge.core.ready import READY_FD

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 40.0
"""Longer than a worker's own grace."""
WATCH_SECONDS: Final = 1.0


def environment(configuration: Configuration) -> dict[str, str]:
    """What the services inherit: our own environment, and where the data is."""
    inherited = {name: value for name, value in os.environ.items() if name != READY_FD}
    return {**inherited, "AIFORGE_DATA_DIR": str(configuration.data_dir)}


class Stack:
    """Starts everything on entering and stops everything on leaving. Raises CommandError.

    `free_ports` puts API and metrics on any free port; without it the services' own rules hold.
    """

    def __init__(self, configuration: Configuration, *, free_ports: bool) -> None:
        self._configuration = configuration
        self._free_ports = free_ports
        self._embedded: Embedded | None = None
        self._services: list[Service] = []
        self._closing = threading.Event()
        self.redis_url = ""
        self.api_url = ""
        self.metrics_port = 0
        self.provider = configuration.library.PROVIDER

    @property
    def pids(self) -> dict[str, int]:
        found = {service.name: service.pid for service in self._services}
        return found | ({"embedded": self._embedded.supervisor} if self._embedded else {})

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop worker and API, then the server if nobody else uses it."""
        with undisturbed() as hurry:
            self._closing.set()
            for name in stop(self._services, STOP_SECONDS, hurry):
                note(f"{name} did not stop and was killed", style="yellow")
            if self._embedded is not None:
                self._embedded.release()

    def _start(self) -> None:
        must_be_installed()
        environ = environment(self._configuration) | self._choices()
        make_data_folder(self._configuration.data_dir)
        inherit: tuple[int, ...] = ()
        if self._configuration.service.redis_url is None:
            note("starting the embedded server")
            self._embedded = Embedded(self._configuration.data_dir, environ)
            inherit = (self._embedded.lock,)
            environ["AIFORGE_REDIS_URL"] = self._embedded.url
        self.redis_url = self._configuration.service.redis_url or environ["AIFORGE_REDIS_URL"]
        signal.signal(signal.SIGCHLD, self._on_death)
        note("starting a worker and the API")
        for name in ("worker", "api"):
            with deferred():
                self._services.append(self._service(name, environ, inherit))
        worker, api = self._services
        ready = api.wait_ready(READY_SECONDS)
        self.api_url = ready["url"]
        _mention_move("the API", ready, self.api_url)
        ready = worker.wait_ready(READY_SECONDS)
        self.metrics_port = ready["metrics_port"]
        _mention_move("the worker's metrics", ready, self.metrics_url)
        if self._embedded is not None:
            threading.Thread(target=self._watch, args=(self._embedded,), daemon=True).start()

    def _service(self, name: str, environ: Mapping[str, str], inherit: tuple[int, ...]) -> Service:
        logs = self._configuration.data_dir / "logs"
        return Service(name, name, environment=environ, logs=logs, inherit=inherit)

    def _choices(self) -> dict[str, str]:
        """The settings that we make for the services, and say so; raises SetupError where we cannot."""
        chosen: dict[str, str] = {}
        if self._free_ports:
            chosen |= {"AIFORGE_API_HOST": "127.0.0.1", "AIFORGE_API_PORT": "0", "AIFORGE_METRICS_PORT": "0"}
        if self._configuration.lacks_key:
            if endpoint := self._configuration.endpoint:
                raise SetupError(
                    f"no OPENAI_API_KEY found, and OPENAI_BASE_URL is {endpoint}: set the key "
                    "(any text for a server that asks for none), or AIFORGE_PROVIDER=offline"
                )
            note(
                "no OPENAI_API_KEY found: provider set to offline, a built-in model that only pretends",
                "yellow",
            )
            self.provider = chosen["AIFORGE_PROVIDER"] = "offline"
        return chosen

    def _on_death(self, number: int, frame: FrameType | None) -> None:
        """If one of those we rest on ended and we did not ask for it, the command cannot go on."""
        if self._closing.is_set():
            return
        if self._embedded is not None and self._embedded.gone:
            raise self._embedded.death()
        for service in self._services:
            if service.process.poll() is not None:
                raise service.death()

    def _watch(self, embedded: Embedded) -> None:
        """No signal tells of the end of a server that another command started: look, and raise it."""
        while not self._closing.wait(WATCH_SECONDS):
            if embedded.gone:
                os.kill(os.getpid(), signal.SIGCHLD)
                return


def _mention_move(what: str, ready: Mapping[str, Any], url: str) -> None:
    if port := ready["taken"]:
        note(f"port {port} is taken: {what} moved to {url}", "yellow")
