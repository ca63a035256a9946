"""A Redis Cluster of one's own: primaries that share all slots, and replicas behind them."""

from __future__ import annotations

import contextlib
import functools
from types import TracebackType
from typing import Final, Self

from redis.crc import key_slot

from tests.support.certificates import Certificates
from tests.support.servers import Kind, RedisServer
from tests.support.waiting import wait_until

SLOTS: Final = 16_384
NODE_TIMEOUT_MS: Final = 1_000
"""A node that is silent for so long is taken for dead; its replica is elected about a second later."""


class RedisCluster:
    """with RedisCluster(primaries=3, replicas=0) as cluster: … `cluster.url` names all of them."""

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        primaries: int = 3,
        replicas: int = 0,
        tls: Certificates | None = None,
    ) -> None:
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            "cluster-replica-validity-factor": "0",
            "repl-diskless-sync-delay": "0",
            "shutdown-timeout": "0",
            **({} if tls is None else {"tls-cluster": "yes"}),
        }
        self._tls = tls
        self.primaries = [RedisServer(kind, options=options, tls=tls) for _ in range(primaries)]
        self.replicas = [RedisServer(kind, options=options, tls=tls) for _ in range(replicas)]
        self._stopping = contextlib.ExitStack()

    @property
    def nodes(self) -> list[RedisServer]:
        return [*self.primaries, *self.replicas]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        if self._tls is not None:
            return f"rediss+cluster://{places}?{self._tls.query}"
        return f"redis+cluster://{places}"

    @property
    def port(self) -> int:
        """That of the first node."""
        return self.primaries[0].port

    @property
    def ports(self) -> list[int]:
        """Those of the nodes that are primaries now."""
        return [node.port for node in self.nodes if node.ask("INFO", "replication")["role"] == "master"]

    def holder(self, key: str) -> RedisServer:
        """The node that serves a key."""
        for first, last, (_, port, *_), *_ in self.primaries[-1].ask("CLUSTER", "SLOTS"):
            if first <= key_slot(key.encode()) <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody holds {key}")

    def name(self, node: RedisServer) -> str:
        """The node's id."""
        return bytes(node.ask("CLUSTER", "MYID")).decode()

    def move(self, key: str, to: RedisServer) -> None:
        """Give a key's slot to another node, key by key, as an operator does while the cluster serves."""
        slot, source = key_slot(key.encode()), self.holder(key)
        self.begin_move(key, to)
        while names := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *names)
        for node in (to, source, *(other for other in self.primaries if other not in (to, source))):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", self.name(to))

    def begin_move(self, key: str, to: RedisServer) -> None:
        """From here on a key of this slot is asked for at both nodes."""
        slot, source = key_slot(key.encode()), self.holder(key)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.name(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.name(to))

    def revive(self, node: RedisServer) -> None:
        """Start a killed node; returns when it follows the one that has taken over."""
        node.start()
        wait_until(functools.partial(_follows, node), 30)

    def start(self) -> None:
        """Returns when every node says that the cluster serves."""
        for node in self.nodes:
            self._stopping.enter_context(node)
        for index, node in enumerate(self.primaries):
            first, last = (SLOTS * number // len(self.primaries) for number in (index, index + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", self.port, self.primaries[0].options["cluster-port"])
        wait_until(self._know_each_other, 30)
        for replica, primary in zip(self.replicas, self.primaries, strict=False):
            replica.ask("CLUSTER", "REPLICATE", self.name(primary))
        for replica in self.replicas:
            wait_until(functools.partial(_follows, replica), 30)
        wait_until(self._serves, 30)

    def _know_each_other(self) -> bool:
        return all(len(node.ask("CLUSTER", "NODES").splitlines()) == len(self.nodes) for node in self.nodes)

    def _serves(self) -> bool:
        return all(
            b"cluster_state:ok" in bytes(node.ask("CLUSTER", "INFO"))
            and len(node.ask("CLUSTER", "SLOTS")) == len(self.primaries)
            for node in self.nodes
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._stopping.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.close()


def _follows(replica: RedisServer) -> bool:
    return bool(replica.ask("INFO", "replication").get("master_link_status") == "up")
