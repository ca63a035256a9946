"""What ids and keys look like, as patterns and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiforge.core import names

ID: Final = r"^(?:\.{0,2}[A-Za-z0-9_-]|\.{3})[A-Za-z0-9._-]*$"
"""Neither `.` nor `..`, which a URL's reader takes for the way to another page."""
TURN: Final = rf"^{names.TURN_ID}$"
BATCH: Final = rf"^{names.BATCH_ID}$"
FILE: Final = rf"^{names.FILE_ID}$"
SCHEDULE: Final = rf"^{names.SCHEDULE_ID}$"
KEY: Final = r"^[\x20-\x7e\xa1-\xac\xae-\xff]{1,255}$"
"""What can be printed of the characters that a header can hold."""

IN_WORDS: Final[Mapping[str, str]] = {
    ID: names.CONVERSATION_WORDS,
    TURN: names.TURN_WORDS,
    BATCH: names.BATCH_WORDS,
    FILE: names.FILE_WORDS,
    SCHEDULE: names.SCHEDULE_WORDS,
    KEY: "1 to 255 printable characters",
}
