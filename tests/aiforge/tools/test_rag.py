"""Documents that are searched by their words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import create_retriever_tool

from aiforge import ChatAgent, ConfigError
from aiforge.core.settings import AIForgeSettings
from aiforge.testing import ScriptedModel, ToolCall
from aiforge.tools import rag, registry
from aiforge.tools.rag import LONGEST_PASSAGE, Documents, parts
from tests.aiforge.tools.test_workspace import pdf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "documents"
    (root / "rules").mkdir(parents=True)
    (root / "hours.md").write_text(
        "# Opening hours\n\nWe open at nine.\n\n# Holidays\n\nClosed on public holidays.\n"
    )
    (root / "rules" / "returns.txt").write_text(
        "Goods can be returned within thirty days, holidays or not.\n"
    )
    (root / "manual.pdf").write_bytes(pdf("Press the lever twice"))
    (root / "code.py").write_text("holidays = 1")
    return root


def sources(result: str) -> list[str]:
    return [line.partition("] ")[2] for line in result.splitlines() if line.startswith("[")]


class TestSearching:
    def test_the_best_passage_comes_first_with_its_place(self, folder: Path) -> None:
        found = Documents(folder).search("Are you closed on public HOLIDAYS?")
        assert sources(found) == ["hours.md, line 5", "rules/returns.txt, line 1"]
        assert "Closed on public holidays." in found
        assert "We open at nine" not in found

    def test_a_pdf_has_pages(self, folder: Path) -> None:
        assert sources(Documents(folder).search("lever")) == ["manual.pdf, page 1"]

    def test_nothing_is_found_where_no_word_is_shared(self, folder: Path) -> None:
        assert Documents(folder).search("vacuum") == "nothing found"
        with pytest.raises(ValueError, match="no words"):
            Documents(folder).search(" ?! ")
        for count in (0, 21):
            with pytest.raises(ValueError, match="count"):
                Documents(folder).search("lever", count)

    def test_a_rare_word_counts_more_than_a_common_one_and_a_short_passage_more_than_a_long_one(
        self, tmp_path: Path
    ) -> None:
        for n in range(8):
            (tmp_path / f"{n}.txt").write_text(f"common words everywhere {n}")
        (tmp_path / "rare.txt").write_text("the gasket")
        (tmp_path / "long.txt").write_text("the gasket " + "and so on " * 10)
        assert sources(Documents(tmp_path).search("common gasket", 3))[:2] == [
            "rare.txt, line 1",
            "long.txt, line 1",
        ]

    def test_accents_forms_and_scripts(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("Größe und Café")
        (tmp_path / "b.txt").write_text("営業時間は九時からです")
        documents = Documents(tmp_path)
        assert sources(documents.search("GRÖSSE CAFE\u0301")) == ["a.txt, line 1"]
        assert sources(documents.search("営業時間")) == ["b.txt, line 1"]


class TestFreshness:
    def test_what_is_new_changed_or_gone_is_noticed(self, folder: Path) -> None:
        documents = Documents(folder)
        assert sources(documents.search("lever")) == ["manual.pdf, page 1"]
        (folder / "new.md").write_text("Another lever")
        (folder / "hours.md").write_text("We never close")
        (folder / "manual.pdf").unlink()
        assert sources(documents.search("lever")) == ["new.md, line 1"]
        assert sources(documents.search("close")) == ["hours.md, line 1"]

    def test_only_what_changed_is_read_again(self, folder: Path) -> None:
        documents = Documents(folder)
        documents.search("lever")
        path = folder / "hours.md"
        stamp = path.stat()
        path.write_text(path.read_text().replace("nine", "five"))
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert documents.search("five") == "nothing found"
        os.utime(path)
        assert sources(documents.search("five")) == ["hours.md, line 1"]

    def test_what_cannot_be_read_is_named(self, folder: Path) -> None:
        (folder / "broken.pdf").write_bytes(b"%PDF-1.4 no more")
        (folder / "latin.txt").write_bytes("Größe".encode("latin-1"))
        documents = Documents(folder)
        assert documents.search("lever").endswith("(not readable: broken.pdf, latin.txt)")
        (folder / "broken.pdf").unlink()
        assert documents.search("lever").endswith("(not readable: latin.txt)")
        (folder / "latin.txt").unlink()
        assert documents.search("lever").endswith("twice")

    def test_what_is_too_much_is_said(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rag, "MOST_FILES", 2)
        assert Documents(folder).search("lever").endswith("(only the first 2 files are searched; 1 are not)")

    def test_links_lead_nowhere(self, folder: Path) -> None:
        secret = folder.parent / "secret"
        secret.mkdir()
        (secret / "s.txt").write_text("canary")
        (folder / "link.txt").symlink_to(secret / "s.txt")
        (folder / "linked").symlink_to(secret)
        assert Documents(folder).search("canary") == "nothing found"

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="not there"):
            Documents(tmp_path / "gone").search("lever")


class TestPassages:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "\n\n",
            "one",
            "# A\n\n# B\n\ntext\n",
            "x" * 10_000,
            "word " * 3_000,
            "a\n\n" * 3_000,
            "# h\n" * 900,
        ],
    )
    def test_nothing_is_lost_and_none_is_too_long(self, text: str) -> None:
        found = list(parts(text))
        assert "".join("".join(part.split()) for _, part in found) == "".join(text.split())
        assert all(0 < len(part) <= LONGEST_PASSAGE for _, part in found)
        lines = text.splitlines()
        assert all(part.splitlines()[0][:20] in lines[line - 1] for line, part in found)

    def test_headings_stay_with_what_they_are_above(self) -> None:
        text = "# Book\n\n## One\n\nfirst\n\n## Two\nsecond\n"
        assert list(parts(text)) == [(1, "# Book\n\n## One\n\nfirst"), (7, "## Two\nsecond")]


class TestOffered:
    def test_it_is_off_unless_a_folder_is_named(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="switched off; the setting RAG_FOLDER offers it"):
            registry.resolve(["search_documents"], AIForgeSettings.load())
        settings = AIForgeSettings.load(RAG_FOLDER=folder)
        assert registry.names(settings) - registry.names() == {"search_documents"}
        (tool,) = registry.resolve(["search_documents"], settings)
        assert tool.name == "search_documents"

    def test_a_folder_is_read_once_for_all_turns(self, folder: Path) -> None:
        settings = AIForgeSettings.load(RAG_FOLDER=folder)
        first, second = (rag.tools(settings)[0] for _ in range(2))
        assert first.function == second.function

    def test_an_agent_uses_it(self, folder: Path) -> None:
        model = ScriptedModel(
            replies=[ToolCall("search_documents", {"query": "lever", "count": 1}), "Twice."]
        )
        tools = registry.resolve(["search_documents"], AIForgeSettings.load(RAG_FOLDER=folder))
        response = ChatAgent(llm=model, tools=tools).chat("How often?")
        assert response.tool_calls[0].output == "[1] manual.pdf, page 1\nPress the lever twice"


class Shelf(BaseRetriever):
    """A LangChain retriever that knows one thing."""

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document(page_content=f"about {query}")]


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (Shelf(), "Shelf"),
        (Shelf(name="my shelf"), "my_shelf"),
        (create_retriever_tool(Shelf(), "look_up", "Looks things up."), "look_up"),
    ],
)
def test_a_langchain_retriever_is_a_tool(tool: Any, name: str) -> None:
    model = ScriptedModel(replies=[ToolCall(name, {"query": "levers"}), "Done."])
    agent = ChatAgent(llm=model, tools=[tool])
    assert agent.chat("Look").tool_calls[0].output == "about levers"
    assert model.requests[0]["tools"][0]["function"]["name"] == name
    assert agent.tools == [tool]
