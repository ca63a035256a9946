"""Files: written piece by piece, there whole or not at all, read as a stream, gone with their time."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import fsspec
import pytest

from aiforge.core.types import ConfigError
from tests.support.object_store import ObjectStore
from tests.support.servers import RedisServer
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.contract.batch.files import File, FileStore, Upload
from worker.contract.batch.shelves import PIECE
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, NotFound, Unavailable
from worker.contract.ids import new_file_id

pytestmark = pytest.mark.anyio

LONG = os.urandom(2 * PIECE + 17)


async def stored(files: FileStore, data: bytes, *, tenant: str = "default", **options: object) -> File:
    upload = await files.begin(tenant, "questions.jsonl", "batch", **options)  # type: ignore[arg-type]
    for start in range(0, len(data), 300_000):
        await upload.write(data[start : start + 300_000])
    return await upload.seal()


def names_at(url: str) -> set[str]:
    """What is kept below a URL."""
    place, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    return set(place.find(root))


def names_below(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


async def read(files: FileStore, file_id: str, tenant: str = "default") -> bytes:
    return b"".join([piece async for piece in files.read(file_id, tenant)])


async def test_a_file_comes_back_as_it_went_in(client: TurnClient) -> None:
    files = client.files
    for data in (b"x", b"a" * PIECE, LONG):
        made = await stored(files, data)
        assert (made.bytes, made.filename, made.purpose) == (len(data), "questions.jsonl", "batch")
        assert await read(files, made.file_id) == data
        pieces = [piece async for piece in files.read(made.file_id, "default")]
        assert max(map(len, pieces)) <= PIECE
        await files.delete(made.file_id, "default")


async def test_what_is_not_sealed_cannot_be_read_and_goes(client: TurnClient, server: RedisServer) -> None:
    upload = await client.files.begin("default", "f", "batch")
    await upload.write(LONG)
    with pytest.raises(NotFound):
        await client.files.get(upload.file_id, "default")
    pieces = client.files.keys.pieces(upload.file_id)
    assert 0 < server.ask("PTTL", pieces) <= 3_600_000
    server.ask("DEL", pieces)
    with pytest.raises(Conflict, match="took too long"):
        await upload.seal()


async def test_nothing_stays_of_an_upload_that_is_given_up(client: TurnClient, server: RedisServer) -> None:
    files = client.files
    upload = await files.begin("default", "f", "batch")
    await upload.write(LONG)
    assert server.ask("LLEN", files.keys.pieces(upload.file_id)) == 2
    await upload.abandon()
    assert server.ask("EXISTS", files.keys.pieces(upload.file_id)) == 0


async def test_who_gives_up_a_file_takes_nothing_from_its_other_writers(client: TurnClient) -> None:
    files, name = client.files, new_file_id("default")
    late = await files.begin("default", "out.jsonl", "batch_output", file_id=name)
    await late.write(LONG)
    other = await files.begin("default", "out.jsonl", "batch_output", file_id=name)
    await other.write(LONG)
    await late.abandon()
    await other.seal()
    assert await read(files, name) == LONG
    await files.delete(name, "default")


async def test_the_same_bytes_can_be_written_again_under_one_id(client: TurnClient) -> None:
    """A writer died in the middle, and its successor begins anew."""
    files, name = client.files, new_file_id("default")
    dead = await files.begin("default", "out.jsonl", "batch_output", file_id=name)
    await dead.write(LONG[: PIECE + 5])
    first = await stored(files, LONG, file_id=name)
    again = await stored(files, LONG, file_id=name)
    assert first == again
    assert await read(files, name) == LONG
    await files.delete(name, "default")


async def test_a_file_belongs_to_its_tenant(client: TurnClient) -> None:
    files = client.files
    made = await stored(files, b"secret", tenant="a")
    for attempt in (files.get, files.delete):
        with pytest.raises(NotFound):
            await attempt(made.file_id, "b")
    with pytest.raises(NotFound):
        await read(files, made.file_id, "b")
    assert await files.page("b") == []
    await files.delete(made.file_id, "a")
    assert await files.page("a") == []


async def test_a_list_goes_on_from_what_was_deleted(client: TurnClient) -> None:
    made = {(await stored(client.files, b"x")).file_id for _ in range(5)}
    seen: list[str] = []
    while page := await client.files.page("default", after=seen[-1] if seen else None, limit=2):
        for file in page:
            await client.files.delete(file.file_id, "default")
            seen.append(file.file_id)
    assert (len(seen), set(seen)) == (5, made)
    for tenant, file_id in (("other", seen[0]), ("default", "file-17" + "0" * 20)):
        with pytest.raises(NotFound):
            await client.files.page(tenant, after=file_id)


async def test_pages_join_without_a_gap(client: TurnClient) -> None:
    files = client.files
    made = [(await stored(files, b"x")).file_id for _ in range(7)]
    times = {name: (await files.get(name, "default")).created_at for name in made}
    ordered = sorted(made, key=lambda name: (times[name], name))
    for oldest_first in (True, False):
        seen: list[str] = []
        while page := await files.page(
            "default", after=seen[-1] if seen else None, limit=3, oldest_first=oldest_first
        ):
            seen += [file.file_id for file in page]
        assert seen == (ordered if oldest_first else ordered[::-1])
    output = await stored(files, b"y", file_id=new_file_id("default"))
    assert output.file_id in {file.file_id for file in await files.page("default", purpose="batch")}
    assert await files.page("default", purpose="batch_output") == []
    for name in [*made, output.file_id]:
        await files.delete(name, "default")


async def test_a_file_goes_when_its_time_is_over(client: TurnClient) -> None:
    made = await stored(client.files, b"x", ttl_seconds=0.5)
    assert made.expires_at is not None
    assert made.expires_at - made.created_at == pytest.approx(0.5, abs=0.001)
    await eventually(lambda: _is_gone(client.files, made.file_id))
    assert await client.files.page("default") == []


async def test_a_file_may_stay(client: TurnClient, server: RedisServer) -> None:
    made = await stored(client.files, b"x", ttl_seconds=0)
    assert made.expires_at is None
    assert server.ask("PTTL", client.files.keys.pieces(made.file_id)) == -1
    await client.files.delete(made.file_id, "default")


async def _is_gone(files: FileStore, file_id: str) -> bool:
    try:
        await files.get(file_id, "default")
    except NotFound:
        return True
    return False


@pytest.fixture(params=["folder", "s3"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a place outside of Redis."""
    if request.param == "folder":
        return tmp_path.as_uri()
    objects: ObjectStore = request.getfixturevalue("object_store")
    return objects.url


