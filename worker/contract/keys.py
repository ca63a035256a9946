"""Every Redis name, in one place.

A name begins with its shard's hash tag, `{<namespace>:<shard>}`, so that all keys of a conversation,
and the indexes of its shard, stand on one slot. `<work>` is a turn id, or `<batch id>/<first index>`
for a slice of a batch.

    key                     type    expires             written by                     read by
    turn:<turn>             hash    after the turn      submit claim append finish …   get, reap
    log:<turn>              list    after the turn      every script that emits        read
    ledger:<work owner>     hash    after the turn      claim, ledger, finish          usage
    conv:<tenant>:<id>      hash    with the last turn  submit, open, finish           claim
    msgs:<tenant>:<id>      list    with the last turn  finish, open                   claim, history
    turns:<tenant>:<id>     zset    with the last turn  submit, finish                 erase
    fifo:<tenant>:<id>      list    never (empty: gone) submit, finish, reorder …      finish
    gone:<turn>             string  86400 s             erase                          submit
    batch:<batch>           hash    after the batch     batch_*                        get
    items:<batch>           list    after the batch     batch_items                    batch_claim
    rows:<batch>            hash    after the batch     batch_rows                     results
    slices:<batch>          hash    after the batch     batch_claim, batch_rows        batch_claim, …
    redo:<batch>            list    after the batch     batch_release                  batch_claim
    file:<file>             hash    with the file       file_seal                      files
    pieces:<file>           list    with the file       file_piece                     files
    files:<tenant>          zset    never (empty: gone) file_seal, file_delete, tidy   list
    schedule:<schedule>     hash    never               schedule_*                     get, fire
    schedules:<tenant>      zset    never (empty: gone) schedule_*, erase              list
    planned:<tenant>:<id>   zset    never (empty: gone) schedule_*, erase              list, erase
    crons                   zset    never (empty: gone) schedule_*, erase              reap
    leases                  zset    never (empty: gone) claim, heartbeat, finish …     reap
    fences                  hash    never (empty: gone) claim, finish …                heartbeat
    ready                   zset    never (empty: gone) submit, claim, finish …        reap
    wakes                   hash    never (empty: gone) reap, claim                    reap
    due                     zset    never (empty: gone) submit, pause, due, file_seal  reap
    dead                    zset    never (empty: gone) requeue, bury, erase, tidy     dead letters
    convs:<tenant>          zset    never (empty: gone) submit, open, erase, tidy      list
    totals                  hash    never               finish, ledger, batch_rows     metrics
    usage:<tenant>:<day>    hash    34560000 s          finish, ledger, batch_rows     usage
    reaper                  string  2 s                 reap                           reap
    versions:<tenant>:<id>  hash    never (empty: gone) versions_*                     versions_read
    versioned:<tenant>      zset    never (empty: gone) versions_append, …_delete      agent_store
    shares                  zset    never (empty: gone) share_*                        share_pick
    clock                   hash    never               share_pick, share_leave        share_join
    share:<tenant>          zset    never (empty: gone) share_*                        share_pick
    entry:<batch>           hash    691200 s            share_join, share_leave        share_pick
    <namespace>:workers     zset    60 s                presence                       stats

`shares`, `clock`, `share` and `entry` span shards and stand on a slot of their own, `{<namespace>:share}`.

Channels: `events:<turn>` (first sequence number, then one event a line), `<namespace>:control`
(turn ids to cancel), `<namespace>:idle` (nothing).
"""

from __future__ import annotations

import re
import secrets
import zlib
from dataclasses import dataclass
from typing import Final

