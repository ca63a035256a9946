"""The data folder: made and tried before anything is put into it."""

from __future__ import annotations

import os
from pathlib import Path

from aiforge.cli.errors import SetupError


def make_data_folder(path: Path) -> None:
    """Make the folder and what stands in it; raises SetupError when it cannot be made or written."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (path / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise SetupError(f"AIFORGE_DATA_DIR: {path} cannot be used: {error.strerror}") from None
    for folder in (path, path / "logs"):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SetupError(f"AIFORGE_DATA_DIR: {folder} is not writable")
