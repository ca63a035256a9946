"""What the routes of one application share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastapi import Request
from structlog.typing import FilteringBoundLogger

from api.auth import CALLER
from api.metrics import Metrics
from api.settings import ApiSettings
from api.sse import Streams
from worker.contract.client import TurnClient
from worker.contract.schemas import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Settings, the way to the store, and what is open."""

    settings: ApiSettings
    client: TurnClient
    streams: Streams
    metrics: Metrics
    log: FilteringBoundLogger

    def of(self, caller: Caller) -> Service:
        """The same, for another caller."""
        return self if caller == self.client.caller else replace(self, client=self.client.of(caller))


def service(request: Request) -> Service:
    """The service as it answers this request's caller, who sees nothing of other tenants."""
    shared: Service = request.app.state.service
    return shared.of(request.scope[CALLER])


def tenant(request: Request) -> str:
    """Whose request this is."""
    caller: Caller = request.scope[CALLER]
    return caller.tenant