SHARDS: Final = 64
_BATCH_PREFIX: Final = "batch_"
_FILE_PREFIX: Final = "file-"
_SCHEDULE_PREFIX: Final = "sched_"
_CONVERSATION_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}")
"""Neither `.` nor `..`, which a URL's reader takes for the way to another page."""
_TURN_ID: Final = re.compile(r"(?:[0-5][0-9]|6[0-3])[0-9a-f]{20}")
_BATCH_ID: Final = re.compile(rf"{_BATCH_PREFIX}(?:[0-5][0-9]|6[0-3])[0-9a-f]{{20}}")
_FILE_ID: Final = re.compile(rf"{_FILE_PREFIX}(?:[0-5][0-9]|6[0-3])[0-9a-f]{{20}}")
_SCHEDULE_ID: Final = re.compile(rf"{_SCHEDULE_PREFIX}(?:[0-5][0-9]|6[0-3])[0-9a-f]{{20}}")


def shard_of(tenant: str, name: str) -> int:
    """The shard of a tenant's conversation or batch; never changes for a given pair."""
    return zlib.crc32(f"{tenant}:{name}".encode()) % SHARDS


def new_turn_id(shard: int) -> str:
    """Two digits of shard, then 20 random hex digits."""
    return f"{shard:02d}{secrets.token_hex(10)}"


def new_batch_id(tenant: str) -> str:
    """`batch_`, two digits of shard, then 20 random hex digits."""
    return batch_id_of(tenant, secrets.token_hex(10))


def batch_id_of(tenant: str, digits: str) -> str:
    """The id of a batch that ends in these 20 hex digits."""
    return f"{_BATCH_PREFIX}{shard_of(tenant, digits):02d}{digits}"


def new_file_id(tenant: str) -> str:
    """`file-`, two digits of shard, then 20 random hex digits."""
    random = secrets.token_hex(10)
    return f"{_FILE_PREFIX}{shard_of(tenant, random):02d}{random}"


def schedule_id_of(tenant: str, conversation_id: str | None, digits: str) -> str:
    """`sched_`, two digits of shard, then these 20 hex digits; it stands with its conversation, if it has one."""
    return f"{_SCHEDULE_PREFIX}{shard_of(tenant, conversation_id or digits):02d}{digits}"


def shard_of_id(work: str) -> int:
    """The shard that a turn id, batch id, slice id, file id or schedule id carries."""
    bare = work.removeprefix(_BATCH_PREFIX).removeprefix(_FILE_PREFIX).removeprefix(_SCHEDULE_PREFIX)
    return int(bare[:2])


def is_turn_id(text: str) -> bool:
    """Whether this can be a turn's id."""
    return _TURN_ID.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """Whether this can be a batch's id."""
    return _BATCH_ID.fullmatch(text) is not None


def is_file_id(text: str) -> bool:
    """Whether this can be a file's id."""
    return _FILE_ID.fullmatch(text) is not None


def is_schedule_id(text: str) -> bool:
    """Whether this can be a schedule's id."""
    return _SCHEDULE_ID.fullmatch(text) is not None


def is_conversation_id(text: str) -> bool:
    """Whether this can be a conversation's id, issued or the caller's own."""
    return _CONVERSATION_ID.fullmatch(text) is not None


def is_tenant(text: str) -> bool:
    """Whether this can be a tenant's name."""
    return _CONVERSATION_ID.fullmatch(text) is not None


