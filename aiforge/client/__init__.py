"""The HTTP client of the service: `Client` for plain code, `AsyncClient` for asyncio.

    with Client("http://127.0.0.1:8000") as client:
        turn = client.submit("Where is my parcel?", conversation_id="user-42")
        for number, event in client.stream(turn.turn_id):
            ...

Both are thin shells: what is asked and how answers are read stands once in `calls`, how a broken
stream resumes once in `stream`.
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
    Erasure,
    Export,
    Failure,
    Item,
    Message,
    Question,
    Queue,
    Row,
    Turn,
    UsageReport,
    UsageRow,
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
    "Erasure",
    "Export",
    "Failure",
    "Item",
    "Message",
    "NotFoundError",
    "ProtocolError",
    "Question",
    "Queue",
    "RateLimitedError",
    "RequestError",
    "Row",
    "ServerError",
    "Turn",
    "UnauthorizedError",
    "UnreachableError",
    "UsageReport",
    "UsageRow",
]
