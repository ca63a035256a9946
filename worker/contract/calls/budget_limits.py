"""What budgets are limited to, as settings and callers write it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal, get_args

import msgspec

from worker.contract.ids import is_tenant

Measure = Literal["requests", "tokens", "usd"]
UNITS: Final = 10**12
"""A budget of USD is counted in 10⁻¹² of it, as the ledger's totals are."""
MOST: Final[Mapping[Measure, int]] = {"requests": 10**9, "tokens": 10**9, "usd": 9 * 10**6}
"""What a budget can hold: Redis adds integers of 64 bits."""
_WINDOWS: Final[Mapping[str, int]] = {"minute": 60, "hour": 3_600, "day": 86_400}
_NAME: Final = re.compile(
    rf"(?P<m1>{'|'.join(get_args(Measure))})_per_(?P<window>{'|'.join(_WINDOWS)})|max_(?P<m2>{'|'.join(get_args(Measure))})"
)


class Limit(msgspec.Struct, frozen=True):
    """At most `amount` of a measure in each window of `seconds`; 0 seconds is a window without end."""

    measure: Measure
    seconds: int
    amount: int
    """Requests, tokens, or units of 10⁻¹² USD."""

    @property
    def name(self) -> str:
        """As settings and errors write it, such as `usd_per_day` or `max_usd`."""
        for word, seconds in _WINDOWS.items():
            if seconds == self.seconds:
                return f"{self.measure}_per_{word}"
        return f"max_{self.measure}"

    def shown(self, amount: int) -> str:
        """An amount in the units that people write."""
        return f"{Decimal(amount) / UNITS:f}" if self.measure == "usd" else str(amount)


def limit(name: str, amount: Decimal) -> Limit:
    """A limit by its name; raises ValueError saying what is right."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"{name}: no such limit; there are requests, tokens and usd, as in usd_per_day, tokens_per_hour,"
            " requests_per_minute or max_usd"
        )
    measure = msgspec.convert(found["m1"] or found["m2"], Measure)
    if not amount.is_finite() or not 0 <= amount <= MOST[measure]:
        raise ValueError(f"{name}: must be from 0 to {MOST[measure]}")
    exact = amount * (UNITS if measure == "usd" else 1)
    if exact != int(exact):
        raise ValueError(f"{name}: is finer than " + ("10^-12 USD" if measure == "usd" else "one"))
    return Limit(measure, _WINDOWS.get(found["window"], 0), int(exact))


def limits(written: Mapping[str, Decimal]) -> list[Limit]:
    """Limits by their names; raises ValueError saying what is right."""
    return [limit(name, amount) for name, amount in written.items()]


def tightest(found: Sequence[Limit]) -> list[Limit]:
    """Of limits of the same measure and window the lowest: they would count everything twice."""
    lowest: dict[tuple[Measure, int], Limit] = {}
    for limit in found:
        known = lowest.setdefault((limit.measure, limit.seconds), limit)
        if limit.amount < known.amount:
            lowest[limit.measure, limit.seconds] = limit
    return list(lowest.values())


def check_owner(owner: str) -> None:
    """Raises ValueError unless budgets can be written for this: a kind of owner, a tenant or key by name."""
    kind, _, name = owner.partition(":")
    if owner not in ("tenant", "key", "conversation", "batch") and not (
        kind in ("tenant", "key") and is_tenant(name)
    ):
        raise ValueError(
            "budgets are written for tenant, tenant:<name>, key, key:<name>, conversation or batch"
        )
