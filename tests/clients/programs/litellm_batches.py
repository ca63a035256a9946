"""litellm's files and batches, sync and async: everything it is told, as JSON.

python -m tests.clients.programs.litellm_batches
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from typing import Any

import litellm

from tests.support.waiting import eventually

CHAT = "/v1/chat/completions"
OVER = ("completed", "failed", "cancelled", "expired")
SECONDS = 120
OPENAIS_BATCH = "batch_6711aaf0e4b0819093b7d0a6a4b6c1f2"


class Story:
    """What one user does, by litellm's synchronous functions or by its asynchronous ones."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    async def call(self, function: str, **arguments: Any) -> Any:
        answer = getattr(litellm, self._prefix + function)(custom_llm_provider="openai", **arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def refused(self, function: str, **arguments: Any) -> list[Any]:
        try:
            await self.call(function, **arguments)
        except Exception as error:  # noqa: BLE001  # which one it is, is the answer
            return [type(error).__name__, getattr(error, "status_code", None)]
        raise AssertionError(f"{function} was not refused")

    async def uploaded(self, lines: Sequence[str], **more: Any) -> Any:
        file = ("questions.jsonl", "\n".join(lines).encode())
        return await self.call("create_file", file=file, purpose="batch", **more)

    async def begun(self, file_id: str, **more: Any) -> Any:
        return await self.call(
            "create_batch", completion_window="24h", endpoint=CHAT, input_file_id=file_id, **more
        )

    async def over(self, batch_id: str) -> Any:
        async def look() -> Any:
            batch = await self.call("retrieve_batch", batch_id=batch_id)
            return batch if batch.status in OVER else None

        return await eventually(look, SECONDS, pause=0.5)

    async def text(self, file_id: str) -> str:
        return str((await self.call("file_content", file_id=file_id)).text)

    async def streamed(self, file_id: str) -> str:
        """The same in pieces."""
        pieces = (await self.call("file_content", file_id=file_id, stream=True)).stream_iterator
        if self._prefix:
            return b"".join([piece async for piece in pieces]).decode()
        return b"".join(pieces).decode()

    async def files(self) -> dict[str, Any]:
        made = await self.uploaded(["{}"], expires_after={"anchor": "created_at", "seconds": 7200})
        again = await self.call("file_retrieve", file_id=made.id)
        listed = await self.call("file_list", purpose="batch")
        return {
            "made": made.model_dump(),
            "again": again.model_dump(),
            "listed": [one.id for one in listed.data],
            "other": [one.id for one in (await self.call("file_list", purpose="user_data")).data],
            "content": await self.text(made.id),
            "deleted": (await self.call("file_delete", file_id=made.id)).model_dump(),
            "gone": await self.refused("file_retrieve", file_id=made.id),
            "gone content": await self.refused("file_content", file_id=made.id),
        }

    async def batches(self) -> dict[str, Any]:
        file = await self.uploaded([line(number) for number in range(20)])
        key = {"Idempotency-Key": f"{self._prefix}nightly"}
        begun = [
            await self.begun(
                file.id,
                metadata={"run": "nightly"},
                output_expires_after={"anchor": "created_at", "seconds": 7200},
                extra_headers=key,
            )
            for _ in range(2)
        ]
        done = await self.over(begun[0].id)
        return {
            "file": file.id,
            "begun": begun[0].model_dump(),
            "again": begun[1].id,
            "done": done.model_dump(),
            "output": await self.text(done.output_file_id),
            "streamed": await self.streamed(done.output_file_id),
            "errors": await self.text(done.error_file_id),
        }

    async def ends(self) -> dict[str, Any]:
        """Batches that are stopped, that are wrong, that are none."""
        held = await self.begun((await self.uploaded([line(1, "held")])).id)
        stopping = await self.call("cancel_batch", batch_id=held.id)
        wrong = await self.begun((await self.uploaded([line(1), "{", line(1)])).id)
        pages = [await self.call("list_batches", limit=2)]
        while pages[-1].has_more:
            pages.append(await self.call("list_batches", limit=2, after=pages[-1].data[-1].id))
        return {
            "stopping": stopping.model_dump(),
            "stopped": (await self.over(held.id)).model_dump(),
            "wrong": (await self.over(wrong.id)).model_dump(),
            "unknown": await self.refused("retrieve_batch", batch_id=OPENAIS_BATCH),
            "unknown file": await self.refused(
                "create_batch", completion_window="24h", endpoint=CHAT, input_file_id="file-AbCdEf"
            ),
            "pages": [[one.id for one in page.data] for page in pages],
            "all": [held.id, wrong.id],
        }

    async def told(self) -> dict[str, Any]:
        return {"files": await self.files(), "batches": await self.batches(), "ends": await self.ends()}


def line(number: int, text: str | None = None) -> str:
    asked = [{"role": "user", "content": text or f"question {number}."}]
    body = {"model": "gpt-4o-mini", "messages": asked}
    return json.dumps({"custom_id": f"id-{number}", "method": "POST", "url": CHAT, "body": body})


async def main() -> None:
    print(json.dumps({"sync": await Story("").told(), "async": await Story("a").told()}))


if __name__ == "__main__":
    asyncio.run(main())
