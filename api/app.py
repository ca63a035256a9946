"""The application: routes in the middle, around them body limits, the gate and the edge."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from api import errors
from api.auth import Gate, callers
from api.body_limit import BodyLimit
from api.edge import Edge
from api.metrics import Metrics
from api.openapi import Application
from api.routes import (
    batches,
    cache,
    conversations,
    dead,
    files,
    history,
    providers,
    schedules,
    system,
    turns,
    usage,
)
from api.settings import ApiSettings
from api.sse import Streams
from api.state import Service
from api.uploads import FORM_BYTES
from worker.contract.client import TurnClient
from worker.contract.logs import logger

_ABOUT: Final = """\
LLM chat as durable background work. Post a turn and read its answer later, wait for it, or stream it; post a
batch and read its results as they come. Every error has one shape, every reply carries `x-request-id`, times
are Unix seconds, money is a decimal string of USD, and what is not known is null.

Without an API token the service answers this machine only; with one, send it as `Authorization: Bearer`."""


def create_app(settings: ApiSettings, client: TurnClient) -> Application:
    """The service on an open client; whoever opened it closes it."""
    release = version("aiforge")
    app = Application(
        title="AIForge",
        version=release,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    streams = Streams()
    shared = Service(
        settings=settings,
        client=client,
        streams=streams,
        metrics=Metrics(release, streams.__len__),
        log=logger("api", settings.log_level, settings.log_format),
    )
    app.state.service = shared
    for routes in (conversations, history, turns, dead, files, batches, cache):
        app.include_router(routes.router)
    for routes in (schedules, usage, providers, system):
        app.include_router(routes.router)
    errors.install(app)
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimit,
        limit=settings.api_max_body_bytes,
        limits={
            **dict.fromkeys((batches.PATH, conversations.IMPORT_PATH), settings.api_max_batch_bytes),
            files.PATH: settings.api_max_file_bytes + FORM_BYTES,
        },
        forms=(files.PATH,),
    )
    app.add_middleware(Gate, callers=callers(settings))
    app.add_middleware(Edge, metrics=shared.metrics, log=shared.log)
    return app
