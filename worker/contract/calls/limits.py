"""What a provider allows, as the setting `limits` says it: by model, by provider, or for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, ValidationError

from aiforge.core.setting_types import Limit

EVERY: Final = "*"


def _limits(value: Any) -> Any:
    """Names of models to limits; an error names the model and the field."""
    if not isinstance(value, Mapping):
        raise ValueError('must map models to limits, such as {"openai/gpt-4o-mini": {"concurrency": 64}}')
    return {name: _limit(name, said) for name, said in value.items()}


def _limit(name: Any, said: Any) -> Limit:
    if not isinstance(name, str) or (name != EVERY and not all(name.partition("/"))):
        raise ValueError(f"{name!r} is no model: write provider/model, provider/* or *")
    try:
        limit = Limit.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ValueError(
                f"{name!r} has no field {field!r}; there are {', '.join(Limit.model_fields)}"
            ) from None
        raise ValueError(f"{name!r}{f': {field}' if field else ''}: {first['msg']}") from None
    if limit.requests_per_minute is limit.tokens_per_minute is limit.concurrency is None:
        raise ValueError(
            f"{name!r} limits nothing: set requests_per_minute, tokens_per_minute or concurrency"
        )
    return limit


Limits: TypeAlias = Annotated[dict[str, Limit], BeforeValidator(_limits)]


def limit_of(limits: Mapping[str, Limit], provider: str, model: str) -> Limit | None:
    """What holds for a model: what is said of itself, else of its provider, else of all."""
    for name in (f"{provider}/{model}", f"{provider}/{EVERY}", EVERY):
        if name in limits:
            return limits[name]
    return None
