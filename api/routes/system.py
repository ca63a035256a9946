"""What operators and browsers ask for: health, metrics, documentation."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import FileResponse, RedirectResponse, Response

from api import openapi, replies, schemas
from api.errors import Problem
from api.openapi import answer, problems
from api.state import service
from worker.contract.errors import ContractError

router = APIRouter(tags=["system"])

_PATIENCE_SECONDS: Final = 2.0
"""How long the store may take to answer a health check or a scrape."""
_ASSETS: Final = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}


@router.get(
    "/livez", responses={200: answer(schemas.Alive, "The process runs.")}, summary="Is the process alive?"
)
async def livez() -> Response:
    return replies.reply({"status": "alive"})


@router.get(
    "/readyz",
    responses={200: answer(schemas.Ready, "Turns are accepted."), **problems(503)},
    summary="Can the service take turns?",
)
async def readyz(request: Request) -> Response:
    shared = service(request)
    if shared.streams.draining.is_set():
        raise Problem(503, "shutting_down", "this process is shutting down")
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            reason = await shared.client.ready()
    except TimeoutError:
        reason = f"Redis did not answer within {_PATIENCE_SECONDS:g} s"
    if reason is not None:
        raise Problem(503, "store_unavailable", reason, headers={"Retry-After": "1"})
    return replies.reply({"status": "ready"})


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus text.", "headers": openapi.REQUEST_ID, "content": {"text/plain": {}}}
    },
    summary="Metrics for Prometheus",
)
async def metrics(request: Request) -> Response:
    shared = service(request)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            stats = await shared.client.stats()
    except (TimeoutError, ContractError):
        stats = None
    return Response(shared.metrics.exposition(stats), media_type=CONTENT_TYPE_LATEST)


@router.get("/", include_in_schema=False)
async def home() -> Response:
    """Who opens the address in a browser is shown what there is."""
    return RedirectResponse("docs")


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title=request.app.title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )


@router.get("/docs/{name}", include_in_schema=False)
async def docs_asset(name: str) -> Response:
    if name not in _ASSETS:
        raise Problem(404, "route_not_found", "no such file")
    path = files("fastapi_offline").joinpath("static", name)
    return FileResponse(str(path), media_type=_ASSETS[name], headers={"Cache-Control": "max-age=86400"})
