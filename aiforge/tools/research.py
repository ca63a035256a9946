"""The search tools: research over all sources, and one tool for each of them."""

from __future__ import annotations

from typing import Final

from aiforge.core.settings import AIForgeSettings
from aiforge.tools.search import Finding, Search, arxiv, osti, web_search
from aiforge.tools.tool import AsyncTool, ShippedTool, parameters

MOST_FINDINGS: Final = 20
LONGEST_TEXT: Final = 1_200
"""Characters of a finding's text that the model reads."""

_COUNT: Final = {"type": "integer", "description": f"how many to find, up to {MOST_FINDINGS}; 5 if left out"}
_SOURCES: Final = ("web", "arxiv", "osti")


def tools(settings: AIForgeSettings) -> tuple[ShippedTool, ...]:
    """The tools over the search back ends of these settings; raises ConfigError on a wrong one."""
    searches = Searches({"web": web_search(settings), "arxiv": arxiv(settings), "osti": osti(settings)})
    query = {"type": "string", "description": "what to look for, as one would type it"}
    return (
        AsyncTool(
            "research",
            "Search the web, arXiv (preprints) or OSTI (energy research) and read what was found.",
            parameters(
                ["query"], query=query, source={"type": "string", "enum": list(_SOURCES)}, count=_COUNT
            ),
            searches.research,
        ),
        AsyncTool(
            "run_web_search",
            "Search the web.",
            parameters(["query"], query=query, count=_COUNT),
            searches.web,
        ),
        AsyncTool(
            "run_arxiv_search",
            "Search the preprints of arXiv.",
            parameters(["query"], query=query, count=_COUNT),
            searches.arxiv,
        ),
        AsyncTool(
            "run_osti_search",
            "Search the energy research records of OSTI.",
            parameters(["query"], query=query, count=_COUNT),
            searches.osti,
        ),
    )


class Searches:
    """Every method raises ValueError with a text for the model."""

    def __init__(self, sources: dict[str, Search]) -> None:
        self._sources = sources

    async def research(self, query: str, source: str = "web", count: int = 5) -> str:
        if source not in self._sources:
            raise ValueError(f"unknown source {source!r}; there are {', '.join(self._sources)}")
        if not isinstance(query, str) or not query.strip():
            raise ValueError("query must not be empty")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_FINDINGS:
            raise ValueError(f"count must be from 1 to {MOST_FINDINGS}")
        found = await self._sources[source](query.strip(), count)
        return (
            "\n\n".join(_readable(number, finding) for number, finding in enumerate(found, 1)) or "(nothing)"
        )

    async def web(self, query: str, count: int = 5) -> str:
        return await self.research(query, "web", count)

    async def arxiv(self, query: str, count: int = 5) -> str:
        return await self.research(query, "arxiv", count)

    async def osti(self, query: str, count: int = 5) -> str:
        return await self.research(query, "osti", count)


def _readable(number: int, finding: Finding) -> str:
    by = ", ".join(finding.authors)
    origin = " · ".join(part for part in (by, finding.date, finding.url) if part)
    text = finding.text if len(finding.text) <= LONGEST_TEXT else f"{finding.text[:LONGEST_TEXT]}…"
    return "\n".join(line for line in (f"{number}. {finding.title}", origin, text) if line)
