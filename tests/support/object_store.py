"""A local object store that speaks S3, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Final, Self

import httpx
import s3fs

from tests.support.servers import free_port
from tests.support.waiting import wait_until

_BUCKET: Final = "aiforge"
_ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class ObjectStore:
    """While it runs, this process's environment leads S3's clients to it."""

    url = f"s3://{_BUCKET}/files"

    def __init__(self) -> None:
        self._port = free_port()
        self._before: dict[str, str | None] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {**_ENVIRONMENT, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self._port}"}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, 30)
        self._before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(_BUCKET)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        assert self._process is not None
        self._process.terminate()
        self._process.wait(10)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._port}/moto-api/", trust_env=False).is_success
        except httpx.HTTPError:
            return False
