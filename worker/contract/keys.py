"""Every Redis name, in one place.

A name begins with its shard's hash tag, `{<namespace>:<shard>}`, so that all keys of a conversation,
and the indexes of its shard, stand on one slot. `<work>` is a turn id, or `<batch id>/<first index>`
for a slice of a batch; the steps before and after its items are the slices -1 and -2.

    key                     type    expires             written by                     read by
    turn:<turn>             hash    after the turn      submit claim append finish …   get, reap
    log:<turn>              list    after the turn      every script that emits        read
    ledger:<work owner>     hash    after the turn      claim, ledger, finish          usage
    conv:<tenant>:<id>      hash    with the last turn  submit, open, finish           claim
    msgs:<tenant>:<id>      list    with the last turn  finish, open                   claim, history
    turns:<tenant>:<id>     zset    with the last turn  submit, finish                 erase
    history:<tenant>:<id>   hash    with the last turn  finish, checkout, compact …    claim, past, diff
    fifo:<tenant>:<id>      list    never (empty: gone) submit, finish, reorder …      finish
    gone:<turn>             string  86400 s             erase, submit                  submit
    batch:<batch>           hash    after the batch     batch_*                        get
    items:<batch>           list    after the batch     batch_items                    batch_claim
    rows:<batch>            hash    after the batch     batch_rows                     results
    slices:<batch>          hash    after the batch     batch_claim, batch_rows        batch_claim, …
    redo:<batch>            list    after the batch     batch_release, batch_rows      batch_claim
    bad:<batch>             list    after the batch     batch_rows, batch_claim        batch_retry
    again:<batch>           list    after the batch     batch_retry                    batch_claim
    order:<batch>           list    after the batch     batch_items, batch_rows …      events
    parked:<batch>          hash    after the batch     batch_claim                    batch_rows
    talks:<batch>           hash    after the batch     batch_items, batch_erase       batch_erase
    batches:<tenant>        zset    never (empty: gone) batch_open, batch_delete   list
    answer:<tenant>:<sha>   string  2592000 s           answer_keep                    answer_ask
    asking:<tenant>:<sha>   string  86400 s             answer_ask, answer_keep        answer_ask
    answers:<tenant>        zset    2592000 s           answer_ask, answer_keep        answers_forget
    file:<file>             hash    with the file       file_seal                      files
    pieces:<file>           list    with the file       file_piece                     files
    files:<tenant>          zset    never (empty: gone) file_seal, file_delete, tidy   list
    stood:<tenant>:<id>     string  3600 s              file_delete, batch_delete      list
    schedule:<schedule>     hash    never               schedule_*                     get, fire
    schedules:<tenant>      zset    never (empty: gone) schedule_*, erase              list
    planned:<tenant>:<id>   zset    never (empty: gone) schedule_*, erase              list, erase
    crons                   zset    never (empty: gone) schedule_*, erase              reap
    leases                  zset    never (empty: gone) claim, heartbeat, finish …     reap
    fences                  hash    never (empty: gone) claim, finish …                heartbeat
    ready                   zset    never (empty: gone) submit, claim, finish …        reap
    wakes                   hash    never (empty: gone) woken, claim                   woken
    due                     zset    never (empty: gone) submit, pause, batch_open …    reap
    dead                    zset    never (empty: gone) requeue, bury, erase, tidy     dead letters
    convs:<tenant>          zset    never (empty: gone) submit, open, erase, tidy …    list
    totals                  hash    never               finish, ledger, batch_rows     metrics
    usage:<tenant>:<day>    hash    34560000 s          finish, ledger, batch_rows     usage
    reaper                  string  1 s                 reap                           reap
    versions:<tenant>:<id>  hash    never (empty: gone) versions_*                     versions_read
    versioned:<tenant>      zset    never (empty: gone) versions_append, …_delete      agent_store
    shares                  zset    never (empty: gone) share_*                        share_pick
    clock                   hash    never               share_pick, share_leave        share_join
    share:<tenant>          zset    never (empty: gone) share_*                        share_pick
    entry:<batch>           hash    691200 s            share_join, share_leave        share_pick
    newcomers               zset    60 s                share_*                        workers
    budget:<scope>          hash    34560000 s          budget_*                       budget_reserve
    reserved                hash    never (empty: gone) budget_*                       budget_settle
    until                   zset    never (empty: gone) budget_*                       budget_reserve
    provider:<model>        hash    3600 s              provider_*                     GET /v1/providers
    calling:<lane>:<model>  zset    3600 s              provider_step, provider_renew  provider_step
    step:<model>:<process>  string  60 s                provider_step                  provider_step
    providers               zset    never (empty: gone) provider_step                  GET /v1/providers
    unwell                  zset    never (empty: gone) provider_step, provider_reset  workers
    <namespace>:workers     zset    60 s                presence                       stats

`gone` stands under the word of an erasure, too, with what that has erased. A `budget` of a conversation lives
on for as long as that one may; an `answer` as long as its batch wishes, `asking` as long as somebody asks.
`shares`, `clock`, `share`, `entry` and `newcomers` span shards and stand on a slot of their own,
`{<namespace>:share}`; `budget`, `reserved` and `until` on one for each tenant,
`{<namespace>:budget:<tenant>}`; the records of models, which tenants share, on `{<namespace>:providers}`.

Channels: `events:<turn>` (first sequence number, then one event a line), `<namespace>:control`
(turn ids to cancel), `<namespace>:idle` (nothing), `<namespace>:health` (a model, and whether it is well).
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.contract.ids import shard_of, shard_of_id


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

    def history(self, tenant: str, conversation_id: str) -> str:
        """A conversation's versions by number, what memory has left of them, and its summaries."""
        return self._of(shard_of(tenant, conversation_id), f"history:{tenant}:{conversation_id}")

    def of_conversation(self, tenant: str, conversation_id: str) -> list[str]:
        """What a conversation was and is, in the order in which the scripts take it."""
        return [
            self.conversation(tenant, conversation_id),
            self.messages(tenant, conversation_id),
            self.history(tenant, conversation_id),
        ]

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

    def bad(self, batch_id: str) -> str:
        return self._of(shard_of_id(batch_id), f"bad:{batch_id}")

    def again(self, batch_id: str) -> str:
        return self._of(shard_of_id(batch_id), f"again:{batch_id}")

    def order(self, batch_id: str) -> str:
        """The indexes of a batch's rows in the order in which they came."""
        return self._of(shard_of_id(batch_id), f"order:{batch_id}")

    def parked(self, batch_id: str) -> str:
        """Items of a batch that repeat or continue an earlier one which has no row yet."""
        return self._of(shard_of_id(batch_id), f"parked:{batch_id}")

    def talks(self, batch_id: str) -> str:
        """The conversations that a batch has items of."""
        return self._of(shard_of_id(batch_id), f"talks:{batch_id}")

    def batches(self, shard: int, tenant: str = "") -> str:
        """A tenant's batches on a shard, by when they were made; scripts add the tenant themselves."""
        return self._of(shard, f"batches:{tenant}")

    def answer(self, tenant: str, shard: int, digest: str) -> str:
        return self._of(shard, f"answer:{tenant}:{digest}")

    def asking(self, tenant: str, shard: int, digest: str) -> str:
        """Who asks that question now."""
        return self._of(shard, f"asking:{tenant}:{digest}")

    def answers(self, tenant: str, shard: int) -> str:
        """The digests of a tenant's answers on a shard, by when they are gone."""
        return self._of(shard, f"answers:{tenant}")

    def of_answer(self, tenant: str, shard: int, digest: str) -> list[str]:
        """All keys of an answer, in the order in which the scripts take them; with '' those of none."""
        names = [self.answer(tenant, shard, digest), self.asking(tenant, shard, digest)]
        return [*names, self.answers(tenant, shard)]

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
        return [
            self.file(file_id), self.pieces(file_id), self.files(tenant, shard), self.due(shard),
            self.stood(tenant, file_id),
        ]  # fmt: skip

    def stood(self, tenant: str, name: str) -> str:
        """Where a file or batch stood that was deleted: a reader of the list may go on from there."""
        return self._of(shard_of_id(name), f"stood:{tenant}:{name}")

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
        """All keys of a schedule, in the order in which the scripts take them."""
        shard, whose = shard_of_id(schedule_id), (tenant, conversation_id or "")
        names = [self.schedule(schedule_id), self.schedules(tenant, shard), self.crons(shard)]
        names.append(self.gone(shard, schedule_id))
        if conversation_id is None:
            return names
        names += [self.planned(*whose), self.conversation(*whose), self.messages(*whose)]
        return [*names, self.turns(*whose), self.convs(tenant, shard), self.history(*whose)]

    def of_erasure(self, tenant: str, conversation_id: str) -> list[str]:
        """All keys of a conversation with those of its schedules, whose records end in their ids."""
        shard, names = shard_of(tenant, conversation_id), self.of_turn("", tenant, conversation_id)
        names += [self.planned(tenant, conversation_id), self._of(shard, "schedule:")]
        return [*names, self.schedules(tenant, shard), self.crons(shard)]

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
        """A tenant's provider calls of the day (since 1970, UTC) on which they were entered; scripts add the
        day themselves, and for batches the tenant."""
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
            self._of(shard, f"turn:{turn_id}"), self._of(shard, f"log:{turn_id}"),
            self.conversation(tenant, conversation_id), self.messages(tenant, conversation_id),
            self.fifo(tenant, conversation_id), *self._of_shard(shard),
            self._of(shard, f"ledger:{turn_id}"), self.totals(shard), self.due(shard), self.dead(shard),
            self.turns(tenant, conversation_id), self.convs(tenant, shard), self.usage(shard, tenant),
            self.history(tenant, conversation_id),
        ]  # fmt: skip

    def of_batch(self, batch_id: str) -> list[str]:
        """All keys of a batch, in the order in which the scripts take them."""
        shard = shard_of_id(batch_id)
        return [
            self.batch(batch_id), self.items(batch_id), self.rows(batch_id), self.slices(batch_id),
            self.redo(batch_id), *self._of_shard(shard), self.ledger(batch_id), self.totals(shard),
            self.usage(shard), self.due(shard), self.bad(batch_id), self.again(batch_id),
            self.order(batch_id), self.parked(batch_id), self.batches(shard), self.talks(batch_id),
        ]  # fmt: skip

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

    def newcomers(self) -> str:
        """The batches that have come just now, by how many slots they may still expect at once."""
        return self._of_share("newcomers")

    def of_share(self, tenant: str, batch_id: str) -> list[str]:
        """All keys of a batch's share, in the order in which the scripts take them."""
        return [self.shares(), self.clock(), self.share(tenant), self.entry(batch_id), self.newcomers()]

    def _of_share(self, name: str) -> str:
        return f"{{{self.namespace}:share}}:{name}"

    def budget(self, tenant: str, scope: str) -> str:
        """What was used and is held of the budgets of one owner; scripts add the scope themselves."""
        return self._of_budgets(tenant, f"budget:{scope}")

    def reserved(self, tenant: str) -> str:
        """What provider calls under way hold of budgets, by call id."""
        return self._of_budgets(tenant, "reserved")

    def until(self, tenant: str) -> str:
        """Those calls by when they give it back."""
        return self._of_budgets(tenant, "until")

    def _of_budgets(self, tenant: str, name: str) -> str:
        return f"{{{self.namespace}:budget:{tenant}}}:{name}"

    def providers(self) -> str:
        """The models that were limited or not well, by when they were asked for last."""
        return self._of_providers("providers")

    def unwell(self) -> str:
        """The models that nobody calls without asking."""
        return self._of_providers("unwell")

    def of_provider(self, model: str) -> list[str]:
        """The record of a model, and who calls it: chats, then items of batches."""
        return [self.provider(model), self.calling("chat", model), self.calling("batch", model)]

    def provider(self, model: str) -> str:
        return self._of_providers(f"provider:{model}")

    def calling(self, lane: str, model: str) -> str:
        """The calls of a model that are under way, by until when their places are kept."""
        return self._of_providers(f"calling:{lane}:{model}")

    def step(self, model: str, process: str) -> str:
        """What a process was told last of a model."""
        return self._of_providers(f"step:{model}:{process}")

    def _of_providers(self, name: str) -> str:
        return f"{{{self.namespace}:providers}}:{name}"

    def health(self) -> str:
        """The channel that tells workers when a model stops being well, and when it is well again."""
        return f"{self.namespace}:health"

    def workers(self) -> str:
        return f"{self.namespace}:workers"

    def broker_prefix(self) -> str:
        """Stands before every key that Celery's transport writes."""
        return f"{self.namespace}:broker:"
