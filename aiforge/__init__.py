"""AIForge: LLM chat with memory and tools, as a library and as durable background work.

Importing this package does nothing; each public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiforge.core.catalog import ModelInfo, list_models
    from aiforge.core.cost import CostTracker
    from aiforge.core.custom import register_provider
    from aiforge.core.settings import AIForgeSettings
    from aiforge.core.types import (
        AIForgeError,
        APITimeoutError,
        AuthenticationError,
        BatchResult,
        ConfigError,
        EmptyAnswerError,
        FailedItem,
        ProviderCall,
        ProviderError,
        RateLimitError,
        RequestRefusedError,
        StreamCutError,
        UnavailableError,
        Usage,
    )
    from aiforge.modules.chat.module import ChatAgent
    from aiforge.modules.chat.schemas import ChatResponse, ToolCallRecord

__all__ = [
    "AIForgeError",
    "AIForgeSettings",
    "APITimeoutError",
    "AuthenticationError",
    "BatchResult",
    "ChatAgent",
    "ChatResponse",
    "ConfigError",
    "CostTracker",
    "EmptyAnswerError",
    "FailedItem",
    "ModelInfo",
    "ProviderCall",
    "ProviderError",
    "RateLimitError",
    "RequestRefusedError",
    "StreamCutError",
    "ToolCallRecord",
    "UnavailableError",
    "Usage",
    "list_models",
    "register_provider",
]

_HOMES = {
    "aiforge.core.catalog": ("ModelInfo", "list_models"),
    "aiforge.core.cost": ("CostTracker",),
    "aiforge.core.custom": ("register_provider",),
    "aiforge.core.settings": ("AIForgeSettings",),
    "aiforge.modules.chat.module": ("ChatAgent",),
    "aiforge.modules.chat.schemas": ("ChatResponse", "ToolCallRecord"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "aiforge.core.types")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
