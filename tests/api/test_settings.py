"""Where settings come from: `api:` first, what is shared also from `worker:` or the top level."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiforge.core.types import ConfigError
from api.settings import load

YAML = """
provider: offline
namespace: top
lease_seconds: 20
worker:
  namespace: worker
  max_attempts: 5
  concurrency: 7
api:
  api_port: 8080
  {extra}
"""


@pytest.mark.parametrize(("extra", "namespace"), [("", "worker"), ("namespace: api", "api")])
def test_shared_names_fall_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, namespace: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("aiforge.yaml").write_text(YAML.format(extra=extra))
    settings = load()

    assert settings.namespace == namespace
    assert (settings.api_port, settings.lease_seconds, settings.max_attempts) == (8080, 20, 5)
    monkeypatch.setenv("AIFORGE_NAMESPACE", "environment")
    assert load().namespace == "environment"


def test_an_unknown_key_of_the_section_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("aiforge.yaml").write_text("api:\n  api_prot: 1\n")
    with pytest.raises(ConfigError, match=r"api_prot.*API_PORT"):
        load()
