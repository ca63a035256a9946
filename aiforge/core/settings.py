"""Settings: read once at the edge, frozen, and wrong in one clear line.

Precedence: keyword > environment (`AIFORGE_…`, then the provider's own `OPENAI_…`) > `.env` >
`aiforge.yaml` > default, whichever name a source uses.
In `aiforge.yaml` a top-level key is a setting without its prefix; `worker:` and `api:` hold the
service's own settings and `chat:` holds the chat module's; names are matched without case.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self, TypeGuard

import yaml
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
)
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    SettingsConfigDict,
)

from aiforge.core.setting_sources import Found, merged, said, stamp_now
from aiforge.core.setting_types import Endpoint, McpServer, OwnModel, check_endpoints, check_routes
from aiforge.core.types import ConfigError

PREFIX: Final = "AIFORGE_"
YAML_FILE: Final = "aiforge.yaml"
SECTIONS: Final = frozenset({"chat", "worker", "api"})

SERVICE_NAMES: Final = frozenset(
    {
        "REDIS_URL",
        "BROKER_URL",
        "DATA_DIR",
        "NAMESPACE",
        "API_HOST",
        "API_PORT",
        "API_TOKEN",
        "API_KEYS",
        "API_URL",
        "READY_FD",
        "ACTION_TIMEOUT_SECONDS",
        "CONVERSATION_TTL_SECONDS",
        "API_PING_SECONDS",
        "API_MAX_BODY_BYTES",
        "API_MAX_FILE_BYTES",
        "API_MAX_BATCH_BYTES",
        "METRICS_PORT",
        "METRICS_HOST",
        "CONCURRENCY",
        "LEASE_SECONDS",
        "GRACE_SECONDS",
        "MAX_ATTEMPTS",
        "POOL",
        "STREAM_KEEP",
        "TURN_TTL_SECONDS",
        "BATCH_TTL_SECONDS",
        "FILE_TTL_SECONDS",
        "FILES_URL",
        "TENANT_WEIGHTS",
        "LIMITS",
        "BATCH_SHARE",
        "BATCH_FLOOR",
        "BUDGETS",
        "BATCH_WINDOW",
        "DURABILITY",
        "LOG_LEVEL",
        "LOG_FORMAT",
    }
)
"""Settings that only the service has; the library skips them wherever it meets them."""


def _positive(value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise ValueError("must be a number of seconds above 0")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank")
    return value


def _not_negative(value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise ValueError("must be a number of seconds, or 0")
    return value


Seconds = Annotated[float, AfterValidator(_positive)]
"""A duration: a plain finite number of seconds above 0."""
SecondsOrZero = Annotated[float, AfterValidator(_not_negative)]
"""A duration of which 0 means something else."""


class Settings(BaseSettings):
    """Base of all settings classes: keywords come first, then what environment and files say."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        populate_by_name=True,
    )
    yaml_section: ClassVar[str | None] = None
    """The section of `aiforge.yaml` that may hold these settings beside the top level."""

    def __init__(self, **keywords: Any) -> None:
        """Read every source; raises ConfigError naming the setting and what is right.

        What was read is kept for as long as environment and files say the same: reading takes 2 ms,
        looking whether they changed a twentieth of that.
        """
        given = self._by_field(keywords)
        for keyword in given:
            if keyword not in type(self).model_fields:
                names = list(type(self).model_fields)
                raise ConfigError(_unknown(f"setting {keyword!r}", keyword, names))
        found = self._found()
        for variable, hint in found.unknown:
            warnings.warn(f"{variable} is not a setting of aiforge{hint}", stacklevel=3)
        try:
            BaseModel.__init__(self, **merged(found.values, given))
        except ValidationError as error:
            raise ConfigError(_first_line(error)) from None

    @classmethod
    def load(cls, **keywords: Any) -> Self:
        """The settings, with these on top."""
        return cls(**keywords)

    @classmethod
    def _found(cls) -> Found:
        """What environment and files say now."""
        stamp = stamp_now(".env", YAML_FILE)
        known = _kept.get(cls)
        if known is not None and known.stamp == stamp:
            return known
        try:
            dotenv = DotEnvSettingsSource(cls)
        except (UnicodeDecodeError, OSError) as error:
            raise ConfigError(f".env cannot be read: {error}") from None
        values: dict[str, Any] = {}
        for source in (cls._yaml(), said(dotenv), said(EnvSettingsSource(cls))):
            values = merged(values, cls._by_field(source))
        unknown = [*cls._unread(os.environ), *cls._unread(dotenv.env_vars, ".env: ")]
        found = _kept[cls] = Found(stamp, values, unknown)
        return found

    @classmethod
    def _by_field(cls, said: Mapping[str, Any]) -> dict[str, Any]:
        """What one source says, under the names of the fields.

        A field can have several names, of which a source may use any; which source counts must not
        depend on that.
        """
        values = dict(said)
        for name, field in cls.model_fields.items():
            if isinstance(field.validation_alias, AliasChoices):
                for choice in reversed(field.validation_alias.choices):
                    if choice in values:
                        values[name] = values.pop(choice)
        return values

    @classmethod
    def _yaml(cls) -> dict[str, Any]:
        document = read_yaml(Path(YAML_FILE))
        known = {name.lower(): name for name in cls.model_fields}
        found: dict[str, Any] = {}
        for key, value in document.items():
            if key.lower() in known:
                found[known[key.lower()]] = value
            elif key.lower() not in SECTIONS and key.upper() not in _every_name():
                raise ConfigError(_unknown(f"{YAML_FILE}: key {key!r}", key, sorted(_every_name())))
        section = document.get(cls.yaml_section) if cls.yaml_section else None
        for key, value in (section or {}).items():
            if key.lower() not in known:
                raise ConfigError(
                    _unknown(f"{YAML_FILE}: {cls.yaml_section}.{key}", key, list(cls.model_fields))
                )
            found[known[key.lower()]] = value
        return found

    @classmethod
    def _unread(cls, variables: Iterable[str], where: str = "") -> list[tuple[str, str]]:
        """Variables with our prefix that nobody reads, each with a hint to the nearest name."""
        names = _every_name() | {name.upper() for name in cls.model_fields}
        found: list[tuple[str, str]] = []
        for variable in map(str.upper, variables):
            if variable.startswith(PREFIX) and variable.removeprefix(PREFIX) not in names:
                nearest = difflib.get_close_matches(variable.removeprefix(PREFIX), names, n=1)
                hint = f"; did you mean {PREFIX}{nearest[0]}?" if nearest else ""
                found.append((where + variable, hint))
        return found


