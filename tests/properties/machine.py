"""What both state machines share: a namespace on a real server, a loop to run on, and how they are played."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support import leaks
from tests.support.servers import RedisServer
from worker.contract.server.connection import Connection

T = TypeVar("T")


class ScriptMachine(RuleBasedStateMachine):
    def __init__(self, server: RedisServer, runner: asyncio.Runner, connection: Connection) -> None:
        super().__init__()
        self.server, self.connection = server, connection
        self.namespace = f"machine-{secrets.token_hex(4)}"
        self._runner = runner

    def teardown(self) -> None:
        leaks.forget(self.server, self.namespace)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def look(self) -> leaks.Picture:
        """All that is stored; nothing in it may be out of place."""
        seen = leaks.picture(self.server, self.namespace)
        assert leaks.problems(seen) == []
        return seen


def sums(seen: leaks.Picture) -> Counter[str]:
    """The ledger's totals by measure, over all shards and models."""
    found = Counter[str]()
    for name, measures in seen.hashes.items():
        if name.endswith(":totals"):
            for measure, amount in measures.items():
                found[measure.rpartition("|")[2]] += int(amount)
    return found


def leased(seen: leaks.Picture) -> list[str]:
    """Everything that some worker holds."""
    return sorted(work for name, works in seen.zsets.items() if name.endswith(":leases") for work in works)


def play(machine: type[ScriptMachine], server: RedisServer, profile: settings) -> None:
    """Let hypothesis write stories for a machine; the shortest one that goes wrong is shown."""
    with asyncio.Runner() as runner:
        connection = Connection(server.url)
        try:
            run_state_machine_as_test(lambda: machine(server, runner, connection), settings=profile)  # type: ignore[arg-type]
        finally:
            runner.run(connection.close())
