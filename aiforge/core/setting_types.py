"""Settings that have parts of their own."""

from __future__ import annotations

import difflib
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from aiforge.core.names import CONVERSATION_ID, CONVERSATION_WORDS
from aiforge.core.types import ProviderError

ANY_ERROR: Final = "*"
_ENDPOINT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""As names of providers are."""


def _name(written: str) -> str:
    if CONVERSATION_ID.fullmatch(written) is None:
        raise ValueError(f"must be {CONVERSATION_WORDS}")
    return written


Name = Annotated[str, AfterValidator(_name)]
"""Of a tenant or an API key."""


class OwnModel(BaseModel):
    """A model of one's own. Prices are USD for a million tokens, the window is in tokens.

    Without `input` and `output` the model has no own price; without `quality` it is never routed to.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    quality: Literal["high", "medium", "low"] | None = None
    """The router's tier."""
    input: Decimal | None = Field(default=None, ge=0)
    """Price of what the model is sent."""
    output: Decimal | None = Field(default=None, ge=0)
    """Price of what it answers."""
    cached: Decimal | None = Field(default=None, ge=0)
    """Price of what the provider had in its cache; unset is that of `input`."""
    cache_write: Decimal | None = Field(default=None, ge=0)
    """Price of what the provider puts into its cache; unset is that of `input`."""
    context_window: int | None = Field(default=None, ge=1)
    """Tokens that a request and its answer may have."""


class Endpoint(BaseModel):
    """An endpoint with OpenAI's chat completions, beside the one of the provider `openai`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    """Where it is."""
    api_key: SecretStr
    """Its key; any text for a server that asks for none."""
    minimal: bool = False
    """It takes only `temperature`, `max_tokens` and `stop`."""


class Limit(BaseModel):
    """What all workers together may ask of one model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: int | None = Field(default=None, ge=1)
    """How many calls may begin."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Tokens sent and answered, together."""
    concurrency: int | None = Field(default=None, ge=1)
    """Calls that are under way at a time."""
    burst_seconds: float = Field(default=0.1, ge=0, le=60)
    """How far ahead of an even pace calls may begin; 60 lets a minute's requests begin at once."""


class ApiKey(BaseModel):
    """What a caller of the service shows, and whose data that opens. Budgets and logs call it by its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretStr = Field(min_length=1)
    """What is sent as `Authorization: Bearer`."""
    tenant: Name = "default"
    """The owner of all that is read and stored with it; several keys may share one."""


class McpServer(BaseModel):
    """A server of tools: a program that is started (`command` and what follows it), or a `url`.

    The program gets none of this process's environment but what it needs to run; `${NAME}` in a value
    of `env` stands for that variable.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str | None = None
    """The program to start."""
    args: list[str] = Field(default_factory=list)
    """What follows the program's name."""
    env: dict[str, SecretStr] = Field(default_factory=dict)
    """The program's environment."""
    cwd: Path | None = None
    """The folder that the program is started in."""
    url: str | None = None
    """Where a server is that runs already."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """What is sent to it with every request."""
    tools: list[str] | None = None
    """The tools to take, by the server's own names; all when unset."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server has either a command or a url")
        return self


def check_endpoints(endpoints: dict[str, Endpoint]) -> dict[str, Endpoint]:
    """Raises ValueError on a name that no route could use."""
    for name in endpoints:
        if not _ENDPOINT.fullmatch(name):
            raise ValueError(f"an endpoint's name is made of letters, digits, _ and -, unlike {name!r}")
    return endpoints


def check_routes(fallbacks: dict[str, list[str]]) -> dict[str, list[str]]:
    """Raises ValueError on an error code that no provider call ends with, and on a list without routes."""
    codes = sorted(_codes(ProviderError))
    for code, routes in fallbacks.items():
        if code not in (*codes, ANY_ERROR):
            near = difflib.get_close_matches(code, codes, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join(codes)
            raise ValueError(f"{code!r} is no error of a provider call{hint} (one of {known}, or '*')")
        if not routes or not all(route.strip() for route in routes):
            raise ValueError(f"{code!r} needs a list of routes, none of them blank")
    return fallbacks


def _codes(root: type[ProviderError]) -> set[str]:
    return {root.code}.union(*map(_codes, root.__subclasses__()))
