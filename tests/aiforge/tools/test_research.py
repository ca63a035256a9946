"""The search tools, against servers that speak the formats of their services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aiforge import ConfigError
from aiforge.core.settings import AIForgeSettings
from aiforge.tools import search
from aiforge.tools.registry import resolve
from aiforge.tools.search import Finding, Search, register_search
from tests.aiforge.tools.support import Desk, site

FEED = """<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
  <title>arXiv Query</title>
  <entry>
    <id>http://arxiv.org/abs/2101.00001v1</id>
    <published>2021-01-04T18:00:00Z</published>
    <title>Phase stability of
      alloys</title>
    <summary>  We study phases. </summary>
    <author><name>A. Curie</name></author><author><name>B. Noether</name></author>
    <link href="http://arxiv.org/abs/2101.00001v1" rel="alternate"/>
  </entry>
</feed>"""
RECORDS = [
    {
        "osti_id": "1",
        "title": "Alloys in reactors",
        "authors": ["Fermi, E."],
        "publication_date": "2020-05-01T04:00:00Z",
        "description": "<p>A report.</p>",
        "links": [
            {"rel": "citation", "href": "https://osti.test/biblio/1"},
            {"rel": "fulltext", "href": "https://osti.test/servlets/purl/1"},
        ],
    },
    {"title": "No more known", "doi": "10.1/x"},
]
RESULTS = [{"title": "Alloy", "url": "https://a.test/", "content": "A <b>mixture</b> of metals."}] * 30
BRAVE = {"web": {"results": [{"title": "Alloy", "url": "https://b.test/", "description": "Of metals."}]}}


class Service:
    """All services at one address; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[web.Request] = []
        self.bodies: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        if request.path in self.bodies:
            return web.Response(text=self.bodies[request.path])
        match request.path:
            case "/arxiv":
                return web.Response(text=FEED, content_type="application/atom+xml")
            case "/osti":
                return web.json_response(RECORDS)
            case "/searxng":
                return web.json_response({"query": "q", "results": RESULTS})
            case "/brave":
                return web.json_response(BRAVE)
        return web.Response(status=429, reason="Too Many Requests")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with site(service.answer) as address:
        yield address


@pytest.fixture
def desk(tmp_path: Path, url: str) -> Desk:
    places = {"WEB_SEARCH_URL": f"{url}/searxng", "ARXIV_URL": f"{url}/arxiv", "OSTI_URL": f"{url}/osti"}
    return Desk(tmp_path, **places)


def test_arxiv(desk: Desk, service: Service) -> None:
    assert desk.use("run_arxiv_search", query="alloy phases", count=3) == (
        "1. Phase stability of alloys\n"
        "A. Curie, B. Noether · 2021-01-04 · http://arxiv.org/abs/2101.00001v1\n"
        "We study phases."
    )
    assert dict(service.asked[0].query) == {
        "search_query": "all:alloy phases",
        "start": "0",
        "max_results": "3",
    }


def test_osti(desk: Desk, service: Service) -> None:
    assert desk.use("run_osti_search", query="alloys") == (
        "1. Alloys in reactors\n"
        "Fermi, E. · 2020-05-01 · https://osti.test/servlets/purl/1\n"
        "A report.\n\n"
        "2. No more known\n10.1/x"
    )
    assert dict(service.asked[0].query) == {"q": "alloys", "rows": "5"}


def test_the_web(desk: Desk, service: Service) -> None:
    found = desk.use("run_web_search", query="alloy", count=2)
    assert found.startswith("1. Alloy\nhttps://a.test/\nA mixture of metals.\n\n2. ")
    assert "3. " not in found
    assert service.asked[0].query["format"] == "json"


def test_the_web_by_a_service_with_a_key(tmp_path: Path, url: str, service: Service) -> None:
    desk = Desk(tmp_path, WEB_SEARCH="brave", WEB_SEARCH_URL=f"{url}/brave", WEB_SEARCH_API_KEY="canary")
    assert desk.use("run_web_search", query="alloy") == "1. Alloy\nhttps://b.test/\nOf metals."
    assert service.asked[0].headers["X-Subscription-Token"] == "canary"
    assert "canary" not in repr(desk.settings)


@pytest.mark.parametrize(("source", "path"), [("web", "/searxng"), ("arxiv", "/arxiv"), ("osti", "/osti")])
def test_research_asks_the_source_that_is_named(desk: Desk, service: Service, source: str, path: str) -> None:
    assert desk.use("research", query="alloy", source=source).startswith("1. ")
    assert service.asked[0].path == path


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"query": " "}, "query"),
        ({"query": "a", "count": 0}, "count"),
        ({"query": "a", "count": 21}, "count"),
        ({"query": "a", "source": "news"}, "unknown source"),
    ],
)
def test_arguments_that_are_wrong(desk: Desk, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        desk.use("research", **arguments)


@pytest.mark.parametrize(
    ("tool", "body", "problem"),
    [
        ("run_web_search", "<html>", "not answer in JSON"),
        ("run_web_search", "{}", "no list of results"),
        ("run_osti_search", '{"error": 1}', "no list of results"),
        ("run_arxiv_search", "{}", "not answer with a feed"),
        ("run_arxiv_search", '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', "defines entities"),
        ("run_arxiv_search", '<feed xmlns="http://www.w3.org/2005/Atom"/>', None),
    ],
)
def test_an_answer_that_is_none(
    desk: Desk, service: Service, tool: str, body: str, problem: str | None
) -> None:
    service.bodies = dict.fromkeys(("/searxng", "/osti", "/arxiv"), body)
    if problem is None:
        assert desk.use(tool, query="a") == "(nothing)"
        return
    with pytest.raises(ValueError, match=problem):
        desk.use(tool, query="a")


def test_a_service_that_refuses(tmp_path: Path, url: str) -> None:
    desk = Desk(tmp_path, OSTI_URL=f"{url}/busy")
    with pytest.raises(ValueError, match="answers 429 Too Many Requests"):
        desk.use("run_osti_search", query="a")


def test_a_back_end_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def factory(settings: AIForgeSettings) -> Search:
        async def find(query: str, count: int) -> list[Finding]:
            return [Finding(title=query, url="house://1")]

        return find

    monkeypatch.setattr(search, "_registered", {})
    register_search("house", factory)
    assert Desk(tmp_path, WEB_SEARCH="house").use("run_web_search", query="alloy") == "1. alloy\nhouse://1"
    with pytest.raises(ConfigError, match="ships"):
        register_search("brave", factory)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"WEB_SEARCH": "gogle"}, "unknown WEB_SEARCH 'gogle'"),
        ({}, "WEB_SEARCH_URL"),
        ({"WEB_SEARCH": "brave"}, "WEB_SEARCH_API_KEY"),
    ],
)
def test_a_setting_that_is_missing(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolve(["run_web_search"], AIForgeSettings.load(WEB_TOOLS=True, **settings))
