"""What ids and keys look like, as patterns and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ID: Final = r"^(?:\.{0,2}[A-Za-z0-9_-]|\.{3})[A-Za-z0-9._-]*$"
"""Neither `.` nor `..`, which a URL's reader takes for the way to another page."""
TURN: Final = r"^[0-9]{2}[0-9a-f]{20}$"
BATCH: Final = r"^batch_[0-9]{2}[0-9a-f]{20}$"
FILE: Final = r"^file-[0-9]{2}[0-9a-f]{20}$"
SCHEDULE: Final = r"^sched_[0-9]{2}[0-9a-f]{20}$"
KEY: Final = r"^[\x20-\x7e\xa1-\xac\xae-\xff]{1,255}$"
"""What can be printed of the characters that a header can hold."""

IN_WORDS: Final[Mapping[str, str]] = {
    ID: "1 to 128 characters of A-Z a-z 0-9 . _ - and not only one dot or two",
    TURN: "a turn's id, such as 171f0a93c2d4e5b6a7f809",
    BATCH: "a batch's id, such as batch_171f0a93c2d4e5b6a7f809",
    FILE: "a file's id, such as file-171f0a93c2d4e5b6a7f809",
    SCHEDULE: "a schedule's id, such as sched_171f0a93c2d4e5b6a7f809",
    KEY: "1 to 255 printable characters",
}
