"""The chat module. Its names are loaded when they are first used, so that schemas stay cheap to import."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiforge.modules.chat.module import ChatAgent
    from aiforge.modules.chat.schemas import ChatResponse, ToolCallRecord

__all__ = ["ChatAgent", "ChatResponse", "ToolCallRecord"]

_HOMES = {
    "ChatAgent": "aiforge.modules.chat.module",
    "ChatResponse": "aiforge.modules.chat.schemas",
    "ToolCallRecord": "aiforge.modules.chat.schemas",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
