"""`aiforge doctor`: is everything as it must be, and what to do where it is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import httpx
import msgspec
import typer
from rich.text import Text

from aiforge.cli import config, packages, redis_probe, runfile, settings
from aiforge.cli.connect import running_url
from aiforge.cli.embedded import is_locked
from aiforge.cli.errors import CommandError
from aiforge.cli.output import as_json, data, screen
from aiforge.cli.ports import is_free
from aiforge.cli.redis_probe import Answers, ProbeError
from aiforge.cli.settings import Configuration
from aiforge.cli.show_settings import Shown
from aiforge.client import Client, ClientError

Verdict = Literal["ok", "wrong", "idle"]
MARKS: Final = {"ok": ("✓", "green"), "wrong": ("✗", "bold red"), "idle": ("–", "dim")}
OLDEST_PYTHON: Final = (3, 11)
OLDEST_REDIS: Final = (7, 0)
HTTP_SECONDS: Final = 3.0


class Finding(msgspec.Struct, frozen=True):
    """One line of the report; `advice` says what to do. `idle`: not running, which is no fault."""

    check: str
    verdict: Verdict
    says: str
    advice: str = ""


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")] = False,
) -> None:
    """Check this machine, the settings and what runs here. Exit code 1 when something is wrong."""
    findings = list(examine(settings.load()))
    for finding in findings:
        if json:
            data(as_json(finding))
        else:
            _print(finding)
    wrong = sum(finding.verdict == "wrong" for finding in findings)
    if wrong:
        raise CommandError("1 thing is wrong" if wrong == 1 else f"{wrong} things are wrong")


def _print(finding: Finding) -> None:
    mark, style = MARKS[finding.verdict]
    if not sys.stdout.isatty():
        data(f"{mark} {finding.check}: {finding.says}" + (f" → {finding.advice}" if finding.advice else ""))
        return
    line = Text.assemble((f"{mark} ", style), f"{finding.check:10}", finding.says)
    if finding.advice:
        line.append(f" → {finding.advice}", style="bold" if finding.verdict == "wrong" else "dim")
    screen().print(line)


def examine(configuration: Configuration) -> Iterator[Finding]:
    """All findings, the machine's first."""
    yield _python()
    yield _packages(configuration)
    shown: list[Shown] = []
    try:
        shown = config.read_all()
    except CommandError as error:
        text = " ".join((str(error), *error.details))
        yield Finding("settings", "wrong", text, "see `aiforge config`")
    else:
        yield _settings(shown)
    yield _data_dir(configuration)
    yield _provider(configuration)
    yield _redis(configuration)
    yield _ports(configuration, shown)
    yield _api(configuration)
    yield _worker(configuration)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("Python", "wrong", version, "install Python 3.11 or newer")
    return Finding("Python", "ok", version)


def _packages(configuration: Configuration) -> Finding:
    missing = packages.missing()
    if missing and configuration.service.api_url:
        return Finding("packages", "idle", "the client's only", f"{packages.INSTALL} to run the service here")
    if missing:
        return Finding("packages", "wrong", f"{packages.shown(missing)} missing", packages.INSTALL)
    return Finding("packages", "ok", "the service's packages are installed")


def _settings(shown: Sequence[Shown]) -> Finding:
    errors = [setting.error for setting in shown if setting.error is not None]
    if errors:
        return Finding("settings", "wrong", errors[0], "correct it; `aiforge config` shows where it is set")
    return Finding("settings", "ok", "all can be read")


def _data_dir(configuration: Configuration) -> Finding:
    folder = configuration.data_dir
    exists = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not exists.is_dir() or not os.access(exists, os.W_OK | os.X_OK):
        return Finding(
            "data", "wrong", f"{folder} is not writable", "set AIFORGE_DATA_DIR to a folder that is"
        )
    return Finding("data", "ok", str(folder))


def _provider(configuration: Configuration) -> Finding:
    library = configuration.library
    running = runfile.find(configuration.data_dir)
    if running is not None and running.provider != library.PROVIDER and configuration.lacks_key:
        return Finding(
            "provider", "idle", f"{running.provider}, because there is no key", "set OPENAI_API_KEY"
        )
    if running is not None and (running.provider != library.PROVIDER or configuration.lacks_key):
        return Finding("provider", "ok", f"{running.provider}, set where `aiforge up` was started")
    if configuration.service.api_url:
        return Finding("provider", "ok", "the one of the service at AIFORGE_API_URL")
    if configuration.lacks_key:
        return _no_key(configuration)
    what = library.PROVIDER if library.MODEL is None else f"{library.PROVIDER}, model {library.MODEL}"
    if library.PROVIDER == "openai":
        what += f", {httpx.URL(library.OPENAI_BASE_URL).host}, key set"
    return Finding("provider", "ok", what)


