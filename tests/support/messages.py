"""What may lie on a lane's queue in Redis: wake-ups as Celery sends them, and everything else."""

from __future__ import annotations

import base64
import json
import pickle
import secrets
from typing import Any, Final

from worker.contract.queues import TASKS
from worker.contract.schemas import Lane

DEEP: Final = "[" * 100_000
"""More than any parser will follow."""


def message(
    task: Any = TASKS[Lane.CHAT],
    args: Any = ("x",),
    *,
    properties: Any = None,
    body: Any = None,
    **headers: Any,
) -> str:
    """A message as Celery sends it, except for what is given."""
    encoded = base64.b64encode(json.dumps([args, {}, {}] if body is None else body).encode()).decode()
    return json.dumps(
        {
            "body": encoded,
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"id": secrets.token_hex(8), "task": task, **headers},
            "properties": properties
            or {
                "delivery_tag": secrets.token_hex(8),
                "delivery_info": {"exchange": "", "routing_key": ""},
                "body_encoding": "base64",
            },
        }
    )


def with_body(text: str) -> str:
    """A message with these characters for its body, JSON or not."""
    whole = json.loads(message())
    return json.dumps({**whole, "body": base64.b64encode(text.encode()).decode()})


def published_garbage() -> list[str]:
    """Each of these, published to the workers' control, ends a stock worker."""
    return [
        DEEP,
        with_body(DEEP),
        with_body("{not json"),
        with_body('{"method": "ping", "arguments": ' + "[" * 990 + "]" * 990 + "}"),
        json.dumps({**json.loads(with_body("{}")), "body": "no base64"}),
        json.dumps({**json.loads(with_body("{}")), "properties": {"delivery_tag": "t", "delivery_info": {}}}),
        json.dumps([1, 2]),
    ]


def garbage() -> list[str | bytes]:
    """Each of these ends a stock worker, or makes it do what it was not asked."""
    return [
        "}{garbage",
        "[1,2]",
        "null",
        "",
        pickle.dumps({"body": "x"}),
        json.dumps({"body": "x"}),
        message(body=5),
        message(body={"args": ["x"]}),
        message(body=[["x"], {"turn_id": "x"}, {}]),
        message(args=[5]),
        message(args=[]),
        message(task=["aiforge.turn"]),
        message(id=None),
        message(properties={"delivery_tag": "t", "delivery_info": {}}),
        DEEP,
        '{"body": ' + DEEP,
        message().replace('"headers": {', f'"headers": {{"x": {"[" * 500}{"]" * 500}, ', 1)[:-1] + ', "y": [',
        with_body(f'[["x"], {{"a": {DEEP}, {{}}]'),
        with_body(f'[["x"], {{}}, {"[" * 2_000}{"]" * 2_000}]'),
        message().replace("application/json", "application/x-python-serialize"),
    ]
