"""The steps before and after the items of a batch that is a file, against a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from aiforge.testing import FakeProvider
from tests.support.runners import LocalWorker
from tests.support.slices import kill
from tests.support.turns import Connect, intended
from worker.contract.batch.batches import VALIDATE, Slice
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.schemas import Batch, BatchRequest, BatchState
from worker.running.steps import Steps

pytestmark = pytest.mark.anyio
CHAT: Final = "/v1/chat/completions"


async def posted(client: TurnClient, *lines: bytes) -> Batch:
    upload = await client.files.begin("default", "q.jsonl", "batch")
    for line in lines:
        await upload.write(line + b"\n")
    file = await upload.seal()
    return await client.submit_batch(
        BatchRequest(input_file_id=file.file_id, endpoint=CHAT, completion_window="24h")
    )


async def test_a_file_that_can_never_be_read_makes_its_batch_fail(
    connect: Connect, tmp_path: Path, provider: FakeProvider
) -> None:
    """The API keeps its files at a place that the workers are not told of."""
    api, client = await connect(files_url=f"file://{tmp_path}"), await connect()
    batch = await posted(api, b"{}")
    async with LocalWorker(client, provider) as worker:
        for _ in range(client.settings.suspect_after):
            await worker.slices.run(batch.batch_id)
            assert (await client.batch(batch.batch_id)).state is BatchState.VALIDATING
            assert await kill(client.batches, batch.batch_id, VALIDATE) == "queued"
        await worker.slices.run(batch.batch_id)
    ended = await client.batch(batch.batch_id)
    assert ended.state is BatchState.FAILED
    assert ended.errors is not None
    (error,) = ended.errors.data
    assert error.code == "internal_error"
    assert "AIFORGE_FILES_URL" in error.message


async def test_of_a_cancelled_batch_no_further_lines_are_read(
    client: TurnClient, provider: FakeProvider
) -> None:
    batch = await posted(client, b'{"custom_id": "' + b"x" * 3_000_000, b"{}")
    taken = await client.batches.claim(batch.batch_id, "t", intended(""))
    assert isinstance(taken, Slice)
    assert batch.input_file_id is not None
    await client.connection.command("LTRIM", client.batches.keys.pieces(batch.input_file_id), 0, 0)
    assert (await client.cancel_batch(batch.batch_id)).state is BatchState.CANCELLING
    async with LocalWorker(client, provider) as worker:
        with worker.leases.hold(taken.work, taken.fence) as held:
            await Steps(batches=client.batches, waker=worker.waker, foreign=None).run(taken, held)
    done = await client.batch(batch.batch_id)
    assert (done.state, done.errors) == (BatchState.CANCELLED, None), "to read on would meet what is gone"


async def test_a_step_waits_for_a_store_that_is_away(
    connect: Connect, tmp_path: Path, provider: FakeProvider
) -> None:
    """The folder of the files cannot be read for a while: nobody asks again and again."""
    folder = tmp_path / "files"
    client = await connect(files_url=f"file://{folder}")
    batch = await posted(client, b"{}")
    hidden = folder.rename(tmp_path / "away")
    folder.write_bytes(b"no folder")
    async with LocalWorker(client, provider) as worker:
        await asyncio.wait_for(worker.slices.run(batch.batch_id), 20)
        assert (await client.batch(batch.batch_id)).state is BatchState.VALIDATING
        assert await client.batches.claim(batch.batch_id, "t", intended("")) == Refused("refused", "validate")
        folder.unlink()
        hidden.rename(folder)
        await client.connection.command("HDEL", client.batches.keys.batch(batch.batch_id), "step_waits")
        await worker.slices.run(batch.batch_id)
    assert (await client.batch(batch.batch_id)).state is BatchState.FAILED
