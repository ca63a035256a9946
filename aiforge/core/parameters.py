"""What a call's parameters may be.

One rule for the service, and for its client, which names every bad line of a file before it sends one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MOST_TOKENS: Final = 10_000_000
"""More than any model answers with, and little enough to be counted by everybody."""


class ParameterError(ValueError):
    """What is wrong with the parameter of this name."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(what)
        self.name = name


def check_parameters(
    *,
    temperature: float | None = None,
    max_tokens: int | None = None,
    model: str | None = None,
    tools: Collection[str] | None = None,
    known_tools: Collection[str] | None = None,
) -> None:
    """Raises ParameterError; None is the service's default, of `known_tools` that nobody knows them here."""
    if temperature is not None and not 0 <= temperature <= 2:
        raise ParameterError("temperature", "must be from 0 to 2")
    if max_tokens is not None and not 1 <= max_tokens <= MOST_TOKENS:
        raise ParameterError("max_tokens", f"must be from 1 to {MOST_TOKENS}")
    if model is not None and not model.strip():
        raise ParameterError("model", "must not be empty")
    unknown = set(tools or ()).difference(tools or () if known_tools is None else known_tools)
    if unknown:
        known = ", ".join(sorted(known_tools or ()))
        raise ParameterError("tools", f"has the unknown tool {min(unknown)!r}; known: {known}")
