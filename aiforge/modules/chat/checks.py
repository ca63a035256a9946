"""What callers may pass. Everything that is wrong raises ValueError before any request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from aiforge.core.names import CONVERSATION_ID, CONVERSATION_WORDS
from aiforge.modules.chat.memory import MODES
from aiforge.modules.chat.stores.protocol import Store


def checked_text(name: str, text: object) -> str:
    """The text as a plain `str`: of a subclass nobody knows how to write it."""
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text, not {type(text).__name__}")
    try:
        return str.encode(text).decode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half a surrogate pair, which is no character") from None


def checked_message(message: object, longest: int) -> str:
    """`longest` is in bytes of UTF-8."""
    text = checked_text("message", message)
    if not text.strip():
        raise ValueError("message must not be empty")
    size = len(text.encode())
    if size > longest:
        raise ValueError(f"message has {size} bytes; MAX_MESSAGE_BYTES is {longest}")
    return text


def check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1, not {value!r}")


def check_options(
    memory: object, memory_k: object, max_tool_iterations: object, conversation_id: object, store: object
) -> None:
    """What an agent is made of; what is no store raises TypeError."""
    if memory not in MODES:
        raise ValueError(f"memory must be one of {', '.join(MODES)}, not {memory!r}")
    check_count("memory_k", memory_k)
    check_count("max_tool_iterations", max_tool_iterations)
    if conversation_id is not None:
        check_conversation_id(conversation_id)
    if isinstance(store, type):
        raise TypeError(f"store must be a store of conversations, not the class {store.__name__}")
    if store is not None and not isinstance(store, Store):
        raise TypeError(f"store must be a store of conversations, not {type(store).__name__}")


def check_conversation_id(conversation_id: object) -> None:
    if not isinstance(conversation_id, str) or not CONVERSATION_ID.fullmatch(conversation_id):
        raise ValueError(f"conversation_id must be {CONVERSATION_WORDS}, not {conversation_id!r}")


def checked_metadata(metadata: object) -> dict[str, str]:
    """A copy of what the caller gave along with a message."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ValueError(f"metadata must map texts to texts, not be {type(metadata).__name__}")
    return {
        checked_text("a name in metadata", name): checked_text(f"metadata[{name!r}]", value)
        for name, value in metadata.items()
    }


def check_hook(name: str, hook: object, *, may_be_async: bool) -> None:
    """Raises TypeError."""
    if hook is None:
        return
    if not callable(hook):
        raise TypeError(f"{name} must be callable, not {type(hook).__name__}")
    call = getattr(type(hook), "__call__", None)  # noqa: B004  # of an object, what its class does
    if not may_be_async and (inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(call)):
        raise TypeError(f"{name} must be a plain function: events do not wait")


def takes_two(hook: Callable[..., Any]) -> bool:
    """Whether a hook wants the request beside the event."""
    try:
        inspect.signature(hook).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True
