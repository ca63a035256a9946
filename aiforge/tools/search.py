"""Where searches go: a general web search, arXiv and OSTI, and whatever else is registered.

A back end is `async search(query, count) -> list[Finding]`, made from the settings by a factory. Those
here ask with GET and read JSON or Atom; their hosts are defaults of settings and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias
from xml.etree import ElementTree as Xml

import msgspec

from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError
from aiforge.tools.fetch import fetch

LARGEST_ANSWER: Final = 4 * 1024 * 1024
BRAVE_URL: Final = "https://api.search.brave.com/res/v1/web/search"

_ATOM: Final = "{http://www.w3.org/2005/Atom}"
_MARKUP: Final = re.compile(r"<[^>]*>")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found."""

    title: str
    url: str
    text: str = ""
    authors: tuple[str, ...] = ()
    date: str = ""


Search: TypeAlias = Callable[[str, int], Awaitable[list[Finding]]]
"""Finds at most so many; raises ValueError, with a text for the model, when it cannot."""
SearchFactory: TypeAlias = Callable[[AIForgeSettings], Search]

_registered: Final[dict[str, SearchFactory]] = {}


def register_search(name: str, factory: SearchFactory) -> None:
    """Make `name` a back end that `WEB_SEARCH` can name; raises ConfigError on one that ships."""
    if name in _SHIPPED:
        raise ConfigError(f"search back end {name!r} ships with aiforge")
    _registered[name] = factory


def web_search(settings: AIForgeSettings) -> Search:
    """The back end of `WEB_SEARCH`; raises ConfigError on one that is unknown or lacks a setting."""
    known = {**_SHIPPED, **_registered}
    if settings.WEB_SEARCH not in known:
        raise ConfigError(f"unknown WEB_SEARCH {settings.WEB_SEARCH!r} (one of {', '.join(known)})")
    return known[settings.WEB_SEARCH](settings)


def searxng(settings: AIForgeSettings) -> Search:
    """A SearXNG instance that answers in JSON."""
    if settings.WEB_SEARCH_URL is None:
        raise ConfigError("WEB_SEARCH_URL must say where SearXNG is, such as http://127.0.0.1:8080/search")
    url = settings.WEB_SEARCH_URL

    async def search(query: str, count: int) -> list[Finding]:
        answer = _json(await _get(settings, url, {"q": query, "format": "json"}))
        return [
            Finding(title=_text(row, "title"), url=_text(row, "url"), text=_text(row, "content"))
            for row in _rows(answer.get("results") if isinstance(answer, dict) else None)[:count]
        ]

    return search


def brave(settings: AIForgeSettings) -> Search:
    """Brave's search service, which needs a key."""
    if settings.WEB_SEARCH_API_KEY is None:
        raise ConfigError("WEB_SEARCH_API_KEY must hold the key of the search service")
    url = settings.WEB_SEARCH_URL or BRAVE_URL
    headers = {"X-Subscription-Token": settings.WEB_SEARCH_API_KEY.get_secret_value()}

    async def search(query: str, count: int) -> list[Finding]:
        answer = _json(await _get(settings, url, {"q": query, "count": str(count)}, headers))
        web = answer.get("web") if isinstance(answer, dict) else None
        return [
            Finding(title=_text(row, "title"), url=_text(row, "url"), text=_text(row, "description"))
            for row in _rows(web.get("results") if isinstance(web, dict) else None)[:count]
        ]

    return search


def arxiv(settings: AIForgeSettings) -> Search:
    """Preprints of arXiv, through its Atom feed."""

    async def search(query: str, count: int) -> list[Finding]:
        wanted = {"search_query": f"all:{query}", "start": "0", "max_results": str(count)}
        feed = _atom(await _get(settings, settings.ARXIV_URL, wanted))
        return [_preprint(entry) for entry in feed.iter(f"{_ATOM}entry")][:count]

    return search


def osti(settings: AIForgeSettings) -> Search:
    """Records of OSTI, the repository of the US Department of Energy."""

    async def search(query: str, count: int) -> list[Finding]:
        answer = _json(await _get(settings, settings.OSTI_URL, {"q": query, "rows": str(count)}))
        return [_record(row) for row in _rows(answer)[:count]]

    return search


_SHIPPED: Final[dict[str, SearchFactory]] = {"searxng": searxng, "brave": brave}


async def _get(
    settings: AIForgeSettings, url: str, params: dict[str, str], headers: dict[str, str] | None = None
) -> bytes:
    """Where it goes is a setting, so private addresses are fine here."""
    return await fetch(
        url,
        most=LARGEST_ANSWER,
        seconds=settings.TOOL_TIMEOUT,
        private=True,
        params=params,
        headers={"Accept": "application/json, application/atom+xml", **(headers or {})},
    )


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise ValueError("the search service did not answer in JSON") from None


def _atom(body: bytes) -> Xml.Element:
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise ValueError("the search service's answer defines entities, which no feed needs")
    try:
        return Xml.fromstring(body)  # noqa: S314  # what makes this unsafe was refused above
    except Xml.ParseError:
        raise ValueError("the search service did not answer with a feed") from None


def _rows(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ValueError("the search service's answer has no list of results")
    return [row for row in value if isinstance(row, dict)]


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return " ".join(_MARKUP.sub("", value).split()) if isinstance(value, str) else ""


def _preprint(entry: Xml.Element) -> Finding:
    def said(name: str) -> str:
        return " ".join((entry.findtext(f"{_ATOM}{name}") or "").split())

    authors = [author.findtext(f"{_ATOM}name") or "" for author in entry.iter(f"{_ATOM}author")]
    return Finding(
        title=said("title"),
        url=said("id"),
        text=said("summary"),
        authors=tuple(authors),
        date=said("published")[:10],
    )


def _record(row: dict[str, Any]) -> Finding:
    links = {link.get("rel"): link.get("href") for link in row.get("links") or () if isinstance(link, dict)}
    url = links.get("fulltext") or links.get("citation") or _text(row, "doi")
    authors = [author for author in row.get("authors") or () if isinstance(author, str)]
    return Finding(
        title=_text(row, "title"),
        url=url if isinstance(url, str) else "",
        text=_text(row, "description"),
        authors=tuple(authors),
        date=_text(row, "publication_date")[:10],
    )
