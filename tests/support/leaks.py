"""What must hold in Redis whenever nothing is being changed, read from the keys themselves.

The table at the head of `worker/contract/keys.py` says what kinds of keys there are, of which type,
and when each goes. Here it is taken at its word.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import redis

from worker.contract import ids, keys
from worker.contract.queues import queue
from worker.contract.schemas import BATCH_OVER, TERMINAL_STATES, Lane

_ROW: Final = re.compile(r"^ {4}(\S.*?) +(hash|list|zset|string) +(\S.*?) {2,}", re.MULTILINE)
_SECONDS: Final = re.compile(r"(\d+) s")
_EXPIRING: Final = (-2, 0)
"""What Redis says of a key whose time ends just now."""
_OVER: Final = frozenset({*TERMINAL_STATES, *BATCH_OVER})


class Server(Protocol):
    """What holds keys: a server, a cluster, or the primary behind a Sentinel."""

    @property
    def ports(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Kind:
    """One row of the table."""

    type: str
    expires: str


def documented() -> dict[str, Kind]:
    """The table of `keys.py`, by the word that begins a key's name behind its shard."""
    rows = _ROW.findall(keys.__doc__ or "")
    return {name.removeprefix("<namespace>:").partition(":")[0]: Kind(*rest) for name, *rest in rows}


@dataclass
class Picture:
    """All of a namespace at one moment."""

    namespace: str
    kinds: dict[str, Kind] = field(default_factory=documented)
    found: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Key to type and milliseconds to live, -1 for ever."""
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    zsets: dict[str, list[str]] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)

    def state(self, work: str) -> str | None:
        """The state of a turn, batch or slice's batch; None when it is gone."""
        owner = work.partition("/")[0]
        shard = f"{{{self.namespace}:{ids.shard_of_id(owner):02d}}}"
        kind = "batch" if ids.is_batch(owner) else "turn"
        return self.hashes.get(f"{shard}:{kind}:{owner}", {}).get("state")

    def is_file(self, name: str) -> bool:
        """Whether a name is a file's that exists."""
        if not ids.is_file_id(name):
            return False
        return f"{{{self.namespace}:{ids.shard_of_id(name):02d}}}:file:{name}" in self.hashes


def picture(server: Server, namespace: str, before: Collection[str] = ()) -> Picture:
    """Read everything on a server; keys that are neither the namespace's nor in `before` are strange."""
    seen = Picture(namespace)
    for port in server.ports:
        _look(seen, port, before)
    return seen


def _look(seen: Picture, port: int, before: Collection[str]) -> None:
    ours = (f"{{{seen.namespace}:", f"{seen.namespace}:")
    with redis.Redis(port=port, decode_responses=True, encoding_errors="replace") as client:
        found = list(client.scan_iter(count=1000))
        seen.strange += [name for name in found if not name.startswith(ours) and name not in before]
        mine = [name for name in found if name.startswith(ours)]
        replies = _each(client, [("TYPE", name) for name in mine] + [("PTTL", name) for name in mine])
        for name, kind, ttl in zip(mine, replies, replies[len(mine) :], strict=False):
            if kind != "none" and ttl not in _EXPIRING:
                seen.found[name] = kind, ttl
        _values(seen, mine, client)


def names(server: Server) -> frozenset[str]:
    """Every key on a server."""
    found = set[str]()
    for port in server.ports:
        with redis.Redis(port=port, decode_responses=True) as client:
            found.update(client.scan_iter(count=1000))
    return frozenset(found)


def forget(server: Server, namespace: str) -> None:
    """Delete a namespace."""
    for port in server.ports:
        with redis.Redis(port=port, decode_responses=True) as client:
            gone = [name for name in client.scan_iter(count=1000) if namespace in name]
            _each(client, [("DEL", name) for name in gone])


def problems(seen: Picture) -> list[str]:
    """One line for each key that should not be there, or not like this."""
    found = [f"{name} is outside of the namespace" for name in seen.strange]
    for name, (kind, ttl) in seen.found.items():
        found += _misplaced(seen, name, kind, ttl)
    for name, fields in seen.hashes.items():
        word = _word(seen, name)
        if word == "fences":
            found += _not_held(seen, name, fields)
        elif word == "conv":
            found += _blocked(seen, name, fields)
        elif word == "wakes":
            ready = seen.zsets.get(name.replace(":wakes", ":ready"), [])
            found += [f"{name}: {work} is not ready" for work in fields if work not in ready]
    for name, members in seen.zsets.items():
        if _word(seen, name) == "ready":
            found += _not_ready(seen, name, members)
        elif _word(seen, name) == "due":
            states = {work: seen.state(work) for work in members}
            found += [
                f"{name}: {work} is due and {state}"
                for work, state in states.items()
                if state not in ("scheduled", "requires_action", "validating", "in_progress")
                and not seen.is_file(work)
            ]
        elif _word(seen, name) == "leases":
            fences = seen.hashes.get(name.replace(":leases", ":fences"), {})
            found += [f"{name}: {work} has no fence" for work in members if work not in fences]
    return found


