"""What importing the package costs and touches."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import aiforge
import aiforge.modules.chat

WATCH = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import time
started = time.perf_counter()
import aiforge
seconds = time.perf_counter() - started
{more}
import json, logging
print(json.dumps({{
    "seconds": seconds,
    "modules": sorted(sys.modules),
    "opened": [name for name in opened if "__pycache__" not in name and not name.endswith((".py", ".so"))],
    "loggers": sorted(logging.root.manager.loggerDict),
}}))
"""


def in_a_new_process(more: str = "") -> dict[str, Any]:
    script = WATCH.format(more=more)
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def test_importing_aiforge_is_quick_and_touches_nothing() -> None:
    seen = min((in_a_new_process() for _ in range(3)), key=lambda each: each["seconds"])
    assert seen["seconds"] < 0.15
    assert seen["opened"] == []
    assert seen["loggers"] == []
    assert not {"langgraph", "langchain_core", "pydantic", "aiohttp"} & set(seen["modules"])


def test_schemas_load_without_langgraph_and_langchain() -> None:
    seen = in_a_new_process(
        "import aiforge.modules.chat.schemas; from aiforge.modules.chat import ChatResponse"
    )
    assert not {"langgraph", "langchain_core", "aiohttp"} & set(seen["modules"])


@pytest.mark.parametrize("module", [aiforge, aiforge.modules.chat])
def test_every_public_name_resolves(module: Any) -> None:
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018  # the access is the test
