"""Which system prompt holds."""

from __future__ import annotations


def resolve_prompt(*candidates: str | None, default: str) -> str:
    """The first candidate that is given; an empty one is given too and means: none at all."""
    return next((candidate for candidate in candidates if candidate is not None), default)
