"""Settings: where they come from, in which order, and that what is kept is never stale."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aiforge import ChatAgent
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def model() -> str | None:
    return AIForgeSettings.load().MODEL


def test_the_order_of_the_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model() is None
    (folder / "aiforge.yaml").write_text("model: from-yaml")
    assert model() == "from-yaml"
    (folder / ".env").write_text("AIFORGE_MODEL=from-dotenv\n")
    assert model() == "from-dotenv"
    monkeypatch.setenv("AIFORGE_MODEL", "from-environment")
    assert model() == "from-environment"
    assert AIForgeSettings.load(MODEL="from-keyword").MODEL == "from-keyword"
    assert AIForgeSettings.load().MODEL == AIForgeSettings().MODEL == "from-environment"
    monkeypatch.delenv("AIFORGE_MODEL")
    (folder / ".env").unlink()
    (folder / "aiforge.yaml").unlink()
    assert model() is None


def test_a_file_that_changed_within_its_time_of_change_is_noticed(folder: Path) -> None:
    path = folder / "aiforge.yaml"
    for text in ("one", "two"):
        path.write_text(f"MODEL: {text}")
        os.utime(path, ns=(1, 1))
        assert model() == text


def test_another_folder_has_other_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "aiforge.yaml").write_text("MODEL: here")
    assert model() == "here"
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    assert model() is None


def test_the_provider_s_own_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    kept = AIForgeSettings.load().OPENAI_API_KEY
    assert kept is not None
    assert kept.get_secret_value() == "theirs"
    monkeypatch.setenv("AIFORGE_OPENAI_API_KEY", "ours")
    kept = AIForgeSettings.load().OPENAI_API_KEY
    assert kept is not None
    assert kept.get_secret_value() == "ours"
    own = AIForgeSettings.load(OPENAI_API_KEY="keyword")
    assert own.OPENAI_API_KEY is not None
    assert own.OPENAI_API_KEY.get_secret_value() == "keyword"
    assert "keyword" not in repr(own)


def test_an_unknown_variable_warns_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIFORGE_MODLE", "x")
    for _ in range(2):
        with pytest.warns(UserWarning, match="AIFORGE_MODLE is not a setting of aiforge; did you mean"):
            AIForgeSettings.load()


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda folder: (folder / "aiforge.yaml").write_text("MODLE: x"), "MODLE"),
        (lambda folder: (folder / "aiforge.yaml").write_text("TEMPERATURE: hot"), "TEMPERATURE"),
        (lambda folder: (folder / "aiforge.yaml").write_text("[1]"), "mapping"),
        (lambda folder: (folder / "aiforge.yaml").write_text("chat: {sytem_prompt: x}"), "chat.sytem_prompt"),
        (lambda folder: (folder / ".env").write_text("AIFORGE_MAX_RETRIES=many"), "MAX_RETRIES"),
    ],
)
def test_what_is_wrong_is_named_until_it_is_right(
    folder: Path, write: Callable[[Path], object], named: str
) -> None:
    write(folder)
    for _ in range(2):
        with pytest.raises(ConfigError, match=named):
            AIForgeSettings.load()
    for path in folder.iterdir():
        path.unlink()
    assert model() is None


def test_one_caller_s_settings_are_not_another_s() -> None:
    assert AIForgeSettings.load(TEMPERATURE=0.1).TEMPERATURE == 0.1
    assert AIForgeSettings.load().TEMPERATURE is None


def test_a_constructor_takes_less_than_a_millisecond_after_the_first(folder: Path) -> None:
    (folder / "aiforge.yaml").write_text("MODEL: gpt-4o-mini")
    ChatAgent(OPENAI_API_KEY="key")
    fastest = 1.0
    for number in range(50):
        started = time.perf_counter()
        ChatAgent(OPENAI_API_KEY=f"key-{number}", TEMPERATURE=number / 50)
        fastest = min(fastest, time.perf_counter() - started)
    assert fastest < 0.001


NAMES = ("OPENAI_API_KEY", "AIFORGE_OPENAI_API_KEY")


@pytest.mark.parametrize("in_environment", NAMES)
@pytest.mark.parametrize("in_dotenv", NAMES)
def test_sources_are_compared_by_setting_whichever_name_they_use(
    in_environment: str, in_dotenv: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key() -> str | None:
        found = AIForgeSettings.load().OPENAI_API_KEY
        return None if found is None else found.get_secret_value()

    (folder / "aiforge.yaml").write_text("openai_api_key: yaml\nOPENAI_BASE_URL: http://yaml")
    assert key() == "yaml"
    (folder / ".env").write_text(f"{in_dotenv}=dotenv\nOPENAI_BASE_URL=http://dotenv\n")
    assert key() == "dotenv"
    assert AIForgeSettings.load().OPENAI_BASE_URL == "http://dotenv"
    monkeypatch.setenv(in_environment, "environment")
    assert key() == "environment"
    own = AIForgeSettings.load(OPENAI_API_KEY="keyword").OPENAI_API_KEY
    assert own is not None
    assert own.get_secret_value() == "keyword"


def test_the_constructor_itself_takes_no_other_way(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"TEMPRATURE.*did you mean TEMPERATURE"):
        AIForgeSettings(TEMPRATURE=1)
    with pytest.raises(ConfigError, match="AIFORGE_TEMPERATURE"):
        AIForgeSettings(TEMPERATURE="hot")
    (folder / "aiforge.yaml").write_text("MODEL: from-yaml")
    assert AIForgeSettings().MODEL == "from-yaml"


@pytest.mark.parametrize("name", ["AIFORGE_MODELS", "AIFORGE_COMMANDS", "AIFORGE_MCP_SERVERS"])
def test_what_must_be_json_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "cat,ls")
    with pytest.raises(ConfigError, match=f"{name}: must be written as JSON"):
        AIForgeSettings.load()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (".env", b"AIFORGE_MODEL=caf\xe9\n", r"\.env cannot be read"),
        ("aiforge.yaml", b"MODEL: caf\xe9\n", "aiforge.yaml is not valid YAML"),
        ("aiforge.yaml", b"MODEL: 2026-13-41\n", "aiforge.yaml is not valid YAML"),
        ("aiforge.yaml", b"chat: {1: 2}", "chat must hold a mapping of setting names"),
        ("aiforge.yaml", b"MODEL: '  '", "AIFORGE_MODEL: must not be blank"),
        (".env", b"AIFORGE_MODEL='  '", "AIFORGE_MODEL: must not be blank"),
    ],
)
def test_a_broken_file_is_one_clear_error(folder: Path, name: str, content: bytes, told: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        AIForgeSettings.load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["chat", "worker", "api"])
def test_an_empty_section_says_nothing(folder: Path, section: str) -> None:
    (folder / "aiforge.yaml").write_text(f"{section}:\n")
    assert model() is None


def test_an_unknown_name_in_a_dotenv_file_warns(folder: Path) -> None:
    (folder / ".env").write_text("AIFORGE_TEMPRATURE=1\nANYBODY_ELSE=2\n")
    with pytest.warns(UserWarning, match=r"^\.env: AIFORGE_TEMPRATURE .* did you mean AIFORGE_TEMPERATURE"):
        AIForgeSettings.load()
