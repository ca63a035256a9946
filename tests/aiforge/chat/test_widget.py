"""The chat page, driven as a browser would, against a provider over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from aiforge.cli import page
from aiforge.testing import FakeProvider, Reply, ToolCall, failure

PAGE = str(Path(page.__file__))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProvider]:
    with FakeProvider(strict=True) as fake:
        monkeypatch.setenv("AIFORGE_OPENAI_BASE_URL", fake.url)
        monkeypatch.setenv("AIFORGE_OPENAI_API_KEY", "sk-canary")
        monkeypatch.setenv("AIFORGE_MAX_RETRIES", "0")
        monkeypatch.delenv("AIFORGE_MODEL", raising=False)
        yield fake


@pytest.fixture
def app(provider: FakeProvider) -> AppTest:
    return fresh()


def fresh() -> AppTest:
    app = AppTest.from_file(PAGE, default_timeout=60).run()
    assert not app.exception
    return app


def say(app: AppTest, text: str) -> list[str]:
    """Send a message; everything that the page then says, messages and notes."""
    app.chat_input(key="prompt").set_value(text).run()
    assert not app.exception
    return said(app)


def said(app: AppTest) -> list[str]:
    return [element.value for message in app.chat_message for element in message.markdown]


def metric(app: AppTest, label: str) -> str:
    return next(str(metric.value) for metric in app.metric if metric.label == label)


def conversations(app: AppTest) -> list[str]:
    return [button.label for button in app.button if button.key and button.key.startswith("talk-")]


def test_a_conversation_and_what_it_costs(app: AppTest, provider: FakeProvider) -> None:
    provider.push("Hello *Ada*.", "You are Ada.")
    assert say(app, "I am Ada.") == ["I am Ada.", "Hello *Ada*."]
    assert say(app, "Who am I?")[-2:] == ["Who am I?", "You are Ada."]
    assert [message["content"] for message in provider.calls[1].messages[1:]] == [
        "I am Ada.",
        "Hello *Ada*.",
        "Who am I?",
    ]
    assert all(call.stream for call in provider.calls)
    assert conversations(app) == ["I am Ada."]
    usage = [call.reported for call in provider.calls if call.reported]
    tokens = sum(each.input_tokens + each.output_tokens for each in usage)
    assert metric(app, "Tokens") == f"{tokens:,}"
    assert float(metric(app, "Cost").removeprefix("$")) > 0


def test_a_tool_that_is_switched_on_is_used_and_shown(app: AppTest, provider: FakeProvider) -> None:
    provider.push(
        "plain", Reply(tool_calls=[ToolCall("calculator", {"expression": "249.99 * 0.85"})]), "212.49"
    )
    say(app, "Hi")
    assert "tools" not in provider.calls[0].body
    app.toggle(key="tool-calculator").set_value(True).run()
    assert say(app, "15% off?")[-1] == "212.49"
    assert [tool["function"]["name"] for tool in provider.calls[1].body["tools"]] == ["calculator"]
    notes = [caption.value for caption in app.chat_message[-1].caption]
    assert notes[0].startswith(":material/build: `calculator`")
    assert notes[1] == ":material/check: `calculator` → 212.4915"
    assert [message["role"] for message in provider.calls[1].messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_the_memory_switch(app: AppTest, provider: FakeProvider) -> None:
    say(app, "I am Ada.")
    app.radio(key="memory").set_value("none").run()
    say(app, "Who am I?")
    assert [message["role"] for message in provider.calls[1].messages] == ["system", "user"]
    app.radio(key="memory").set_value("buffer").run()
    say(app, "And now?")
    assert provider.calls[2].messages[1]["content"] == "I am Ada."


def test_the_list_of_conversations(app: AppTest) -> None:
    say(app, "About tides")
    app.button(key="new").click().run()
    assert said(app) == []
    say(app, "About phases of the moon, and of alloys")
    assert conversations(app) == ["About phases of the moon, and of…", "About tides"]
    next(button for button in app.button if button.label == "About tides").click().run()
    assert said(app)[0] == "About tides"


def test_a_failure_is_shown_and_not_remembered(app: AppTest, provider: FakeProvider) -> None:
    provider.push(failure(401), "fine")
    app.chat_input(key="prompt").set_value("First").run()
    assert not app.exception
    assert app.error
    assert "sk-canary" not in app.error[0].value
    say(app, "Second")
    assert [message["content"] for message in provider.calls[1].messages[1:]] == ["Second"]


def test_a_model_is_chosen_with_its_price_and_window(app: AppTest, provider: FakeProvider) -> None:
    assert any("0.15 in" in caption.value and "128,000" in caption.value for caption in app.sidebar.caption)
    app.selectbox(key="model").set_value("gpt-4.1").run()
    say(app, "Hi")
    assert provider.calls[0].model == "gpt-4.1"


def test_tools_that_settings_offer_have_a_switch(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fresh().toggle(key="tool-research").disabled
    monkeypatch.setenv("AIFORGE_WEB_TOOLS", "true")
    monkeypatch.setenv("AIFORGE_WEB_SEARCH_URL", "http://127.0.0.1:1/search")
    app = fresh()
    assert not app.toggle(key="tool-research").disabled
    assert not app.toggle(key="tool-run_arxiv_search").value


def test_a_wrong_setting_is_one_line(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIFORGE_PROVIDER", "gogle")
    app = AppTest.from_file(PAGE, default_timeout=60).run()
    app.chat_input(key="prompt").set_value("Hi").run()
    assert not app.exception
    assert "unknown provider 'gogle'" in app.error[0].value


def test_a_question_of_the_model_is_answered(app: AppTest, provider: FakeProvider) -> None:
    asking = Reply(tool_calls=[ToolCall("ask_human", {"question": "Which colour?"})])
    provider.push(asking, "Blue it is.", "More?")
    app.toggle(key="tool-ask_human").set_value(True).run()
    assert say(app, "Paint it.")[-1] == "Which colour?"
    assert app.chat_input(key="prompt").placeholder == "Answer the question"
    assert say(app, "blue")[-2:] == ["blue", "Blue it is."]
    assert provider.calls[1].messages[-1]["content"] == "blue"
    assert say(app, "Thanks")[-1] == "More?"
