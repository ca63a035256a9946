"""One folder that tools may read and write in, and nothing beside it.

A path is walked from the folder's own descriptor, one part at a time, and no link is ever followed.
So neither `..`, an absolute path, a sibling folder whose name begins alike nor a link that is swapped
in between check and use leads outside: there is no check apart from the use.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LARGEST_FILE: Final = 20 * 1024 * 1024
"""Bytes that are read or written at a time."""
MOST_ENTRIES: Final = 1_000
"""Files and folders that one listing names."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not make us wait
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Workspace:
    """The files below `root`, which is made when something is first written.

    Paths are relative to it, with `/` between their parts. All methods raise ValueError, with a text
    for the model, on a path that leads outside or names nothing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()

    def read(self, path: str) -> bytes:
        """The bytes of a regular file, at most `LARGEST_FILE`."""
        *folders, name = _parts(path)
        with self._folder(folders, path) as folder, _told(path):
            descriptor = os.open(name, _FILE, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise ValueError(f"{path!r} is not a file")
                if found.st_size > LARGEST_FILE:
                    raise ValueError(f"{path!r} has {found.st_size} bytes; at most {LARGEST_FILE} are read")
                return file.read(LARGEST_FILE)

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file as a whole, with the folders that it needs."""
        *folders, name = _parts(path)
        if len(data) > LARGEST_FILE:
            raise ValueError(f"{len(data)} bytes are too many; at most {LARGEST_FILE} are written")
        with self._folder(folders, path, make=True) as folder, _told(path):
            self._must_be_replaceable(name, folder, path)
            draft = f".{secrets.token_hex(8)}.draft"
            descriptor = os.open(draft, _NEW, 0o644, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise

    def entries(self, path: str = ".") -> list[str]:
        """The names below a folder, sorted, folders with a `/` at their end; links are left out."""
        with self._folder(_parts(path) if path not in ("", ".") else [], path) as folder, _told(path):
            with os.scandir(folder) as found:
                names = [_entry(entry) for entry in found if not entry.is_symlink()]
            return sorted(names)[:MOST_ENTRIES]

    def make(self) -> None:
        """Make the folder itself."""
        self.root.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def _folder(self, folders: list[str], path: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder at the end of `folders`."""
        if make:
            self.make()
        with contextlib.ExitStack() as stack:
            with _told(path):
                descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            for name in folders:
                with _told(path):
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, dir_fd=descriptor)
                    descriptor = os.open(name, _FOLDER, dir_fd=descriptor)
                stack.callback(os.close, descriptor)
            yield descriptor

    def _must_be_replaceable(self, name: str, folder: int, path: str) -> None:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path!r} is not a file that can be replaced")


def _entry(entry: os.DirEntry[str]) -> str:
    return entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")


def _parts(path: str) -> list[str]:
    """The parts of a relative path; raises ValueError on every other one."""
    if not isinstance(path, str) or not path.strip() or "\0" in path or "\\" in path:
        raise ValueError(f"{path!r} is not a path in the workspace")
    if path.startswith(("/", "~")):
        raise ValueError(f"{path!r} is not relative: paths begin at the workspace")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise ValueError(f"{path!r} leads out of the workspace")
    return parts


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Say what is wrong with `path` without naming where the workspace is."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        if isinstance(error, NotADirectoryError) or reason.startswith("Too many levels"):
            reason = "a part of it is a link or no folder"
        raise ValueError(f"{path!r}: {reason}") from None
