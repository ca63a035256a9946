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
    from aiforge.core.request import Action, ChatRequest, current_request
    from aiforge.core.settings import AIForgeSettings
    from aiforge.core.types import (
        AIForgeError,
        APITimeoutError,
        AuthenticationError,
        BatchResult,
        ConfigError,
        ContextLengthError,
        ConversationMovedError,
        EmptyAnswerError,
        FailedItem,
        ProviderCall,
        ProviderError,
        RateLimitError,
        RequestRefusedError,
        StoreError,
        StreamCutError,
        UnavailableError,
        Usage,
    )
    from aiforge.modules.chat.module import ChatAgent
    from aiforge.modules.chat.schemas import ChatResponse, ToolCallRecord
    from aiforge.modules.chat.stores.file import FileStore
    from aiforge.modules.chat.stores.memory import MemoryStore
    from aiforge.modules.chat.stores.postgres import PostgresStore
    from aiforge.modules.chat.stores.protocol import Store
    from aiforge.modules.chat.stores.sqlite import SQLiteStore

__all__ = [
    "AIForgeError",
    "AIForgeSettings",
    "APITimeoutError",
    "Action",
    "AuthenticationError",
    "BatchResult",
    "ChatAgent",
    "ChatRequest",
    "ChatResponse",
    "ConfigError",
    "ContextLengthError",
    "ConversationMovedError",
    "CostTracker",
    "EmptyAnswerError",
    "FailedItem",
    "FileStore",
    "MemoryStore",
    "ModelInfo",
    "PostgresStore",
    "ProviderCall",
    "ProviderError",
    "RateLimitError",
    "RequestRefusedError",
    "SQLiteStore",
    "Store",
    "StoreError",
    "StreamCutError",
    "ToolCallRecord",
    "UnavailableError",
    "Usage",
    "current_request",
    "list_models",
    "register_provider",
]

_HOMES = {
    "aiforge.core.catalog": ("ModelInfo", "list_models"),
    "aiforge.core.cost": ("CostTracker",),
    "aiforge.core.custom": ("register_provider",),
    "aiforge.core.request": ("Action", "ChatRequest", "current_request"),
    "aiforge.core.settings": ("AIForgeSettings",),
    "aiforge.modules.chat.module": ("ChatAgent",),
    "aiforge.modules.chat.schemas": ("ChatResponse", "ToolCallRecord"),
    "aiforge.modules.chat.stores.file": ("FileStore",),
    "aiforge.modules.chat.stores.memory": ("MemoryStore",),
    "aiforge.modules.chat.stores.postgres": ("PostgresStore",),
    "aiforge.modules.chat.stores.protocol": ("Store",),
    "aiforge.modules.chat.stores.sqlite": ("SQLiteStore",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "aiforge.core.types")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
