"""A chat page for Streamlit (extra `playground`): streamed answers, memory and tool switches, costs.

`aiforge playground` shows it alone; `chat_page()` draws it in an app of one's own. Conversations live as
long as the browser's session, in a store of their own, so that a switch can be turned within one.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any, Final, TypedDict, cast

import streamlit as st

from aiforge.core import bridge
from aiforge.core.catalog import ModelInfo, list_models
from aiforge.core.cost import CostTracker
from aiforge.core.events import Event, Preamble, Token, ToolCall, ToolResult
from aiforge.core.router import choose_model
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import AIForgeError, ConfigError
from aiforge.modules.chat.memory import MODES
from aiforge.modules.chat.module import ChatAgent
from aiforge.modules.chat.schemas import ChatResponse, PendingQuestion
from aiforge.modules.chat.stores.memory import MemoryStore
from aiforge.tools import registry

LONGEST_TITLE: Final = 32
LONGEST_OUTPUT: Final = 500
"""Characters of a tool's output that are shown."""
ALWAYS: Final = ("calculator", "research", "unit_converter", "current_time", "ask_human")
"""Tools that have a switch even where no setting offers them."""


class _Shown(TypedDict):
    """One message as the page shows it."""

    role: str
    text: str
    tools: list[str]
    note: str
    failed: bool


class _Talk(TypedDict):
    """One conversation of the list."""

    title: str
    shown: list[_Shown]
    agents: dict[tuple[Any, ...], ChatAgent]
    question: PendingQuestion | None


class _Desk(TypedDict):
    """All that a browser's session holds."""

    store: MemoryStore
    talks: dict[str, _Talk]
    current: str
    trackers: list[CostTracker]


class _Choice(TypedDict):
    """How the switches stand."""

    model: str | None
    memory: str
    memory_k: int
    tools: tuple[str, ...]


def chat_page(title: str = "AIForge playground", **options: Any) -> None:
    """Draw the page. `options` are keywords of every ChatAgent on it; raises nothing."""
    st.title(title)
    try:
        settings = AIForgeSettings.load(**{name: value for name, value in options.items() if name.isupper()})
        desk = _desk()
        choice = _sidebar(desk, settings)
        _conversation(desk, choice, options)
    except ConfigError as error:
        st.error(str(error))


def _desk() -> _Desk:
    if "aiforge" not in st.session_state:
        st.session_state["aiforge"] = _Desk(store=MemoryStore(), talks={}, current="", trackers=[])
        _begin(st.session_state["aiforge"])
    return cast(_Desk, st.session_state["aiforge"])


def _begin(desk: _Desk) -> None:
    """Go to a new conversation, or to the one that was not used yet."""
    unused = next((key for key, talk in desk["talks"].items() if not talk["shown"]), None)
    desk["current"] = unused or secrets.token_hex(8)
    desk["talks"].setdefault(
        desk["current"], _Talk(title="New conversation", shown=[], agents={}, question=None)
    )


def _go(desk: _Desk, key: str) -> None:
    desk["current"] = key


def _sidebar(desk: _Desk, settings: AIForgeSettings) -> _Choice:
    with st.sidebar:
        st.button("New conversation", key="new", on_click=_begin, args=(desk,), width="stretch")
        for key, talk in reversed(desk["talks"].items()):
            st.button(
                talk["title"],
                key=f"talk-{key}",
                on_click=_go,
                args=(desk, key),
                type="primary" if key == desk["current"] else "tertiary",
                width="stretch",
            )
        _costs(desk)
        model = _model(settings)
        memory = st.radio("Memory", MODES, key="memory", horizontal=True)
        memory_k = st.slider("Messages kept", 2, 100, 20, key="memory_k", disabled=memory == "none")
        st.markdown("**Tools**")
        offered = registry.names(settings)
        names = [*ALWAYS, *sorted(offered - set(ALWAYS))]
        tools = [name for name in names if _switch(name, offered)]
    return _Choice(model=model, memory=memory, memory_k=memory_k, tools=tuple(tools))


def _switch(name: str, offered: frozenset[str]) -> bool:
    help_ = None if name in offered else "switched off; the setting WEB_TOOLS offers it"
    return st.toggle(name, key=f"tool-{name}", disabled=name not in offered, help=help_) and name in offered


def _model(settings: AIForgeSettings) -> str | None:
    usual = choose_model(settings, named=settings.MODEL is not None, quality=None)
    known = {info.model: info for info in list_models(settings.PROVIDER, settings=settings)}
    names = [*([usual] if usual else []), *(name for name in sorted(known) if name != usual)]
    chosen = st.selectbox(f"Model of {settings.PROVIDER}", names, key="model", accept_new_options=True)
    if chosen is not None:
        st.caption(_described(known.get(chosen)))
    return chosen


def _described(info: ModelInfo | None) -> str:
    if info is None:
        return "price and window are not known here"
    priced = info.input_price is not None and info.output_price is not None
    price = (
        f"\\${info.input_price} in, \\${info.output_price} out per million tokens" if priced else "no price"
    )
    window = f"{info.context_window:,} tokens" if info.context_window else "not known"
    return f"{price} · window {window}"


