"""Any order of turns, failures, checkouts, compactions and changes of process, against a plain model."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aiforge import ChatAgent, MemoryStore, ProviderError
from aiforge.testing import ScriptedModel, check_messages
from tests.aiforge.chat.support import run

STEP = st.one_of(
    st.tuples(st.just("chat"), st.sampled_from(["buffer", "summary", "none"])),
    st.tuples(st.just("fail"), st.just(0)),
    st.tuples(st.just("leave"), st.just(0)),
    st.tuples(st.just("reopen"), st.sampled_from(["buffer", "summary"])),
    st.tuples(st.just("other"), st.just(0)),
    st.tuples(st.just("checkout"), st.integers(0, 12)),
    st.tuples(st.just("compact"), st.integers(0, 12)),
)


def reply(messages: list[Any]) -> str:
    if "at most 500 words" in str(messages[0].content):
        return "SUMMARY"
    if messages[-1].content == "fail":
        raise ProviderError("no")
    return f"re {messages[-1].content}"


class Run:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.model = ScriptedModel(replies=[reply], repeat_last=True)
        self.agent = self.open("summary")
        self.versions: dict[int, list[str]] = {0: []}
        """What the conversation is at each version, by the plain model."""
        self.last = 0
        self.baseline = 0
        self.turns: list[int] = []

    def open(self, memory: str) -> ChatAgent:
        store, llm = self.store, self.model
        return ChatAgent("s", memory=memory, memory_k=2, llm=llm, store=store, conversation_id="c")

    async def step(self, kind: str, value: Any, number: int) -> None:
        match kind:
            case "chat":
                await self.chat(self.agent, f"m{number}")
            case "other":
                await self.chat(self.open("buffer"), f"o{number}")
            case "reopen":
                self.agent = self.open(value)
            case "fail":
                try:
                    await self.agent.achat("fail")
                except ProviderError:
                    return
                raise AssertionError("the turn did not fail")
            case "leave":
                await self.leave(f"l{number}")
            case "checkout":
                await self.checkout(value)
            case "compact":
                await self.compact(value)

    async def chat(self, agent: ChatAgent, text: str) -> None:
        await agent.achat(text)
        before = self.versions[self.last]
        self.last += 1
        self.versions[self.last] = [*before, text, f"re {text}"]
        sent = self.model.requests[-1]["messages"]
        check_messages(sent)
        words = [message["content"] for message in sent if message["role"] != "system"]
        assert words[-1] == text
        assert words[:-1] == (before[-len(words) + 1 :] if len(words) > 1 else [])

    async def leave(self, text: str) -> None:
        stream = self.agent.chat_stream(text)
        seen = await anext(stream)
        await stream.aclose()
        before = self.versions[self.last]
        self.last += 1
        self.versions[self.last] = [*before, text, seen]

    async def checkout(self, version: int) -> None:
        try:
            await self.agent.acheckout(version)
        except ValueError:
            assert version not in self.versions
        else:
            self.last += 1
            self.versions[self.last] = self.versions[version]

    async def compact(self, version: int) -> None:
        try:
            await self.agent.acompact(version)
        except ValueError as error:
            if version in self.versions and "goes back" not in str(error):
                raise
        else:
            self.baseline = max(self.baseline, version)
            self.versions = {n: texts for n, texts in self.versions.items() if n >= self.baseline}

    async def check(self) -> None:
        history = [message["content"] for message in await self.agent.ahistory()]
        assert history == self.versions[self.last]
        turns = [info.turn for info in await self.agent.aversions() if info.turn is not None]
        assert len(set(turns)) == len(turns)
        for version, texts in self.versions.items():
            difference = await self.agent.adiff(self.baseline, version)
            base = self.versions[self.baseline]
            kept = base[: len(base) - len(difference.removed)]
            assert kept + [message["content"] for message in difference.added] == texts


@given(st.lists(STEP, max_size=14))
@settings(max_examples=30)
def test_history_is_what_a_plain_model_says(steps: list[tuple[str, Any]]) -> None:
    async def scenario() -> None:
        machine = Run()
        for number, (kind, value) in enumerate(steps):
            await machine.step(kind, value, number)
            await machine.check()

    run(scenario())