def is_batch(work: str) -> bool:
    """Whether a member of a shard's index is a batch or one of its slices."""
    return work.startswith(_BATCH_PREFIX)


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds the names of one namespace."""

    namespace: str

    def _of(self, shard: int, name: str) -> str:
        return f"{{{self.namespace}:{shard:02d}}}:{name}"

    def turn(self, turn_id: str) -> str:
        return self._of(shard_of_id(turn_id), f"turn:{turn_id}")

    def log(self, turn_id: str) -> str:
        return self._of(shard_of_id(turn_id), f"log:{turn_id}")

    def ledger(self, owner: str) -> str:
        """The provider calls of a turn or of a batch."""
        return self._of(shard_of_id(owner), f"ledger:{owner}")

    def conversation(self, tenant: str, conversation_id: str) -> str:
        return self._of(shard_of(tenant, conversation_id), f"conv:{tenant}:{conversation_id}")

    def messages(self, tenant: str, conversation_id: str) -> str:
        return self._of(shard_of(tenant, conversation_id), f"msgs:{tenant}:{conversation_id}")

    def fifo(self, tenant: str, conversation_id: str) -> str:
        return self._of(shard_of(tenant, conversation_id), f"fifo:{tenant}:{conversation_id}")

    def turns(self, tenant: str, conversation_id: str) -> str:
        """The ids of a conversation's turns, scored by when they expire."""
        return self._of(shard_of(tenant, conversation_id), f"turns:{tenant}:{conversation_id}")

    def convs(self, tenant: str, shard: int) -> str:
        """A tenant's conversations on a shard, by when a turn was posted to them last."""
        return self._of(shard, f"convs:{tenant}")

    def gone(self, shard: int, turn_id: str = "") -> str:
        """The tombstone of an erased turn."""
        return self._of(shard, f"gone:{turn_id}")

    def batch(self, batch_id: str) -> str:
        return self._of(shard_of_id(batch_id), f"batch:{batch_id}")

    def items(self, batch_id: str) -> str:
        return self._of(shard_of_id(batch_id), f"items:{batch_id}")

    def rows(self, batch_id: str) -> str:
        return self._of(shard_of_id(batch_id), f"rows:{batch_id}")

    def slices(self, batch_id: str) -> str:
        return self._of(shard_of_id(batch_id), f"slices:{batch_id}")

    def redo(self, batch_id: str) -> str:
        return self._of(shard_of_id(batch_id), f"redo:{batch_id}")

    def file(self, file_id: str) -> str:
        return self._of(shard_of_id(file_id), f"file:{file_id}")

    def pieces(self, file_id: str) -> str:
        return self._of(shard_of_id(file_id), f"pieces:{file_id}")

    def files(self, tenant: str, shard: int) -> str:
        """A tenant's files on a shard, by when they were made."""
        return self._of(shard, f"files:{tenant}")

    def of_file(self, file_id: str, tenant: str) -> list[str]:
        """All keys of a file, in the order in which the scripts take them."""
        shard = shard_of_id(file_id)
        return [self.file(file_id), self.pieces(file_id), self.files(tenant, shard), self.due(shard)]

    def schedule(self, schedule_id: str) -> str:
        return self._of(shard_of_id(schedule_id), f"schedule:{schedule_id}")

    def schedules(self, tenant: str, shard: int) -> str:
        """A tenant's schedules on a shard, by when they were made."""
        return self._of(shard, f"schedules:{tenant}")

    def planned(self, tenant: str, conversation_id: str) -> str:
        """The schedules that post turns to a conversation, by when they were made."""
        return self._of(shard_of(tenant, conversation_id), f"planned:{tenant}:{conversation_id}")

    def crons(self, shard: int) -> str:
        """Schedules by when they fire next."""
        return self._of(shard, "crons")

    def of_schedule(self, schedule_id: str, tenant: str, conversation_id: str | None) -> list[str]:
        """All keys of a schedule, in the order in which the scripts take them; five less without a conversation."""
        shard = shard_of_id(schedule_id)
        names = [
            self.schedule(schedule_id),
            self.schedules(tenant, shard),
            self.crons(shard),
            self.gone(shard, schedule_id),
        ]
        if conversation_id is None:
            return names
        return [
            *names,
            self.planned(tenant, conversation_id),
            self.conversation(tenant, conversation_id),
            self.messages(tenant, conversation_id),
            self.turns(tenant, conversation_id),
            self.convs(tenant, shard),
        ]

    def of_erasure(self, tenant: str, conversation_id: str) -> list[str]:
        """All keys of a conversation with those of its schedules, whose records end in their ids."""
        shard = shard_of(tenant, conversation_id)
        return [
            *self.of_turn("", tenant, conversation_id),
            self.planned(tenant, conversation_id),
            self._of(shard, "schedule:"),
            self.schedules(tenant, shard),
            self.crons(shard),
        ]

    def leases(self, shard: int) -> str:
        return self._of(shard, "leases")

    def fences(self, shard: int) -> str:
        return self._of(shard, "fences")

    def ready(self, shard: int) -> str:
        return self._of(shard, "ready")

    def wakes(self, shard: int) -> str:
        return self._of(shard, "wakes")

    def due(self, shard: int) -> str:
        """Turns that are scheduled, or wait for a human, by when that ends."""
        return self._of(shard, "due")

    def dead(self, shard: int) -> str:
        """Dead letters, by when they died."""
        return self._of(shard, "dead")

    def totals(self, shard: int) -> str:
        return self._of(shard, "totals")

    def usage(self, shard: int, tenant: str = "", day: int | None = None) -> str:
        """A tenant's provider calls of a day (since 1970, UTC); scripts add tenant and day themselves."""
        return self._of(shard, f"usage:{tenant}{'' if day is None else f':{day}'}")

    def reaper(self, shard: int) -> str:
        return self._of(shard, "reaper")

    def versions(self, tenant: str, conversation_id: str) -> str:
        """The entries of a library agent's conversation, by number, with `first` and `last`."""
        return self._of(shard_of(tenant, conversation_id), f"versions:{tenant}:{conversation_id}")

    def versioned(self, tenant: str, shard: int) -> str:
        """The ids of the conversations of library agents on a shard."""
        return self._of(shard, f"versioned:{tenant}")

    def of_turn(self, turn_id: str, tenant: str, conversation_id: str) -> list[str]:
        """All keys of a turn, in the order in which the scripts take them; with '' those of none."""
        shard = shard_of(tenant, conversation_id)
        return [
            self._of(shard, f"turn:{turn_id}"),
            self._of(shard, f"log:{turn_id}"),
            self.conversation(tenant, conversation_id),
            self.messages(tenant, conversation_id),
            self.fifo(tenant, conversation_id),
            *self._of_shard(shard),
            self._of(shard, f"ledger:{turn_id}"),
            self.totals(shard),
            self.due(shard),
            self.dead(shard),
            self.turns(tenant, conversation_id),
            self.convs(tenant, shard),
            self.usage(shard),
        ]

    def of_batch(self, batch_id: str) -> list[str]:
        """All keys of a batch, in the order in which the scripts take them."""
        shard = shard_of_id(batch_id)
        return [
            self.batch(batch_id),
            self.items(batch_id),
            self.rows(batch_id),
            self.slices(batch_id),
            self.redo(batch_id),
            *self._of_shard(shard),
            self.ledger(batch_id),
            self.totals(shard),
            self.usage(shard),
        ]

    def _of_shard(self, shard: int) -> list[str]:
        return [self.ready(shard), self.wakes(shard), self.leases(shard), self.fences(shard)]

    def events(self, turn_id: str) -> str:
        """The channel on which a turn's events are published."""
        return self._of(shard_of_id(turn_id), f"events:{turn_id}")

    def control(self) -> str:
        """The channel that tells workers which turns to cancel."""
        return f"{self.namespace}:control"

    def idle(self) -> str:
        """The channel that a listener without readers is subscribed to; nothing is published there."""
        return f"{self.namespace}:idle"

    def shares(self) -> str:
        """The tenants whose batches have items to hand out, by how much they have had."""
        return self._of_share("shares")

    def clock(self) -> str:
        """Where those begin who join."""
        return self._of_share("clock")

    def share(self, tenant: str) -> str:
        """A tenant's batches by how much they have had."""
        return self._of_share(f"share:{tenant}")

    def entry(self, batch_id: str) -> str:
        return self._of_share(f"entry:{batch_id}")

    def of_share(self, tenant: str, batch_id: str) -> list[str]:
        """All keys of a batch's share, in the order in which the scripts take them."""
        return [self.shares(), self.clock(), self.share(tenant), self.entry(batch_id)]

    def _of_share(self, name: str) -> str:
        return f"{{{self.namespace}:share}}:{name}"

    def workers(self) -> str:
        return f"{self.namespace}:workers"

    def broker_prefix(self) -> str:
        """Stands before every key that Celery's transport writes."""
        return f"{self.namespace}:broker:"
