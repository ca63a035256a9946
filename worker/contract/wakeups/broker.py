"""Celery as the carrier of wake-ups: the same application for those who send and those who consume."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from celery import Celery
from kombu.entity import Queue

from aiforge.core.topology import Topology, topology_of
from worker.contract.keys import Keys
from worker.contract.queues import queue
from worker.contract.schemas import Lane
from worker.contract.server.servers import tls_options
from worker.contract.settings import ContractSettings
from worker.contract.wakeups import carrier

_SENTINEL_SECONDS: Final = 1.0
"""How long one Sentinel may take before the next is asked."""


def celery_application(settings: ContractSettings) -> Celery:
    """A Celery application without tasks; wake-ups carry ids only and may be lost or repeated."""
    url = settings.broker
    application = Celery("aiforge", broker=celerys_url(url), set_as_current=False)
    if on_redis(url):
        topology = topology_of(url)
        application.conf.broker_transport = carrier.PATHS[topology.kind]
        if topology.secure:
            application.conf.broker_use_ssl = {"ssl_cert_reqs": "required", **tls_options(topology)}
    queues = [Queue(queue(settings.namespace, lane)) for lane in Lane]
    application.conf.update(
        task_queues=queues,
        task_default_queue=queues[0].name,
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_limit=4,
        broker_transport_options=transport_options(settings, url),
    )
    return application


def on_redis(url: str) -> bool:
    """Whether a broker is a Redis."""
    return url.startswith(("redis", "rediss", "unix"))


def transport_options(settings: ContractSettings, url: str) -> dict[str, object]:
    """Redis needs its restore scan every 5 s instead of every 100 s, and lanes in order of priority."""
    if not on_redis(url):
        return {}
    topology = topology_of(url)
    return {
        **(_sentinel_options(topology) if topology.kind == "sentinel" else {}),
        "global_keyprefix": Keys(settings.namespace).broker_prefix(),
        "queue_order_strategy": "priority",
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "socket_timeout": 15,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
    }


def celerys_url(url: str) -> str:
    """A broker's URL as Celery writes it; it names each Sentinel by a URL of its own.

    What is said of TLS is left out, because Celery reads only part of it.
    """
    topology = topology_of(url)
    if topology.kind != "sentinel":
        return without_tls(url) if topology.secure else url
    return ";".join(
        without_tls(topology.at(address))
        .replace("rediss://", "redis://", 1)
        .replace("redis://", "sentinel://", 1)
        for address in topology.addresses
    )


def without_tls(url: str) -> str:
    """A URL without what it says of TLS behind its question mark."""
    parts = urlsplit(url)
    rest = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if not pair[0].startswith("ssl_")]
    return parts._replace(query=urlencode(rest)).geturl()


def _sentinel_options(topology: Topology) -> dict[str, object]:
    parts = urlsplit(topology.sentinel_at(topology.addresses[0]))
    own: dict[str, Any] = {"socket_timeout": _SENTINEL_SECONDS, "socket_connect_timeout": _SENTINEL_SECONDS}
    if parts.password is not None:
        own |= {"username": unquote(parts.username or "") or None, "password": unquote(parts.password)}
    if topology.secure:
        own |= {"ssl": True, **tls_options(topology)}
    return {"master_name": topology.service, "sentinel_kwargs": own}
