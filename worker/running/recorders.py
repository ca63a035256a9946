"""Whose ledger a turn's or an item's provider calls are entered in."""

from __future__ import annotations

from worker.calls.ledger import Recorder
from worker.contract.batch.batches import Slice
from worker.contract.calls.budget_limits import limit
from worker.contract.places import Place
from worker.contract.store import TurnStore
from worker.running.specs import Specs


def of_turn(store: TurnStore, place: Place, token: str, specs: Specs) -> Recorder:
    """The recorder of a turn that is, or is about to be, claimed with this token."""
    prefix = f"{place.turn_id}.{token}"
    return Recorder(store, place.turn_id, prefix, specs.first_call, tenant=place.tenant, purses=specs.purses)


def of_item(store: TurnStore, taken: Slice, index: int, specs: Specs) -> Recorder:
    """The recorder of one item of a slice."""
    cap = taken.defaults.max_cost
    limits = [] if cap is None else [limit("max_usd", cap)]
    purse = (
        specs.purses.of_batch(taken.tenant, taken.batch_id, limits, api_key=taken.api_key)
        if specs.purses
        else None
    )
    prefix = f"{taken.batch_id}.{taken.token}.{index}"
    recorder = Recorder(store, taken.batch_id, prefix, specs.first_call, tenant=taken.tenant, purse=purse)
    recorder.attempt = taken.attempt
    return recorder
