"""What the API can be told, beside what it shares with the worker."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field, SecretStr

from aiforge.core.setting_types import ApiKey, Name
from aiforge.core.settings import YAML_FILE, Seconds, read_yaml
from aiforge.core.types import ConfigError
from worker.contract.logs import Format, Level
from worker.contract.settings import ContractSettings

DEFAULT_PORT: Final = 8000


def _distinct(keys: dict[str, ApiKey]) -> dict[str, ApiKey]:
    owners: dict[SecretStr, str] = {}
    for name, key in keys.items():
        first = owners.setdefault(key.token, name)
        if first != name:
            raise ValueError(f"{first} and {name} have the same token")
    return keys


class ApiSettings(ContractSettings):
    """Settings of the HTTP service.

    In `aiforge.yaml` the section `api:` wins; what worker and API share may also stand in `worker:`
    or at the top level, so that it is written once.
    """

    yaml_section: ClassVar[str | None] = "api"

    api_host: str = "127.0.0.1"
    """The address at which the API listens; one that others can reach needs a token."""
    api_port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535)
    """0 is any free port; a taken default port moves on, a taken explicit one is an error."""
    api_token: SecretStr | None = None
    """What callers send as `Authorization: Bearer`; with neither it nor keys only this machine may call."""
    api_keys: Annotated[dict[Name, ApiKey], AfterValidator(_distinct)] = Field(default={})
    """Further tokens by a name that budgets and logs call them, each of a tenant, such as `{"website":
    {"token": "…", "tenant": "acme"}}`. The token of the setting above may be one of them."""
    api_max_body_bytes: int = Field(default=1024 * 1024, ge=1024)
    """The largest body of every other request."""
    api_max_batch_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """The largest body of `POST /v1/batches` and of an imported conversation."""
    api_max_file_bytes: int = Field(default=2 * 1024**3, ge=1024)
    """The largest file that can be uploaded."""
    api_ping_seconds: Seconds = 15.0
    """The longest silence on an event stream."""
    log_level: Level = "info"
    """The least important lines that are written."""
    log_format: Format = "auto"
    """`auto` is text on a terminal and JSON elsewhere."""

    @property
    def loopback(self) -> bool:
        """Whether the bind address is reachable from this machine only."""
        return is_loopback(self.api_host)

    @classmethod
    def _yaml(cls) -> dict[str, Any]:
        found = super()._yaml()
        document = read_yaml(Path(YAML_FILE))
        own = {key.lower() for key in document.get("api") or {}}
        for key, value in (document.get("worker") or {}).items():
            name = key.lower()
            if name in ContractSettings.model_fields and name not in own:
                found[name] = value
        return found


def load() -> ApiSettings:
    """The settings of this process; raises ConfigError naming what is wrong."""
    settings = ApiSettings.load()
    if settings.api_token is None and not settings.api_keys and not settings.loopback:
        raise ConfigError(
            f"AIFORGE_API_HOST: {settings.api_host} can be reached from other machines; "
            "set AIFORGE_API_TOKEN or AIFORGE_API_KEYS, or use 127.0.0.1"
        )
    return settings


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without port, means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
