"""Conversion between units of one dimension, exact in decimal."""

from __future__ import annotations

from decimal import Context, Decimal, InvalidOperation, localcontext
from typing import Final

_FACTORS: Final[dict[str, dict[str, str]]] = {
    "length": {
        "m meter metre meters metres": "1",
        "km kilometer kilometre kilometers kilometres": "1000",
        "cm centimeter centimetre centimeters centimetres": "0.01",
        "mm millimeter millimetre millimeters millimetres": "0.001",
        "um micrometer micrometre": "0.000001",
        "mi mile miles": "1609.344",
        "yd yard yards": "0.9144",
        "ft foot feet": "0.3048",
        "in inch inches": "0.0254",
        "nmi nautical_mile nautical_miles": "1852",
    },
    "mass": {
        "kg kilogram kilograms": "1",
        "g gram grams": "0.001",
        "mg milligram milligrams": "0.000001",
        "t tonne tonnes": "1000",
        "lb lbs pound pounds": "0.45359237",
        "oz ounce ounces": "0.028349523125",
        "st stone": "6.35029318",
    },
    "volume": {
        "l liter litre liters litres": "1",
        "ml milliliter millilitre milliliters millilitres": "0.001",
        "m3 cubic_meter cubic_metre": "1000",
        "gal gallon gallons": "3.785411784",
        "qt quart quarts": "0.946352946",
        "pt pint pints": "0.473176473",
        "cup cups": "0.2365882365",
        "fl_oz fluid_ounce fluid_ounces": "0.0295735295625",
        "tbsp tablespoon tablespoons": "0.01478676478125",
        "tsp teaspoon teaspoons": "0.00492892159375",
    },
    "area": {
        "m2 square_meter square_metre": "1",
        "km2 square_kilometer square_kilometre": "1000000",
        "ha hectare hectares": "10000",
        "acre acres": "4046.8564224",
        "ft2 sqft square_foot square_feet": "0.09290304",
        "mi2 square_mile square_miles": "2589988.110336",
    },
    "time": {
        "s sec second seconds": "1",
        "ms millisecond milliseconds": "0.001",
        "min minute minutes": "60",
        "h hr hour hours": "3600",
        "d day days": "86400",
        "week weeks": "604800",
    },
    "speed": {
        "m/s mps": "1",
        "km/h kph kmh": "0.2777777777777777777777777777777777777777777777778",
        "mph mi/h": "0.44704",
        "kn knot knots": "0.5144444444444444444444444444444444444444444444444",
    },
    "data": {
        "byte bytes": "1",
        "bit bits": "0.125",
        "kb kilobyte kilobytes": "1000",
        "mb megabyte megabytes": "1000000",
        "gb gigabyte gigabytes": "1000000000",
        "tb terabyte terabytes": "1000000000000",
        "kib": "1024",
        "mib": "1048576",
        "gib": "1073741824",
        "tib": "1099511627776",
    },
    "energy": {
        "j joule joules": "1",
        "kj kilojoule kilojoules": "1000",
        "cal calorie calories": "4.184",
        "kcal kilocalorie kilocalories": "4184",
        "wh": "3600",
        "kwh": "3600000",
    },
    "pressure": {
        "pa pascal": "1",
        "kpa": "1000",
        "bar": "100000",
        "psi": "6894.757293168361",
        "atm": "101325",
        "mmhg": "133.322387415",
    },
}
"""Per dimension: the spellings of a unit, lower case, and how many base units one is."""

_UNITS: Final = {
    spelling: (dimension, Decimal(factor))
    for dimension, factors in _FACTORS.items()
    for spellings, factor in factors.items()
    for spelling in spellings.split()
}

_TEMPERATURES: Final = {
    "c": "c",
    "°c": "c",
    "celsius": "c",
    "f": "f",
    "°f": "f",
    "fahrenheit": "f",
    "k": "k",
    "kelvin": "k",
}

_CONTEXT: Final = Context(prec=40)


def convert(value: float | str, from_unit: str, to_unit: str) -> str:
    """`value` in `to_unit`, to 12 significant digits; raises ValueError on what cannot be converted."""
    with localcontext(_CONTEXT):
        number = _number(value)
        source, target = _spelling(from_unit), _spelling(to_unit)
        if source in _TEMPERATURES and target in _TEMPERATURES:
            return _short(_from_kelvin(_to_kelvin(number, _TEMPERATURES[source]), _TEMPERATURES[target]))
        for unit, name in ((source, from_unit), (target, to_unit)):
            if unit not in _UNITS and unit not in _TEMPERATURES:
                raise ValueError(f"unknown unit {name!r}")
        if source in _TEMPERATURES or target in _TEMPERATURES or _UNITS[source][0] != _UNITS[target][0]:
            raise ValueError(f"{from_unit!r} cannot be converted to {to_unit!r}")
        return _short(number * _UNITS[source][1] / _UNITS[target][1])


def _number(value: float | str) -> Decimal:
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a number") from None
    if not number.is_finite() or abs(number.adjusted()) > 100:
        raise ValueError(f"{value!r} is not a number that can be converted")
    return number


def _spelling(unit: str) -> str:
    return str(unit).strip().lower().replace(" ", "_").replace("²", "2").replace("³", "3")


def _to_kelvin(value: Decimal, scale: str) -> Decimal:
    if scale == "c":
        return value + Decimal("273.15")
    if scale == "f":
        return (value + Decimal("459.67")) * 5 / 9
    return value


def _from_kelvin(value: Decimal, scale: str) -> Decimal:
    if value < 0:
        raise ValueError("the temperature is below absolute zero")
    if scale == "c":
        return value - Decimal("273.15")
    if scale == "f":
        return value * 9 / 5 - Decimal("459.67")
    return value


def _short(value: Decimal) -> str:
    if not value:
        return "0"
    shortened = value.quantize(Decimal(1).scaleb(value.adjusted() - 11)).normalize()
    return f"{shortened:f}" if -15 <= shortened.adjusted() <= 30 else str(shortened)