@pytest.fixture
async def shelved(elsewhere: str, connect: Connect) -> FileStore:
    """A store whose bytes are there."""
    return (await connect(files_url=elsewhere)).files


async def test_bytes_can_be_kept_elsewhere(shelved: FileStore, server: RedisServer) -> None:
    made = await stored(shelved, LONG)
    assert await read(shelved, made.file_id) == LONG
    assert server.ask("EXISTS", shelved.keys.pieces(made.file_id)) == 0
    again = await stored(shelved, LONG, file_id=made.file_id)
    assert again == made
    await shelved.delete(made.file_id, "default")
    assert await _is_gone(shelved, made.file_id)


async def test_elsewhere_there_is_a_file_whole_or_not_at_all(connect: Connect, tmp_path: Path) -> None:
    files = (await connect(files_url=tmp_path.as_uri())).files
    upload = await files.begin("default", "f", "batch")
    await upload.write(LONG)
    assert [name.endswith(".part") for name in names_below(tmp_path)] == [True], "on the disk it is meant for"
    await upload.abandon()
    assert names_below(tmp_path) == []


async def test_what_is_given_up_elsewhere_is_not_written_later(elsewhere: str, shelved: FileStore) -> None:
    """Also when its last reference goes, which closes a file that is open."""
    before = names_at(elsewhere)
    upload = await shelved.begin("default", "f", "batch")
    await upload.write(LONG)
    await upload.abandon()
    del upload
    gc.collect()
    assert names_at(elsewhere) == before


@pytest.mark.parametrize("written", [False, True])
async def test_what_nobody_seals_elsewhere_goes(
    elsewhere: str, shelved: FileStore, connect: Connect, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer died on the way, or between the last byte and the seal."""

    async def dies(upload: Upload) -> File:
        raise ConnectionAbortedError

    client, before = await connect(), names_at(elsewhere)
    monkeypatch.setattr(shelved, "seal", dies)
    upload = await shelved.begin("default", "f", "batch")
    await upload.write(LONG)
    if written:
        with pytest.raises(ConnectionAbortedError):
            await upload.seal()
    shard = int(upload.file_id[5:7])
    due, lock = shelved.keys.due(shard), shelved.keys.reaper(shard)
    assert await client.connection.command("ZADD", due, "XX", "CH", 1, upload.file_id) == 1
    (found,) = await client.turns.reap([shard], "a reaper")
    assert found.timed == [upload.file_id]
    await shelved.expire(upload.file_id)
    assert names_at(elsewhere) == before
    assert await client.connection.command("EXISTS", due) == 0
    await client.connection.command("DEL", lock)
    await upload.abandon()


async def test_a_file_elsewhere_may_stay(shelved: FileStore, server: RedisServer) -> None:
    made = await stored(shelved, b"x", ttl_seconds=0)
    assert server.ask("EXISTS", shelved.keys.due(int(made.file_id[5:7]))) == 0
    await shelved.delete(made.file_id, "default")


async def test_bytes_elsewhere_go_when_the_time_is_over(
    shelved: FileStore, connect: Connect, server: RedisServer
) -> None:
    made = await stored(shelved, b"x", ttl_seconds=0.05)
    client = await connect()
    shard = int(made.file_id[5:7])

    async def listed() -> list[str]:
        return (await client.turns.reap([shard], "a reaper"))[0].timed

    assert await eventually(listed) == [made.file_id]
    await shelved.expire(made.file_id)
    await shelved.expire(made.file_id)
    with pytest.raises(NotFound):
        await read(shelved, made.file_id)
    assert await listed() == []
    server.ask("DEL", shelved.keys.reaper(shard))


@pytest.mark.parametrize("url", ["nonsense://x", "memory://x"])
async def test_a_url_that_cannot_be_used_is_refused_by_name(connect: Connect, url: str) -> None:
    with pytest.raises(ConfigError, match="AIFORGE_FILES_URL"):
        await connect(files_url=url)


async def test_a_store_that_does_not_answer_is_unavailable(connect: Connect) -> None:
    files = (await connect(files_url="file:///proc/nothing/can/be/written/here")).files
    with pytest.raises(Unavailable, match="AIFORGE_FILES_URL"):
        await files.begin("default", "f", "batch")
