"""What a tool is, and the shapes of the ones that ship with aiforge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec


class Image(msgspec.Struct, frozen=True):
    """A picture that a tool gives the model to look at.

    It goes with the requests of its turn and is not kept: memory has what the tool's result says.
    """

    name: str
    media_type: str
    """Such as `image/png`."""
    data: bytes


Output: TypeAlias = str | Image


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
class SlowTool:
    """A function that reads or writes files as a tool; it runs in a thread of its own.

    `parameters` is the JSON schema of its arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Output]
    approval: bool = False
    """A human has to allow each call."""

    def invoke(self, arguments: dict[str, Any]) -> Output:
        """Raises whatever the function raises; TypeError on arguments it does not know."""
        return self.function(**arguments)


@dataclass(frozen=True, slots=True)
class Tool(SlowTool):
    """A quick pure function as a tool."""

    async def ainvoke(self, arguments: dict[str, Any]) -> Output:
        """The same without a thread: these functions return in well under a millisecond."""
        return self.function(**arguments)


@dataclass(frozen=True, slots=True)
class AsyncTool:
    """A coroutine function as a tool."""

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Awaitable[str]]
    approval: bool = False
    """A human has to allow each call."""

    async def invoke(self, arguments: dict[str, Any]) -> str:
        """Raises whatever the function raises; TypeError on arguments it does not know."""
        return await self.function(**arguments)


ShippedTool = Tool | SlowTool | AsyncTool


def parameters(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, closed to all others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
