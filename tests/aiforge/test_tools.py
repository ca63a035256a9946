"""The tools that ship, and the registry that finds them."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiforge.core.types import ConfigError
from aiforge.tools import registry
from aiforge.tools.human import ask_human

CALCULATOR, CONVERTER, CLOCK = registry.resolve(["calculator", "unit_converter", "current_time"])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("249.99*0.85", "212.4915"),
        ("249.99 * 0.85", "212.4915"),
        ("0.1 + 0.2", "0.3"),
        ("2 ^ 10", "1024"),
        ("2**100", "1267650600228229401496703205376"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("(1 + 2) * 3", "9"),
        ("1/3", "0.3333333333333333333333333333"),
        ("sqrt(2) ^ 2", "2"),
        ("round(2.675, 2)", "2.68"),
        ("max(1, 2, 3) - min(4, 5)", "-1"),
        ("factorial(20)", "2432902008176640000"),
        ("log(1000)", "3"),
        ("1_000 * 2", "2000"),
    ],
)
def test_calculator(expression: str, value: str) -> None:
    assert CALCULATOR.invoke({"expression": expression}) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9**9", "too large"),
        ("factorial(100000)", "factorial"),
        ("1e400", "too large"),
        ("1/0", "division by zero"),
        ("0**-1", "not defined"),
        ("log(0)", "not defined"),
        ("-ln(0)", "not defined"),
        ("max(1, -log(0))", "not defined"),
        ("0 * log(0)", "not defined"),
        ("10**-10**10", "too small"),
        ("exp(-10**6)", "too small"),
        ("(-8) ** 0.5", "not defined"),
        ("", "empty"),
        ("1 +", "not an arithmetic expression"),
        ("(" * 300, "not an arithmetic expression"),
        ("1" * 501, "longer"),
        ("__import__('os').system('true')", "not allowed"),
        ("(1).__class__", "not allowed"),
        ("'a' * 9", "not allowed"),
        ("[1] * 9", "not allowed"),
        ("lambda: 1", "not allowed"),
        ("open", "not allowed"),
        ("True", "numbers"),
        ("max()", "arguments"),
        ("sqrt(1, 2)", "arguments"),
    ],
)
def test_calculator_refuses_fast_and_says_why(expression: str, reason: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ValueError, match=reason):
        CALCULATOR.invoke({"expression": expression})
    assert time.perf_counter() - started < 1


@given(st.text(alphabet="0123456789.+-*/%^() ,esqrtpiminax_ln'[]", max_size=60))
def test_calculator_gives_a_number_or_a_value_error(expression: str) -> None:
    with suppress(ValueError):
        assert Decimal(str(CALCULATOR.invoke({"expression": expression}))).is_finite()


@pytest.mark.parametrize(
    ("value", "from_unit", "to_unit", "result"),
    [
        (100, "km", "miles", "62.1371192237 miles"),
        (1, "mile", "km", "1.609344 km"),
        (100, "celsius", "fahrenheit", "212 fahrenheit"),
        (72, "°F", "°C", "22.2222222222 °C"),
        (0, "c", "K", "273.15 K"),
        (2, "GB", "KiB", "1953125 KiB"),
        ("2.5", "Hours", "min", "150 min"),
        (1, "fluid ounce", "ml", "29.5735295625 ml"),
        (60, "mph", "km/h", "96.56064 km/h"),
        (0, "m", "ft", "0 ft"),
    ],
)
def test_unit_converter(value: Any, from_unit: str, to_unit: str, result: str) -> None:
    assert CONVERTER.invoke({"value": value, "from_unit": from_unit, "to_unit": to_unit}) == result


@pytest.mark.parametrize(
    ("value", "from_unit", "to_unit", "reason"),
    [
        (1, "kg", "m", "cannot be converted"),
        (1, "celsius", "m", "cannot be converted"),
        (1, "furlong", "m", "unknown unit 'furlong'"),
        (-500, "c", "k", "absolute zero"),
        ("many", "m", "km", "not a number"),
        ("nan", "m", "km", "not a number"),
        (1e300, "m", "km", "not a number"),
    ],
)
def test_unit_converter_says_what_is_wrong(value: Any, from_unit: str, to_unit: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CONVERTER.invoke({"value": value, "from_unit": from_unit, "to_unit": to_unit})


def test_current_time() -> None:
    stamp, weekday = str(CLOCK.invoke({})).split(" ")
    moment = datetime.fromisoformat(stamp)
    assert abs(moment.timestamp() - time.time()) < 5
    assert weekday == f"({moment:%A})"
    assert (
        datetime.fromisoformat(str(CLOCK.invoke({"timezone": "Asia/Tokyo"})).split(" ")[0]).utcoffset()
        is not None
    )


@pytest.mark.parametrize("zone", ["../etc/passwd", "/etc/passwd", "Nowhere/None", ""])
def test_current_time_refuses_what_is_no_zone(zone: str) -> None:
    with pytest.raises(ValueError, match="unknown time zone"):
        CLOCK.invoke({"timezone": zone})


def test_registry_resolves_in_order_and_names_what_it_lacks() -> None:
    assert registry.names() == {"calculator", "unit_converter", "current_time", "ask_human"}
    assert registry.resolve(["ask_human"]) == [ask_human]
    assert [tool.name for tool in registry.resolve(["current_time", "calculator"])] == [
        "current_time",
        "calculator",
    ]
    with pytest.raises(ConfigError, match="'shell'"):
        registry.resolve(["shell"])
    with pytest.raises(ConfigError, match="twice"):
        registry.resolve(["calculator", "calculator"])


def test_names_are_cheap() -> None:
    script = "import sys, aiforge.tools.registry as r; r.names(); print('langchain_core' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
