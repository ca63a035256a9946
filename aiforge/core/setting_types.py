"""Settings that have parts of their own."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator


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
