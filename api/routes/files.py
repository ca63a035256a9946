"""Files as OpenAI has them: upload one, list them, read one, delete it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import file_schemas, openapi, replies
from api.errors import Problem
from api.openapi import answer, problems
from api.params import FILE, FileId, known_query, no_key
from api.state import service, tenant
from api.uploads import receive
from worker.contract.batch.files import LONGEST_LIFE, LONGEST_NAME, SHORTEST_LIFE, File, FileStore, Upload

PATH: Final = "/v1/files"
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"

router = APIRouter(prefix=PATH, tags=["files"], dependencies=[Depends(known_query)])


@router.post(
    "",
    dependencies=[Depends(no_key)],
    responses={
        200: answer(file_schemas.File, "The file is stored.", openapi.location("file")),
        **problems(400, 413, 415, 503),
    },
    openapi_extra=file_schemas.FORM,
    summary="Upload a file",
)
async def post_file(request: Request) -> Response:
    arriving = _Arriving(service(request).client.files, tenant(request))
    try:
        made = await arriving.sealed(await receive(request, arriving))
    except BaseException:
        await arriving.abandon()
        raise
    return replies.reply(_file(made), headers=replies.made_at(f"{PATH}/{made.file_id}"))


@router.get(
    "",
    responses={200: answer(file_schemas.Files, "The newest first."), **problems(400, 404, 422, 503)},
    summary="List files",
)
async def get_files(
    request: Request,
    after: Annotated[str | None, Query(pattern=FILE, description="The last file that is known.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: file_schemas.AnyPurpose | None = None,
) -> Response:
    found = await service(request).client.files.page(
        tenant(request), after=after, limit=limit + 1, oldest_first=order == "asc", purpose=purpose
    )
    return replies.reply(replies.page([_file(one) for one in found], limit))


@router.get(
    "/{file_id}",
    responses={200: answer(file_schemas.File, "The file."), **problems(404, 422, 503)},
    summary="Read what is known of a file",
)
async def get_file(request: Request, file_id: FileId) -> Response:
    return replies.reply(_file(await service(request).client.files.get(file_id, tenant(request))))


@router.get(
    "/{file_id}/content",
    response_class=Response,
    responses={
        200: {
            "description": "The bytes as they were uploaded or written.",
            "headers": openapi.REQUEST_ID,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(404, 422, 503),
    },
    summary="Read a file",
)
async def get_content(request: Request, file_id: FileId) -> Response:
    files = service(request).client.files
    file = await files.get(file_id, tenant(request))
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
        "Content-Length": str(file.bytes),
        "X-Content-Type-Options": "nosniff",
    }
    pieces = files.read(file_id, tenant(request))
    return await replies.streamed(pieces, media_type="application/octet-stream", headers=headers)


@router.delete(
    "/{file_id}",
    responses={200: answer(file_schemas.FileDeleted, "The file is gone."), **problems(404, 422, 503)},
    summary="Delete a file",
)
async def delete_file(request: Request, file_id: FileId) -> Response:
    await service(request).client.files.delete(file_id, tenant(request))
    return replies.reply({"id": file_id, "object": "file", "deleted": True})


class _Arriving:
    """A file whose form is being read; its purpose may stand behind it."""

    def __init__(self, files: FileStore, tenant: str) -> None:
        self._files = files
        self._tenant = tenant
        self._upload: Upload | None = None

    async def begin(self, filename: str) -> None:
        if not filename or len(filename) > LONGEST_NAME or not filename.isprintable():
            raise _wrong("file", f"needs a file name of at most {LONGEST_NAME} printable characters")
        self._upload = await self._files.begin(self._tenant, filename, "batch")

    async def write(self, data: bytes) -> None:
        assert self._upload is not None
        await self._upload.write(data)

    async def sealed(self, fields: dict[str, str]) -> File:
        """Raises Problem naming the field that is wrong."""
        assert self._upload is not None
        for name in fields:
            if name not in ("purpose", _ANCHOR, _SECONDS):
                raise Problem(400, "unknown_field", f"{name}: there is no such field", param=name)
        if "purpose" not in fields:
            raise Problem(400, "missing_field", "purpose: this field is required", param="purpose")
        if fields["purpose"] != "batch":
            raise _wrong("purpose", "must be batch: other purposes are not served here")
        if not self._upload.bytes:
            raise _wrong("file", "is empty")
        self._upload.ttl_seconds = _life(fields)
        return await self._upload.seal()

    async def abandon(self) -> None:
        if self._upload is not None:
            await self._upload.abandon()


def _life(fields: dict[str, str]) -> float | None:
    if _SECONDS not in fields and _ANCHOR not in fields:
        return None
    if fields.get(_ANCHOR) != "created_at":
        raise _wrong(_ANCHOR, "must be created_at")
    text = fields.get(_SECONDS, "")
    if not (text.isascii() and text.isdigit() and SHORTEST_LIFE <= int(text) <= LONGEST_LIFE):
        raise _wrong(_SECONDS, f"must be a whole number from {SHORTEST_LIFE} to {LONGEST_LIFE}")
    return int(text)


def _wrong(param: str, message: str) -> Problem:
    return Problem(400, "invalid_value", f"{param}: {message}", param=param)


def _file(value: File) -> dict[str, Any]:
    """OpenAI's file object; its times are whole seconds."""
    return {
        "id": value.file_id,
        "object": "file",
        "bytes": value.bytes,
        "created_at": int(value.created_at),
        "expires_at": None if value.expires_at is None else int(value.expires_at),
        "filename": value.filename,
        "purpose": value.purpose,
        "status": "processed",
        "status_details": None,
    }