def _conversation(desk: _Desk, choice: _Choice, options: dict[str, Any]) -> None:
    talk = desk["talks"][desk["current"]]
    for message in talk["shown"]:
        with st.chat_message(message["role"]):
            for line in message["tools"]:
                st.caption(line)
            (st.error if message["failed"] else st.markdown)(message["text"])
            if message["note"]:
                st.caption(message["note"])
    question = talk["question"]
    prompt = st.chat_input(_invitation(question), key="prompt")
    if prompt:
        agent = _agent(desk, talk, choice, options)
        with st.chat_message("user"):
            st.markdown(prompt)
        with st.chat_message("assistant"):
            _answer(talk, agent, prompt)
        st.rerun()  # the list and the costs beside it were drawn before the answer


def _agent(desk: _Desk, talk: _Talk, choice: _Choice, options: dict[str, Any]) -> ChatAgent:
    """The agent of this conversation for these switches; raises ConfigError."""
    kind = tuple(choice.values())
    if kind not in talk["agents"]:
        model = {"MODEL": choice["model"]} if choice["model"] and "llm" not in options else {}
        settings = AIForgeSettings.load(**{name: value for name, value in options.items() if name.isupper()})
        agent = ChatAgent(
            memory=choice["memory"],
            memory_k=choice["memory_k"],
            tools=[*registry.resolve(choice["tools"], settings)],
            store=desk["store"],
            conversation_id=desk["current"],
            **{**options, **model},
        )
        desk["trackers"].append(agent.cost_tracker)
        talk["agents"][kind] = agent
    return talk["agents"][kind]


def _answer(talk: _Talk, agent: ChatAgent, prompt: str) -> None:
    """Show an answer while it comes, and keep what was shown."""
    tools: list[str] = []
    failed = False
    try:
        asked = talk["question"]
        coming = agent.resume_events(asked.question_id, prompt) if asked else agent.astream_events(prompt)
        events = cast(Generator[Event, None, None], bridge.iterate(coming))
        with closing(events):  # a page that is left, or stopped, ends the turn
            text = _draw(events, tools)
    except (AIForgeError, ValueError) as error:
        text, note, failed = str(error), "nothing of this is remembered", True
        if not isinstance(error, AIForgeError):  # the question is not open any more
            talk["question"] = None
    else:
        response = agent.last_response
        assert response is not None, "a turn that ends well has a response"
        note = _note(response)
        talk["question"] = response.question
        if response.question is not None:
            text = response.question.text
    if not talk["shown"]:
        talk["title"] = prompt if len(prompt) <= LONGEST_TITLE else f"{prompt[:LONGEST_TITLE]}…"
    talk["shown"] += [
        _Shown(role="user", text=prompt, tools=[], note="", failed=False),
        _Shown(role="assistant", text=text, tools=tools, note=note, failed=failed),
    ]


def _draw(events: Iterator[Event], tools: list[str]) -> str:
    """Draw events as they come; the text of the last round."""
    place, text = st.empty(), ""
    for event in events:
        match event:
            case Token(text=piece):
                text += piece
                place.markdown(f"{text}▌")
            case Preamble():
                place.markdown(text)
                tools.append(text)
                place, text = st.empty(), ""
            case ToolCall(name=name, input=given):
                _tell(tools, f":material/build: `{name}` {given}")
                place = st.empty()
            case ToolResult(name=name, output=output, ok=ok):
                _tell(
                    tools, f":material/{'check' if ok else 'warning'}: `{name}` → {output[:LONGEST_OUTPUT]}"
                )
                place = st.empty()
            case _:
                pass
    place.markdown(text)
    return text


def _tell(tools: list[str], line: str) -> None:
    st.caption(line)
    tools.append(line)


def _invitation(question: PendingQuestion | None) -> str:
    if question is None:
        return "Say something"
    return "Answer the question" if question.kind == "question" else "approved, or why not"


def _note(response: ChatResponse) -> str:
    cost = f"\\${response.cost:.6f}" if response.priced else "price not known"
    tokens = f"{response.input_tokens} + {response.output_tokens} tokens"
    return f"{response.model} · {tokens} · {cost} · {response.latency_ms / 1000:.1f} s"


def _costs(desk: _Desk) -> None:
    """What this session has cost, all its conversations together."""
    total = sum((tracker.total for tracker in desk["trackers"]), Decimal(0))
    by_model: dict[str, float] = {}
    for tracker in desk["trackers"]:
        for model, cost in tracker.by_model.items():
            by_model[model] = by_model.get(model, 0.0) + cost
    tokens = sum(tracker.usage.input_tokens + tracker.usage.output_tokens for tracker in desk["trackers"])
    st.divider()
    left, right = st.columns(2)
    left.metric("Cost", f"${total:.6f}")
    right.metric("Tokens", f"{tokens:,}")
    for model, cost in by_model.items():
        st.caption(f"{model}: \\${cost:.6f}")
    unpriced = sum(tracker.unpriced_calls for tracker in desk["trackers"])
    if unpriced:
        st.caption(f"{unpriced} calls have no known price and are not in it")
