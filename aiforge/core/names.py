"""Names and ids as callers write them: one rule for the service, its client and the command line."""

from __future__ import annotations

import re
from typing import Final

CONVERSATION_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}")
"""Neither `.` nor `..`, which a URL's reader takes for the way to another page."""
CONVERSATION_WORDS: Final = "1 to 128 characters of A-Z a-z 0-9 . _ - and not only one dot or two"

TURN_ID: Final = r"[0-9]{2}[0-9a-f]{20}"
BATCH_ID: Final = rf"batch_{TURN_ID}"
FILE_ID: Final = rf"file-{TURN_ID}"
SCHEDULE_ID: Final = rf"sched_{TURN_ID}"

TURN_WORDS: Final = "a turn's id, such as 171f0a93c2d4e5b6a7f809"
BATCH_WORDS: Final = "a batch's id, such as batch_171f0a93c2d4e5b6a7f809"
FILE_WORDS: Final = "a file's id, such as file-171f0a93c2d4e5b6a7f809"
SCHEDULE_WORDS: Final = "a schedule's id, such as sched_171f0a93c2d4e5b6a7f809"
