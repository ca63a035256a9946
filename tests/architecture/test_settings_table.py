"""docs/SETTINGS.md says what the settings classes say."""

from __future__ import annotations

import re

import pytest
from pydantic import Field, SecretStr

from aiforge.cli import settings_table
from aiforge.core.settings import SERVICE_NAMES, AIForgeSettings, Settings
from aiforge.core.types import ConfigError
from tests.architecture.test_rules import ROOT

NOT_SET_BY_PEOPLE = {"READY_FD"}


def test_the_document_is_current() -> None:
    """`make settings` writes it."""
    assert (ROOT / "docs/SETTINGS.md").read_text(encoding="utf-8") == settings_table.table()


def test_no_setting_is_missing_and_each_has_a_meaning() -> None:
    rows = re.findall(
        r"^\| `AIFORGE_(\w+)` \| (.+) \| (.+) \| (.+) \|$", settings_table.table(), re.MULTILINE
    )
    assert {name for name, *_ in rows} == (
        SERVICE_NAMES | set(AIForgeSettings.model_fields)
    ) - NOT_SET_BY_PEOPLE
    assert all(len(meaning) > 10 and meaning.endswith(".") for *_, meaning in rows)


def test_a_setting_without_a_word_on_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings_table.SECTIONS, "Silent", "Silent")
    with pytest.raises(ConfigError, match=r"Silent\.wordless has no description"):
        settings_table.table((__name__,))


class Silent(Settings):
    """One of these fields says nothing."""

    told: int = Field(default=1, ge=0)
    """It is told."""
    wordless: SecretStr = SecretStr("canary")
