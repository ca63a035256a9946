"""Tools without side effects that ship with aiforge: calculator, unit_converter, current_time."""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Final

from aiforge.tools import arithmetic, units
from aiforge.tools.tool import Tool, parameters


def calculate(expression: str) -> str:
    """Raises ValueError with a text that helps the model to ask better."""
    return arithmetic.evaluate(expression)


def convert(value: float | str, from_unit: str, to_unit: str) -> str:
    """`value` in `to_unit`; raises ValueError on unknown or unlike units."""
    return f"{units.convert(value, from_unit, to_unit)} {to_unit}"


def now(timezone: str = "UTC") -> str:
    """The present time as ISO 8601 to the second, with weekday; raises ValueError on an unknown zone."""
    try:
        zone = zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {timezone!r}; use an IANA name such as Europe/Berlin") from None
    moment = datetime.datetime.now(zone)
    return f"{moment.isoformat(timespec='seconds')} ({moment:%A})"


TOOLS: Final = (
    Tool(
        "calculator",
        "Evaluate an arithmetic expression exactly, such as 249.99 * 0.85 or sqrt(2) ^ 3.",
        parameters(
            ["expression"],
            expression={
                "type": "string",
                "description": "numbers, + - * / // % ^, brackets, pi, e, functions such as sqrt or round",
            },
        ),
        calculate,
    ),
    Tool(
        "unit_converter",
        "Convert a value between units of length, mass, volume, area, time, speed, data, energy, "
        "pressure or temperature.",
        parameters(
            ["value", "from_unit", "to_unit"],
            value={"type": "number"},
            from_unit={"type": "string", "description": "such as km, mile, kg, lb, celsius, GB"},
            to_unit={"type": "string"},
        ),
        convert,
    ),
    Tool(
        "current_time",
        "The current date and time.",
        parameters([], timezone={"type": "string", "description": "IANA name, default UTC"}),
        now,
    ),
)