def _values(seen: Picture, mine: Sequence[str], client: Any) -> None:
    commands: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
        "hash": (seen.hashes, ()),
        "list": (seen.lists, (0, -1)),
        "zset": (seen.zsets, (0, -1)),
    }
    names = [name for name in mine if name in seen.found and seen.found[name][0] in commands]
    pipeline = client.pipeline(transaction=False)
    for name in names:
        kind = seen.found[name][0]
        read = {"hash": pipeline.hgetall, "list": pipeline.lrange, "zset": pipeline.zrange}[kind]
        read(name, *commands[kind][1])
    for name, value in zip(names, pipeline.execute(), strict=True):
        commands[seen.found[name][0]][0][name] = value


def _each(client: Any, commands: list[tuple[str, ...]]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies: list[Any] = pipeline.execute()
    return replies


def _word(seen: Picture, name: str) -> str:
    """What kind of key a name is: the first word behind shard or namespace."""
    behind = re.sub(
        rf"^\{{{re.escape(seen.namespace)}:(?:[0-6][0-9]|share|providers|budget:[^}}]+)\}}:|^{re.escape(seen.namespace)}:",
        "",
        name,
    )
    return behind.partition(":")[0]


def _misplaced(seen: Picture, name: str, kind: str, ttl: int) -> list[str]:
    word = _word(seen, name)
    if word == "broker":
        return _not_celerys(seen, name)
    known = seen.kinds.get(word)
    if known is None:
        return [f"{name} is of no documented kind"]
    if known.type != kind:
        return [f"{name} is a {kind}, documented as {known.type}"]
    if _lives_as_documented(seen, name, known.expires, ttl):
        return []
    return [f"{name} lives for {ttl} ms (-1 is for ever), documented is: {known.expires}"]


def _lives_as_documented(seen: Picture, name: str, expires: str, ttl: int) -> bool:
    if seconds := _SECONDS.fullmatch(expires):
        return 0 < ttl <= int(seconds[1]) * 1000
    if expires.startswith("never"):
        return ttl == -1
    if expires == "with the last turn":
        conversation = seen.hashes.get(re.sub(r":(?:conv|msgs|turns|history):", ":conv:", name, count=1), {})
        lives = int(conversation.get("open", "0")) == 0 and conversation.get("ttl_ms", "0") != "0"
        # A schedule that posts there keeps it for longer.
        until = int(conversation.get("planned_ms", "0"))
        return 0 < ttl <= int(conversation["ttl_ms"]) + until if lives else ttl == -1
    if expires == "with the file":
        return ttl > 0 or seen.is_file(name.rpartition(":")[2])
    owner = seen.state(name.rpartition(":")[2])
    return ttl > 0 or (owner is not None and owner not in _OVER)


def _not_celerys(seen: Picture, name: str) -> list[str]:
    """Celery's own keys: its queues, what it has taken from them, and their bindings."""
    behind = name.removeprefix(f"{seen.namespace}:broker:")
    queues = [queue(seen.namespace, lane) for lane in Lane]
    if behind.startswith(("_kombu.binding", "unacked")):
        return []
    # kombu appends the priority to a queue's name
    return [] if re.split(r"[\x06:]", behind)[0] in queues else [f"{name} is not a queue of ours"]


def _not_held(seen: Picture, name: str, fences: dict[str, str]) -> list[str]:
    leases = seen.zsets.get(name.replace(":fences", ":leases"), [])
    found = [f"{name}: {work} has no lease" for work in fences if work not in leases]
    for work in fences:
        state, batch = seen.state(work), ids.is_batch(work)
        if state is None or (not batch and state != "running"):
            found.append(f"{name}: {work} is held and {state}")
    return found


def _not_ready(seen: Picture, name: str, members: list[str]) -> list[str]:
    found = []
    for work in members:
        state, batch = seen.state(work), ids.is_batch(work)
        if state in (None, *_OVER) if batch else state != "queued":
            found.append(f"{name}: {work} is ready and {state}")
        elif not batch and not any(fields.get("active") == work for fields in seen.hashes.values()):
            found.append(f"{name}: {work} is ready and not its conversation's next")
    return found


def _open_turns(seen: Picture, name: str) -> int:
    tenant, _, conversation_id = name.partition(":conv:")[2].partition(":")
    return sum(
        fields.get("tenant") == tenant
        and fields.get("conversation_id") == conversation_id
        and "state" in fields
        and fields["state"] not in _OVER
        for fields in seen.hashes.values()
    )


def _blocked(seen: Picture, name: str, conversation: dict[str, str]) -> list[str]:
    """A conversation with a turn that can never end, or with waiting turns that nothing will start."""
    active = conversation.get("active")
    counted = _open_turns(seen, name)
    if conversation.get("open", "0") != str(counted):
        return [f"{name}: {counted} turns are open, it says {conversation.get('open')}"]
    waiting = seen.lists.get(name.replace(":conv:", ":fifo:", 1), [])
    found = [
        f"{name}: {turn} waits and is {seen.state(turn)}" for turn in waiting if seen.state(turn) != "queued"
    ]
    if active is None:
        return found + [f"{name}: {turn} waits for nothing" for turn in waiting]
    state = seen.state(active)
    indexes = {"queued": ":ready", "running": ":leases", "requires_action": ":due"}
    if state not in indexes:
        return [*found, f"{name}: the active turn is {state}"]
    index = name.partition(":conv:")[0] + indexes[state]
    return (
        found
        if active in seen.zsets.get(index, [])
        else [*found, f"{name}: {active} is {state} and in no index"]
    )