class AIForgeSettings(Settings):
    """What the library can be told. Every field is also `AIFORGE_<FIELD>` and a key of `aiforge.yaml`."""

    PROVIDER: str = "openai"
    """Who runs the model: `openai` and all that speaks like it, `anthropic`, `ollama`, …, `offline`, or a
    provider of one's own, by name or as `package.module:function`."""
    MODEL: Annotated[str, AfterValidator(_not_blank)] | None = None
    """The model; unset is the provider's default, or what the router chooses."""
    DEFAULT_QUALITY: str | None = None
    """`high`, `medium` or `low`: the router takes the cheapest model of that tier."""
    MODEL_ROUTER_ENABLED: bool = True
    """Let a quality choose the model; off, it is the default model whatever the quality."""
    MODELS: dict[str, OwnModel] = Field(default_factory=dict)
    """Own models by name: price, window and quality tier; they belong to `PROVIDER`, or are named
    `provider/model`."""
    ENDPOINTS: Annotated[dict[str, Endpoint], AfterValidator(check_endpoints)] = Field(default_factory=dict)
    """More endpoints with OpenAI's chat completions, by the name that routes of `FALLBACKS` give them."""
    FALLBACKS: Annotated[dict[str, list[str]], AfterValidator(check_routes)] = Field(default_factory=dict)
    """Who is asked instead, in order, by the error code of a call that has failed for good; `*` is all that
    can pass. A route is a model of `PROVIDER`, `provider/model`, `endpoint/model` or `tier:low`."""
    FALLBACK_NAMED: bool = False
    """Let `FALLBACKS` also answer for a model that a request has named itself."""
    TEMPERATURE: float | None = Field(default=None, ge=0, le=2)
    """How freely the model picks its words; unset is the model's own default."""
    MAX_TOKENS: int | None = Field(default=None, ge=1)
    """Tokens that an answer may have; unset is the model's own limit."""

    OPENAI_API_KEY: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("AIFORGE_OPENAI_API_KEY", "OPENAI_API_KEY")
    )
    """The key of the provider `openai`; any text for a server that asks for none."""
    OPENAI_BASE_URL: str = Field(
        default="https://api.openai.com/v1",
        validation_alias=AliasChoices("AIFORGE_OPENAI_BASE_URL", "OPENAI_BASE_URL"),
    )
    """Where the provider `openai` is: any endpoint with OpenAI's chat completions."""
    MINIMAL_ENDPOINT: bool = False
    """The endpoint takes only `temperature`, `max_tokens` and `stop`."""
    CA_FILE: Path | None = None
    """A PEM file of certificate authorities to trust instead of the system's."""

    CONNECT_TIMEOUT: Seconds = 10.0
    """How long a connection to the provider may take."""
    FIRST_TOKEN_TIMEOUT: Seconds = 120.0
    """How long the provider may take to its first token."""
    TOKEN_TIMEOUT: Seconds = 60.0
    """The longest silence between two chunks of a stream."""
    TURN_TIMEOUT: Seconds = 600.0
    """A turn's deadline, retries and tools included."""
    TOOL_TIMEOUT: Seconds = 60.0
    """How long one tool call may take."""
    MAX_RETRIES: int = Field(default=3, ge=0, le=20)
    """How often a provider call is repeated after a failure that can pass."""
    MAX_MESSAGE_BYTES: int = Field(default=256 * 1024, ge=1)
    """The largest message that a turn may begin with."""

    MAX_INPUT_TOKENS: int | None = Field(default=None, ge=1)
    """The model's context window in tokens, where it is known better than anybody says."""
    TOKENS_BEFORE_SUMMARIZE: int = Field(default=50_000, ge=1)
    """Tokens of a request past which memory="summary" summarises, while the window is unknown."""
    MESSAGES_TO_KEEP: int | None = Field(default=None, ge=1)
    """Messages that a summary leaves as they are, instead of the agent's `memory_k`."""

    WORKSPACE: Path = Path("workspace")
    """The folder that file, command, download and experience tools are confined to; made when needed."""
    TOOLS: str = ""
    """Where tools of one's own are that requests may name: `package.module:tools`, several with commas."""
    FILE_TOOLS: bool = False
    """Offer read_file, read_image_tool, write_code, edit_code and list_files."""
    EXPERIENCE_TOOLS: bool = False
    """Offer list_experiences, read_experience, write_experience and edit_experience."""
    COMMAND_TOOLS: bool = False
    """Offer run_command."""
    COMMANDS: list[str] = Field(
        default=["cat", "cut", "diff", "grep", "head", "ls", "tail", "wc"], min_length=1
    )
    """The programs that run_command may start, by name."""
    DOWNLOAD_TOOLS: bool = False
    """Offer download_file_tool."""
    PRIVATE_DOWNLOADS: bool = False
    """Let downloads reach addresses that are not public: this machine and its networks."""
    WEB_TOOLS: bool = False
    """Offer research, run_web_search, run_arxiv_search and run_osti_search."""
    WEB_SEARCH: str = "searxng"
    """Who answers run_web_search: `searxng`, `brave`, or a back end that was registered."""
    WEB_SEARCH_URL: str | None = None
    """Where the web search is; unset is the back end's own default."""
    WEB_SEARCH_API_KEY: SecretStr | None = None
    """The key of the web search, for those that ask for one."""
    MCP_SERVERS: dict[str, McpServer] = Field(default_factory=dict)
    """Servers of tools by name; `aiforge.tools.mcp` makes their tools."""
    ARXIV_URL: str = "https://export.arxiv.org/api/query"
    """Where arXiv's search is, or a mirror of it."""
    OSTI_URL: str = "https://www.osti.gov/api/v1/records"
    """Where OSTI's search is, or a mirror of it."""
    RAG_FOLDER: Path | None = None
    """Offer search_documents, over the text, Markdown and PDF files below this folder."""

    SYSTEM_PROMPT: str | None = Field(default=None, exclude=True)
    """What a model is told first where nobody says otherwise; in a file it is `chat: {system_prompt: …}`."""

    yaml_section: ClassVar[str | None] = "chat"


