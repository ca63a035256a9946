"""Names that callers choose: one rule for the service, its client and the command line."""

from __future__ import annotations

import re
from typing import Final

CONVERSATION_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}")
"""Neither `.` nor `..`, which a URL's reader takes for the way to another page."""
