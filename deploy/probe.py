"""Health check of a container: `probe.py PORT PATH` exits 0 when loopback answers 200.

`http.client` reads no proxy variables, so a proxy set for the provider is not asked.
"""

from __future__ import annotations

import http.client
import sys
from typing import Final

TIMEOUT_SECONDS: Final = 4.0


def problem(port: int, path: str) -> str | None:
    """None, or one line that says what is wrong."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read(500).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"{path} on port {port}: {error!r}"
    finally:
        connection.close()
    return None if reply.status == 200 else f"{path} on port {port}: {reply.status} {body}"


if __name__ == "__main__":
    sys.exit(problem(int(sys.argv[1]), sys.argv[2]))