def _no_key(configuration: Configuration) -> Finding:
    if endpoint := configuration.endpoint:
        advice = "set OPENAI_API_KEY (any text for a server that asks for none), or AIFORGE_PROVIDER=offline"
        return Finding("provider", "wrong", f"openai at {endpoint} without a key", advice)
    advice = "set OPENAI_API_KEY, or AIFORGE_PROVIDER=offline to go without"
    return Finding("provider", "wrong", "openai without a key", advice)


def _redis(configuration: Configuration) -> Finding:
    url, where = configuration.service.redis_url, "AIFORGE_REDIS_URL"
    if url is None:
        url, where = _embedded_url(configuration.data_dir), "embedded"
    if url is None:
        return Finding("Redis", "idle", "embedded, not running", "`aiforge up` starts it")
    try:
        found = [(at, redis_probe.ask(at)) for at in redis_probe.servers(url)]
    except ProbeError as error:
        return Finding("Redis", "wrong", f"{where}: {error}", "start it, or correct AIFORGE_REDIS_URL")
    if len(found) == 1:
        return _fit(where, found[0][1])
    findings = [_fit(f"{where}, {urlsplit(at).netloc.rpartition('@')[2]}", server) for at, server in found]
    wrong = [finding for finding in findings if finding.verdict == "wrong"]
    return wrong[0] if wrong else _fit(f"{where}, cluster of {len(found)} primaries", found[0][1])


def _fit(where: str, server: Answers) -> Finding:
    what = f"{where}, {server.name} {server.version}"
    if tuple(map(int, server.version.split(".")[:2])) < OLDEST_REDIS:
        return Finding("Redis", "wrong", what, "use Redis 7.0, Valkey 7.2 or newer")
    if server.policy != "noeviction":
        return Finding(
            "Redis", "wrong", f"{what} may throw data away", "CONFIG SET maxmemory-policy noeviction"
        )
    if not server.append_only:
        return Finding("Redis", "wrong", f"{what} forgets when it dies", "CONFIG SET appendonly yes")
    return Finding("Redis", "ok", f"{what}, noeviction, append-only file")


def _embedded_url(data_dir: Path) -> str | None:
    if not is_locked(data_dir / "embedded.lock"):
        return None
    try:
        url = msgspec.json.decode((data_dir / "valkey.json").read_bytes())["url"]
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return None
    return str(url)


def _ports(configuration: Configuration, shown: Sequence[Shown]) -> Finding:
    if running_url(configuration) is not None:
        return Finding("ports", "ok", "in use by what runs here")
    wanted = {
        setting.name: int(setting.value)
        for setting in shown
        if setting.name in {"AIFORGE_API_PORT", "AIFORGE_METRICS_PORT"} and setting.value
    }
    if not wanted:
        return Finding("ports", "idle", "none is needed here")
    taken = [f"{name} {port}" for name, port in wanted.items() if port and not is_free(port)]
    if taken:
        says = f"taken: {', '.join(taken)}"
        return Finding(
            "ports", "idle", says, "a default port moves on by itself; set another, or 0 for any free"
        )
    return Finding("ports", "ok", ", ".join(f"{port or 'any'} free" for port in wanted.values()))


def _api(configuration: Configuration) -> Finding:
    url = running_url(configuration)
    if url is None:
        return Finding("API", "idle", "not running", "`aiforge up` starts it; AIFORGE_API_URL names another")
    try:
        with Client(url, token=configuration.service.token, retries=0) as client:
            client.ready()
    except ClientError as error:
        return Finding("API", "wrong", str(error), "see DATA_DIR/logs/api.log, or correct AIFORGE_API_URL")
    return Finding("API", "ok", f"{url} is ready")


def _worker(configuration: Configuration) -> Finding:
    running = runfile.find(configuration.data_dir)
    if running is None:
        return Finding("worker", "idle", "none known here", "`aiforge up` starts one")
    url = f"http://127.0.0.1:{running.metrics_port}/readyz"
    try:
        reply = httpx.get(url, timeout=HTTP_SECONDS, trust_env=False)
    except httpx.HTTPError as error:
        return Finding("worker", "wrong", f"{url}: {error}", "see DATA_DIR/logs/worker.log")
    if not reply.is_success:
        return Finding(
            "worker", "wrong", f"is not ready ({reply.status_code})", "see DATA_DIR/logs/worker.log"
        )
    return Finding("worker", "ok", "is ready")
