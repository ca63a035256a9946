"""A scripted service over real HTTP: each request gets the next answer, and is remembered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Answer:
    """`cut`: the connection breaks after the body, which was announced to be longer."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


def answer(value: object, status: int = 200, **headers: str) -> Answer:
    return Answer(json.dumps(value).encode(), status, headers)


def refusal(status: int, code: str, **headers: str) -> Answer:
    error = {"message": f"it is {code}", "type": "invalid_request_error", "param": "message", "code": code}
    return answer({"error": error}, status, **headers)


def event(number: int, **fields: object) -> bytes:
    data = json.dumps(fields, ensure_ascii=False)
    return f"id: {number}\nevent: {fields['type']}\ndata: {data}\n\n".encode()


def stream(*events: bytes, cut: bool = False) -> Answer:
    return Answer(b"".join(events), headers={"Content-Type": EVENT_STREAM}, cut=cut)


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    """Connections that come at once: with five of them all others are tried again after seconds."""


class Service:
    """`url` is where it listens; `requests` is what it was asked. `gate` is waited at before each answer."""

    gate: threading.Barrier | None = None

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        service = self

        class Exchange(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                is_form = headers.get("content-type", "").startswith("multipart/form-data")
                body = raw if is_form else json.loads(raw) if raw else None
                service.requests.append(Request(self.command, self.path, headers, body))
                if service.gate is not None:
                    service.gate.wait()
                reply = service.answers.pop(0)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(reply.body) + (10 if reply.cut else 0)))
                self.send_header("x-request-id", "req_1")
                self.end_headers()
                self.wfile.write(reply.body)
                self.close_connection = reply.cut

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815  # the names that the base class calls

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = _Server(("127.0.0.1", 0), Exchange)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[Service]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