_kept: Final[dict[type[Settings], Found]] = {}
"""The last reading of each settings class."""

_PASSWORD: Final = re.compile(r"(://[^/@]*:)[^/]*@")


def read_yaml(path: Path) -> dict[str, Any]:
    """The document at `path`, empty when there is none."""
    if not path.is_file():
        return {}
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {str(error).splitlines()[0]}") from None
    if document is None:
        return {}
    if not _is_mapping(document):
        raise ConfigError(f"{path} must hold a mapping of setting names to values")
    for section in SECTIONS & document.keys():
        if not _is_mapping(document[section] or {}):
            raise ConfigError(f"{path}: {section} must hold a mapping of setting names to values")
    return document


def _is_mapping(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _every_name() -> frozenset[str]:
    return SERVICE_NAMES | {name.upper() for name in AIForgeSettings.model_fields}


def _unknown(what: str, name: str, names: list[str]) -> str:
    nearest = difflib.get_close_matches(name.upper(), [known.upper() for known in names], n=1)
    return f"unknown {what}" + (f"; did you mean {nearest[0]}?" if nearest else "")


def _first_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    if not name.startswith(PREFIX) and name != "OPENAI_API_KEY":
        name = PREFIX + name.upper()
    within = "".join(f"{part}: " for part in first["loc"][1:])
    text = first["msg"].removeprefix("Value error, ")
    return f"{name}: {within}{text} (got {_shown(name, first['input'])})"


def _shown(name: str, value: object) -> str:
    if name == f"{PREFIX}ENDPOINTS" or "KEY" in name or "TOKEN" in name.rsplit("_", maxsplit=1)[-1]:
        return "a secret"
    return _PASSWORD.sub(r"\g<1>********@", repr(value))
