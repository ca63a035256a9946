"""What the command line has to know of the service's settings, and the defaults it fills in."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from aiforge.cli.output import note
from aiforge.core.setting_types import Limit
from aiforge.core.settings import YAML_FILE, AIForgeSettings, Settings, read_yaml

SECTIONS: Final = ("worker", "api")


class ServiceSettings(Settings):
    """The part of the service's settings that decides what is started, and where a client finds it."""

    yaml_section: ClassVar[str | None] = "worker"

    data_dir: Path = Path(".aiforge")
    """Where the embedded server keeps its data."""
    redis_url: str | None = None
    """Where turns, conversations and batches are; unset means the embedded server."""
    broker_url: str | None = None
    """Where Celery's messages are; unset means the same server."""
    durability: Literal["everysec", "always"] = "everysec"
    """When the embedded server writes to disk: once a second, or before each reply."""
    api_url: str | None = None
    """Where the API is that commands talk to; unset is the one that runs here."""
    api_token: SecretStr | None = None
    """What is sent to the API as `Authorization: Bearer`."""
    limits: dict[str, Limit] = Field(default_factory=dict)
    """What all workers together may ask of a model, for a dry run."""

    @classmethod
    def _yaml(cls) -> dict[str, Any]:
        """These settings wherever they stand; the services check their own sections themselves."""
        found: dict[str, Any] = {}
        document = read_yaml(Path(YAML_FILE))
        for section in (document, *(document.get(name) or {} for name in SECTIONS)):
            for key, value in section.items():
                if key.lower() in cls.model_fields:
                    found[key.lower()] = value
        return found

    @property
    def token(self) -> str | None:
        return self.api_token.get_secret_value() if self.api_token else None


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that was read, once, when a command began."""

    service: ServiceSettings
    library: AIForgeSettings

    @property
    def data_dir(self) -> Path:
        return self.service.data_dir.expanduser().resolve()

    @property
    def lacks_key(self) -> bool:
        """The provider is openai and there is no key for it: worker and API would not start."""
        return self.library.PROVIDER == "openai" and not self.library.OPENAI_API_KEY

    @property
    def endpoint(self) -> str | None:
        """Scheme, host and port of the endpoint that was set in place of OpenAI's own, None when none was."""
        url = self.library.OPENAI_BASE_URL
        if url == AIForgeSettings.model_fields["OPENAI_BASE_URL"].default:
            return None
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def load() -> Configuration:
    """Raises ConfigError; what is only doubtful is said on stderr."""
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        configuration = Configuration(ServiceSettings.load(), AIForgeSettings.load())
    for doubt in dict.fromkeys(str(doubt.message) for doubt in doubts):
        note(f"warning: {doubt}", style="yellow")
    return configuration
