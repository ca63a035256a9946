"""For tests of code that talks to a model: a provider server, a scripted model, a message-list check.

    from aiforge.testing import FakeProvider, Reply, ScriptedModel, check_messages

The names load when they are used: a test of wire bytes does not wait for LangChain, nor one of agent
code for a web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiforge.testing.calls import CALL_ID_HEADER, CallLog, RecordedCall
    from aiforge.testing.command import serve
    from aiforge.testing.playbook import Answer
    from aiforge.testing.script import (
        Cut,
        Delta,
        Fail,
        Faults,
        Gate,
        Raw,
        Reply,
        Report,
        Rule,
        Script,
        Silence,
        Step,
        ToolCall,
        failure,
        rate_limited,
    )
    from aiforge.testing.scripted import NoReplyLeft, ScriptedModel
    from aiforge.testing.server import FakeProvider
    from aiforge.testing.shapes import TOOL_SHAPES, tool_deltas
    from aiforge.testing.validate import MessageListError, check_messages

__all__ = [
    "CALL_ID_HEADER",
    "TOOL_SHAPES",
    "Answer",
    "CallLog",
    "Cut",
    "Delta",
    "Fail",
    "FakeProvider",
    "Faults",
    "Gate",
    "MessageListError",
    "NoReplyLeft",
    "Raw",
    "RecordedCall",
    "Reply",
    "Report",
    "Rule",
    "Script",
    "ScriptedModel",
    "Silence",
    "Step",
    "ToolCall",
    "check_messages",
    "failure",
    "rate_limited",
    "serve",
    "tool_deltas",
]

_HOMES = {
    "calls": ("CALL_ID_HEADER", "CallLog", "RecordedCall"),
    "command": ("serve",),
    "playbook": ("Answer",),
    "scripted": ("NoReplyLeft", "ScriptedModel"),
    "server": ("FakeProvider",),
    "shapes": ("TOOL_SHAPES", "tool_deltas"),
    "validate": ("MessageListError", "check_messages"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF.get(name, 'script')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
