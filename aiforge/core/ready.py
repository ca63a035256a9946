"""How a process says that it is ready: one line of JSON, to the descriptor that its environment names."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Final

READY_FD: Final = "AIFORGE_READY_FD"


def tell_ready(**what: object) -> None:
    """Tell whoever started this process and waits for it; once, so that no child says it again."""
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with suppress(OSError), os.fdopen(int(descriptor), "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(what) + "\n")
