"""What `/openapi.json` says of files."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from worker.contract.batch.files import LONGEST_LIFE, SHORTEST_LIFE

AnyPurpose: TypeAlias = Literal[
    "assistants",
    "assistants_output",
    "batch",
    "batch_output",
    "evals",
    "fine-tune",
    "fine-tune-results",
    "user_data",
    "vision",
]
"""What a file may be for at OpenAI. Here there are none but of `batch` and `batch_output`."""

FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": SHORTEST_LIFE,
                            "maximum": LONGEST_LIFE,
                        },
                    },
                }
            }
        },
    }
}


_EXAMPLE: Final[dict[str, Any]] = {
    "id": "file-171f0a93c2d4e5b6a7f809",
    "object": "file",
    "bytes": 20480,
    "created_at": 1767225600,
    "expires_at": 1769817600,
    "filename": "questions.jsonl",
    "purpose": "batch",
    "status": "processed",
    "status_details": None,
}


class File(BaseModel):
    """OpenAI's file object. Times are whole Unix seconds."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None


class Files(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [_EXAMPLE],
                    "first_id": _EXAMPLE["id"],
                    "last_id": _EXAMPLE["id"],
                    "has_more": False,
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"id": _EXAMPLE["id"], "object": "file", "deleted": True}]}
    )

    id: str
    object: Literal["file"]
    deleted: Literal[True]
