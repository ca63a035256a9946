"""What the routes of one application share."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from structlog.typing import FilteringBoundLogger

from api.metrics import Metrics
from api.settings import ApiSettings
from api.sse import Streams
from worker.contract.client import TurnClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Settings, the way to the store, and what is open."""

    settings: ApiSettings
    client: TurnClient
    streams: Streams
    metrics: Metrics
    log: FilteringBoundLogger


def service(request: Request) -> Service:
    """The service that answers this request."""
    found: Service = request.app.state.service
    return found
