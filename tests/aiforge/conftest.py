"""What the library keeps for the life of a process must not pass from test to test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiforge.core import windows


@pytest.fixture(autouse=True)
def _no_window_of_an_earlier_endpoint() -> Iterator[None]:
    """A later test's server can have the port of an earlier one's."""
    windows.search_of.cache_clear()
    yield
    windows.search_of.cache_clear()
