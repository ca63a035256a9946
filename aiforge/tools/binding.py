"""Any tool, made callable in one way: checked, described to the model, awaited without blocking the loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool, create_retriever_tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from aiforge.core.texts import encodable
from aiforge.core.types import ConfigError
from aiforge.tools.tool import Tool, ToolLike

Caller: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]

ANY_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": True}
"""What the model is told of a tool that does not describe its arguments."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool ready for the engine. `schema` is OpenAI's tool format, `source` the object that was given."""

    name: str
    schema: dict[str, Any]
    source: Any
    call: Caller


def bind(tools: Sequence[Any]) -> list[BoundTool]:
    """Raises TypeError for what is no tool, ConfigError for two of one name or a need that is not met."""
    bound = [tool if isinstance(tool, BoundTool) else _bind(tool) for tool in tools]
    names = [tool.name for tool in bound]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tools have the name {name!r}")
    return bound


def _bind(tool: Any) -> BoundTool:
    if isinstance(tool, BaseRetriever):
        tool = _searching(tool)
    if isinstance(tool, type) or not isinstance(tool, ToolLike) or not callable(tool.invoke):
        raise TypeError(f"{tool!r} is not a tool: it needs .name, .description and .invoke()")
    if not isinstance(tool.name, str) or not tool.name or not isinstance(tool.description, str):
        raise TypeError(f"{tool!r} is not a tool: .name and .description must be texts, .name not empty")
    return BoundTool(encodable(tool.name), _plain(tool.name, _schema(tool)), tool, _caller(tool))


def _plain(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in JSON's own types, as every provider's client can write it."""
    try:
        plain: dict[str, Any] = json.loads(encodable(json.dumps(schema, ensure_ascii=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"tool {name!r}: its arguments are not described in JSON's types: {error}") from None
    return plain


def _searching(retriever: BaseRetriever) -> BaseTool:
    """A LangChain retriever as a tool of its name; `create_retriever_tool` lets one choose the words."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", retriever.get_name())[:64]
    return create_retriever_tool(retriever, name, "Find passages of documents that fit a query.")


def needs_approval(tool: Any) -> bool:
    """Whether a human has to allow every call: `approval = True` on the tool says so.

    LangChain's tools have no room for such an attribute, and silently drop it; on them it is an entry
    of their `metadata`.
    """
    metadata = getattr(tool, "metadata", None)
    return bool(getattr(tool, "approval", False) or (isinstance(metadata, dict) and metadata.get("approval")))


def is_idempotent(tool: Any) -> bool:
    """Whether a call that may have been done can be made again: `idempotent = True` on the tool says so.

    LangChain's tools can say it in their metadata.
    """
    metadata = getattr(tool, "metadata", None)
    return bool(
        getattr(tool, "idempotent", False) or (isinstance(metadata, dict) and metadata.get("idempotent"))
    )


def _schema(tool: ToolLike) -> dict[str, Any]:
    if isinstance(tool, BaseTool):
        return convert_to_openai_tool(tool)
    function = {"name": tool.name, "description": tool.description, "parameters": _parameters(tool)}
    return {"type": "function", "function": function}


def _parameters(tool: ToolLike) -> dict[str, Any]:
    if isinstance(tool, Tool):
        return tool.parameters
    described = getattr(tool, "args_schema", None) or getattr(tool, "parameters", None)
    if isinstance(described, type) and issubclass(described, BaseModel):
        return described.model_json_schema()
    if isinstance(described, dict) and described.get("type") == "object":
        return described
    return ANY_ARGUMENTS


def _caller(tool: Any) -> Caller:
    if _has_coroutine(tool):
        return cast(Caller, tool.ainvoke)
    if inspect.iscoroutinefunction(tool.invoke):
        return cast(Caller, tool.invoke)
    return lambda arguments: _in_thread(tool.name, tool.invoke, arguments)


def _has_coroutine(tool: Any) -> bool:
    """Whether `ainvoke` is more than LangChain's detour over a thread pool of a few threads."""
    if not isinstance(tool, BaseTool):
        return inspect.iscoroutinefunction(getattr(tool, "ainvoke", None))
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


async def _in_thread(name: str, function: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> Any:
    """Run in a daemon thread of its own.

    A pool would have a ceiling that hanging tools fill up, and would keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(outcome: tuple[Any, BaseException | None]) -> None:
        if not done.done():
            done.set_result(outcome)

    def work() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = context.run(function, arguments), None
        except BaseException as error:  # noqa: BLE001  # a tool may raise anything; it is raised again below
            outcome = None, error
        with suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(deliver, outcome)

    threading.Thread(target=work, name=f"aiforge-tool-{name}", daemon=True).start()
    result, error = await done
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise RuntimeError(f"the tool raised {type(error).__name__}") from error
    return await result if inspect.isawaitable(result) else result
