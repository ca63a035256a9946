"""Answers that are kept for later batches, each tenant's own: what was asked is a digest, its answer is text.

Who finds none asks for it, and for as long as that is said again nobody else does: another batch with the
same line waits for the answer. What is kept goes when its time is over, or when the tenant's answers are
erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from worker.contract import records
from worker.contract.batch.line_schemas import LineResponse
from worker.contract.batch.sameness import digest_of
from worker.contract.ids import SHARDS, shard_of
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings

FORGOTTEN_AT_A_TIME: Final = 1_000


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a row gains from an answer that was kept."""

    model: str
    answer: str | None = None
    response: LineResponse | None = None


Found: TypeAlias = KeptAnswer | Literal["ask", "wait", "lost"]


class Asked(NamedTuple):
    """A question of a tenant, by the digest of all that decides its answer."""

    tenant: str
    digest: str


def asked(tenant: str, *decides: Any) -> Asked:
    """A question, from all that decides its answer: values that are the same in JSON are the same."""
    return Asked(tenant, digest_of(*decides))


class AnswerStore:
    """Typed access to kept answers; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self._connection = connection
        self._keys = Keys(settings.namespace)
        self._hold_ms = int(settings.lease_seconds * 1000)

    async def ask(self, question: Asked, token: str, max_age: float, *, goes_on: bool = False) -> Found:
        """The answer, if one was kept in the last `max_age` seconds; else whether to ask for it.

        `ask`: nobody else will for the length of a lease; to go on longer, say so before that ends. `wait`:
        somebody else does now. `lost`: who went on has not the word any more.
        """
        arguments: list[Argument] = [
            question.digest, token, int(max_age * 1000), self._hold_ms, int(goes_on),
        ]  # fmt: skip
        how, *answer = await self._run("answer_ask", question, arguments)
        match how:
            case b"known":
                return msgspec.json.decode(answer[0], type=KeptAnswer)
            case b"ask":
                return "ask"
            case b"wait":
                return "wait"
            case _:
                return "lost"

    async def keep(self, question: Asked, token: str, seconds: float, answer: KeptAnswer | None) -> bool:
        """Keep an answer, None where there is none to be kept, and let others ask; whether that was so."""
        kept: Argument = "" if answer is None else records.encode(answer)
        arguments: list[Argument] = [question.digest, token, int(seconds * 1000), kept]
        return bool(await self._run("answer_keep", question, arguments))

    async def forget(self, tenant: str) -> int:
        """Erase what is kept of a tenant; how many answers that were."""
        erased = 0
        for shard in range(SHARDS):
            names, left = self._keys.of_answer(tenant, shard, ""), 1
            while left:
                done, left = await self._connection.run("answers_forget", names, [FORGOTTEN_AT_A_TIME])
                erased += done
        return erased

    async def _run(self, script: str, question: Asked, arguments: Sequence[Argument]) -> Any:
        tenant, digest = question
        names = self._keys.of_answer(tenant, shard_of(tenant, digest), digest)
        return await self._connection.run(script, names, arguments)
