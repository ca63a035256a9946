"""What a tool is, and the shape of the ones that ship with aiforge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ToolLike(Protocol):
    """What any object must offer to be used as a tool; LangChain's tools do.

    `invoke` gets the arguments as one dict and may be a coroutine function. A plain one runs in a
    thread of its own, so it may block. It may raise: the model then gets the error as the result.
    """

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def invoke(self) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True)
class Tool:
    """A quick pure function as a tool. `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., str]

    def invoke(self, arguments: dict[str, Any]) -> str:
        """Raises whatever the function raises; TypeError on arguments it does not know."""
        return self.function(**arguments)

    async def ainvoke(self, arguments: dict[str, Any]) -> str:
        """The same without a thread: these functions return in well under a millisecond."""
        return self.function(**arguments)
