"""Every store that ships with aiforge, against the suite, and what is particular to each."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aiforge.core.types import ConfigError, StoreError
from aiforge.modules.chat.stores.file import FileStore
from aiforge.modules.chat.stores.memory import MemoryStore
from aiforge.modules.chat.stores.postgres import PostgresStore
from aiforge.modules.chat.stores.protocol import Store
from aiforge.modules.chat.stores.sqlite import SQLiteStore
from tests.aiforge.chat.store_suite import StoreSuite
from tests.aiforge.chat.support import run


class TestMemoryStore(StoreSuite):
    survives = False

    @pytest.fixture
    def open_store(self) -> Callable[[], Store]:
        return MemoryStore


class TestFileStore(StoreSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: FileStore(tmp_path / "conversations")

    def test_a_line_that_was_cut_off_never_happened(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        run(store.append("a", 1, b"one"))
        path = tmp_path / "a.log"
        with path.open("ab") as file:
            file.write(b"2 tw")
        assert run(store.read("a")) == [(1, b"one")]
        run(store.append("a", 2, b"two"))
        assert path.read_bytes() == b"1 one\n2 two\n"

    def test_the_last_line_is_found_however_long_it_is(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        for number, size in enumerate((10, 200_000, 70_000, 3), start=1):
            run(store.append("a", number, b"x" * size))
        assert [len(entry) for _, entry in run(store.read("a"))] == [10, 200_000, 70_000, 3]

    @pytest.mark.parametrize(
        "content", [b"garbage\n", b"\0\0\n", b"\n\n", b"-1 {}\n", b"1\n", b" 1 {}\n", b"9" * 5000 + b" {}\n"]
    )
    def test_a_damaged_line_is_a_store_error(self, tmp_path: Path, content: bytes) -> None:
        store = FileStore(tmp_path)
        run(store.append("a", 1, b"one"))
        with (tmp_path / "a.log").open("ab") as file:
            file.write(content)
        for act in (
            lambda: store.read("a"),
            lambda: store.append("a", 2, b"two"),
            lambda: store.compact("a", 1, b"x"),
        ):
            with pytest.raises(StoreError, match="no entry of a conversation"):
                run(act())

    def test_what_cannot_be_written_is_a_store_error(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(StoreError):
            run(FileStore(tmp_path / "taken").append("a", 1, b"x"))
        with pytest.raises(StoreError, match="line feed"):
            run(FileStore(tmp_path).append("a", 1, b"x\ny"))

    def test_files_are_the_owner_s_alone(self, tmp_path: Path) -> None:
        run(FileStore(tmp_path).append("a", 1, b"x"))
        assert (tmp_path / "a.log").stat().st_mode & 0o077 == 0


class TestSQLiteStore(StoreSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: SQLiteStore(tmp_path / "conversations.db")

    def test_what_cannot_be_opened_is_a_store_error(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("no database " * 100)
        for path in (tmp_path / "notes.txt", tmp_path / "missing" / "x.db"):
            with pytest.raises(StoreError, match=path.name):
                run(SQLiteStore(path).read("a"))


def _program(name: str) -> str | None:
    """Debian keeps PostgreSQL's programs off the PATH, one folder per version."""
    found = shutil.which(name) or max(
        map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), default=None
    )
    return found and str(Path(found).resolve().parent / name)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """A cluster of its own on a Unix socket; PostgreSQL refuses to run as root."""
    initdb, server = _program("initdb"), _program("pg_ctl")
    if initdb is None or server is None:
        assert not os.environ.get("CI"), "PostgreSQL is not installed"
        pytest.skip("PostgreSQL is not installed")
    # Not below pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="aiforge-pg-", dir="/tmp") as folder:
        user = {"user": "nobody"} if os.geteuid() == 0 else {}
        if user:
            shutil.chown(folder, **user)
        data, options = f"{folder}/data", f"-k {folder} -c listen_addresses= -c fsync=off"

        def execute(*command: str) -> None:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=60, **user)  # type: ignore[call-overload]

        execute(initdb, "-D", data, "-U", "aiforge", "-A", "trust", "-N")
        execute(server, "-D", data, "-w", "-o", options, "-l", f"{folder}/log", "start")
        try:
            yield f"postgresql://aiforge@/postgres?host={folder}"
        finally:
            execute(server, "-D", data, "-m", "immediate", "stop")


class TestPostgresStore(StoreSuite):
    @pytest.fixture
    def open_store(self, database: str) -> Callable[[], Store]:
        psycopg = pytest.importorskip("psycopg")
        schema = f"t{secrets.token_hex(6)}"
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return lambda: PostgresStore(f"{database}&options=-c%20search_path%3D{schema}")

    def test_it_connects_again_after_the_server_hung_up(self, database: str, store: Store) -> None:
        psycopg = pytest.importorskip("psycopg")
        run(store.append("a", 1, b"x"))
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        with pytest.raises(StoreError, match="PostgreSQL"):
            run(store.read("a"))
        assert run(store.read("a")) == [(1, b"x")]
        run(store.close())

    def test_a_wrong_address_is_a_store_error(self, tmp_path: Path) -> None:
        pytest.importorskip("psycopg")
        with pytest.raises(StoreError, match="PostgreSQL"):
            run(PostgresStore(f"postgresql://x@/x?host={tmp_path}").read("a"))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"aiforge\[postgres\]"):
        PostgresStore("postgresql://x")
