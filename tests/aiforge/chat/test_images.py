"""A picture of the workspace on its way to the model, and what is kept of it."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from aiforge import ChatAgent, MemoryStore
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.settings import AIForgeSettings
from aiforge.core.windows import takes_images
from aiforge.testing import FakeProvider, Reply, ScriptedModel, ToolCall, check_messages
from aiforge.tools.files import LARGEST_IMAGE, Files
from aiforge.tools.registry import resolve
from aiforge.tools.tool import Image
from aiforge.tools.workspace import Workspace
from tests.aiforge.chat.support import DuckTool

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
LOOK = ToolCall("read_image_tool", {"path": "plan.png"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.png").write_bytes(PNG)
    return tmp_path


def agent_in(folder: Path, **options: Any) -> ChatAgent:
    settings = AIForgeSettings.load(FILE_TOOLS=True, WORKSPACE=folder)
    return ChatAgent("s", tools=resolve(["read_image_tool"], settings), **options)


def pictures(messages: list[dict[str, Any]]) -> list[bytes]:
    """What a model sees in the last message."""
    content = messages[-1]["content"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    assert all(url.startswith("data:image/") for url in urls)
    return [b64decode(url.partition(";base64,")[2]) for url in urls]


def test_the_model_sees_it_behind_the_result_and_memory_keeps_the_words(folder: Path) -> None:
    with FakeProvider(strict=True) as provider:
        provider.push(Reply(tool_calls=[LOOK]), "A plan.", "You are welcome.")
        agent = agent_in(folder, OPENAI_API_KEY="k", OPENAI_BASE_URL=provider.url)
        response = agent.chat("What is in plan.png?")
        agent.chat("Thanks")
    _, second, third = (call.messages for call in provider.calls)
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool", "user"]
    assert pictures(second) == [PNG]
    assert "plan.png" in second[-1]["content"][0]["text"]
    assert response.tool_calls[0].output == "plan.png: image/png, 14 bytes; the image follows"
    assert [message["role"] for message in third][1:] == ["user", "assistant", "tool", "assistant", "user"]
    assert "base64" not in json.dumps(agent.history())


def test_several_of_one_round_stand_together_behind_all_results() -> None:
    def load(arguments: dict[str, Any]) -> Any:
        name = arguments["name"]
        return "nothing" if name == "none" else Image(name, "image/gif", name.encode())

    calls = [ToolCall("load", {"name": name}) for name in ("one", "none", "two")]
    model = ScriptedModel(replies=[calls, [ToolCall("load", {"name": "three"})], "Done."])
    ChatAgent(llm=model, tools=[DuckTool("load", load)]).chat("Look")
    last = model.requests[-1]["messages"]
    check_messages(last, "openai")
    check_messages(last, "anthropic")
    assert [message["role"] for message in last] == [
        "system", "user", "assistant", "tool", "tool", "tool", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    assert pictures(last[:7]) == [b"one", b"two"]
    assert pictures(last) == [b"three"]


def test_a_model_without_tool_calling_sees_it_too(folder: Path) -> None:
    with FakeProvider() as provider:
        provider.push('{"tool": "read_image_tool", "input": {"path": "plan.png"}}', "A plan.")
        agent = agent_in(folder, native_tools=False, OPENAI_API_KEY="k", OPENAI_BASE_URL=provider.url)
        assert agent.chat("What is in plan.png?").message == "A plan."
    messages = provider.calls[1].messages
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert "image follows" in messages[-1]["content"][0]["text"]
    assert pictures(messages) == [PNG]


def test_a_model_that_is_known_not_to_see_is_told_so(folder: Path) -> None:
    model = ScriptedModel(replies=[LOOK, "Sorry."], profile={"image_inputs": False})
    response = agent_in(folder, llm=model).chat("Look")
    assert response.tool_calls[0].output == "error: this model cannot look at images"
    assert [message["role"] for message in model.requests[1]["messages"]][-1] == "tool"


def test_who_can_see() -> None:
    pytest.importorskip("langchain_openai")

    def model(name: str, **settings: Any) -> OpenAIChat:
        return OpenAIChat.from_settings(AIForgeSettings.load(OPENAI_API_KEY="k", **settings), model=name)

    assert takes_images(model("gpt-4o"), "gpt-4o")
    assert not takes_images(model("gpt-3.5-turbo"), "gpt-3.5-turbo")
    house = model("gpt-3.5-turbo", OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    assert takes_images(house, "gpt-3.5-turbo")
    assert takes_images(ScriptedModel(), "scripted")


def test_a_turn_that_waited_goes_on_without_the_picture(folder: Path) -> None:
    """It is not kept; the model may look again."""
    store = MemoryStore()
    approved = DuckTool("send", lambda _arguments: "sent")
    approved.approval = True  # type: ignore[attr-defined]
    settings = AIForgeSettings.load(FILE_TOOLS=True, WORKSPACE=folder)
    tools = [*resolve(["read_image_tool"], settings), approved]
    model = ScriptedModel(replies=[LOOK, ToolCall("send"), "Done."])
    first = ChatAgent(llm=model, tools=tools, store=store, conversation_id="c")
    question = first.chat("Look and send").question
    assert question is not None
    second = ChatAgent(llm=model, tools=tools, store=store, conversation_id="c")
    assert second.resume(question.question_id, "yes").message == "Done."
    assert pictures(model.requests[1]["messages"]) == [PNG]
    check_messages(model.requests[2]["messages"])
    assert "base64" not in json.dumps(model.requests[2]["messages"])


class TestReading:
    @pytest.mark.parametrize(
        ("data", "kind"),
        [
            (PNG, "image/png"),
            (b"\xff\xd8\xff\xe0 jfif", "image/jpeg"),
            (b"GIF89a...", "image/gif"),
            (b"GIF87a...", "image/gif"),
            (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image/webp"),
        ],
    )
    def test_it_is_known_by_its_first_bytes(self, tmp_path: Path, data: bytes, kind: str) -> None:
        (tmp_path / "named.txt").write_bytes(data)
        assert Files(Workspace(tmp_path)).image("named.txt") == Image("named.txt", kind, data)

    @pytest.mark.parametrize(
        "data", [b"", b"text", b"%PDF-1.4", b"RIFF\x10\x00\x00\x00WAVE", b"<svg/>", b"BM"]
    )
    def test_what_is_none(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "a.png").write_bytes(data)
        with pytest.raises(ValueError, match="no PNG, JPEG, GIF or WebP"):
            Files(Workspace(tmp_path)).image("a.png")

    def test_one_that_is_too_large(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(PNG.ljust(LARGEST_IMAGE + 1))
        with pytest.raises(ValueError, match="at most"):
            Files(Workspace(tmp_path)).image("a.png")
        (tmp_path / "a.png").write_bytes(PNG.ljust(LARGEST_IMAGE))
        assert len(Files(Workspace(tmp_path)).image("a.png").data) == LARGEST_IMAGE

    @pytest.mark.parametrize("path", ["../plan.png", "link.png", "/etc/passwd", "."])
    def test_it_stays_in_the_workspace(self, folder: Path, path: str) -> None:
        root = folder / "work"
        root.mkdir()
        (root / "link.png").symlink_to(folder / "plan.png")
        with pytest.raises(ValueError, match=r"."):
            Files(Workspace(root)).image(path)
