"""The HTTP client of the service: `Client` for plain code, `AsyncClient` for asyncio.

    with Client("http://127.0.0.1:8000") as client:
        turn = client.submit("Where is my parcel?", conversation_id="user-42")
        for number, event in client.stream(turn.turn_id):
            ...

Both are thin shells: what is asked and how answers are read stands once in `turn_calls` and its neighbours,
how a broken stream resumes once in `stream`.
"""

from aiforge.client.asynchronous import AsyncClient
from aiforge.client.errors import (
    APIError,
    BadRequestError,
    ClientError,
    ConflictError,
    NotFoundError,
    ProtocolError,
    RateLimitedError,
    RequestError,
    ServerError,
    UnauthorizedError,
    UnreachableError,
)
from aiforge.client.results import (
    Batch,
    Conversation,
    Counts,
    Diff,
    Erasure,
    Export,
    Failure,
    File,
    Fire,
    Item,
    LedgerRow,
    Message,
    ModelHealth,
    Question,
    Queue,
    Row,
    Schedule,
    Turn,
    UsageReport,
    UsageRow,
    Version,
)
from aiforge.client.synchronous import Client

__all__ = [
    "APIError",
    "AsyncClient",
    "BadRequestError",
    "Batch",
    "Client",
    "ClientError",
    "ConflictError",
    "Conversation",
    "Counts",
    "Diff",
    "Erasure",
    "Export",
    "Failure",
    "File",
    "Fire",
    "Item",
    "LedgerRow",
    "Message",
    "ModelHealth",
    "NotFoundError",
    "ProtocolError",
    "Question",
    "Queue",
    "RateLimitedError",
    "RequestError",
    "Row",
    "Schedule",
    "ServerError",
    "Turn",
    "UnauthorizedError",
    "UnreachableError",
    "UsageReport",
    "UsageRow",
    "Version",
]
