"""What people build first: a Celery task that asks the model and appends to a list in Redis.

Late acknowledgement, rejection when the worker is lost, and a short visibility timeout, as the guides say.
"""

from __future__ import annotations

import json
import os

import httpx
import redis
from celery import Celery

URL = os.environ["BASELINE_REDIS_URL"]
PROVIDER = os.environ["BASELINE_PROVIDER_URL"]
app = Celery("baseline", broker=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 10},
    broker_connection_retry_on_startup=True,
)
store = redis.Redis.from_url(URL)


@app.task(name="answer")  # type: ignore[untyped-decorator]
def answer(conversation: str, question: str) -> None:
    """Ask with what the conversation has so far, and remember both."""
    key = f"memory:{conversation}"
    past = [json.loads(line) for line in store.lrange(key, 0, -1)]
    messages = [*past, {"role": "user", "content": question}]
    reply = httpx.post(f"{PROVIDER}/chat/completions", json={"model": "m", "messages": messages}, timeout=60)
    text = reply.json()["choices"][0]["message"]["content"]
    store.rpush(key, json.dumps(messages[-1]), json.dumps({"role": "assistant", "content": text}))
