"""Says in words what a parameter or a field of a body may be: its JSON Schema, read aloud.

What is wrong with a value is told by what is right, so that every reader of an error knows what to send.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from api.patterns import IN_WORDS

Schema = Mapping[str, Any]

_LIMITS: Final = {
    "ge": "minimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}
"""How pydantic calls what JSON Schema calls otherwise."""
_PLAIN: Final = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list",
    "object": "a JSON object",
}
_FORMATS: Final = {"date": "a day such as 2026-01-31", "decimal": 'a decimal number such as "0.25"'}
_BOUNDLESS: Final = 2**53
"""A bound that is nobody's choice but the numbers' own."""
_STEP: Final = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


def of_parameter(info: FieldInfo) -> str:
    """What a parameter of a route may be."""
    schema = TypeAdapter[Any](info.annotation or str).json_schema()
    limits = {
        name: getattr(limit, own)
        for limit in info.metadata
        for own, name in _LIMITS.items()
        if getattr(limit, own, None) is not None
    }
    (kind, *_) = _alternatives(schema, {})
    shown = {**(kind["items"] if kind.get("type") == "array" else kind), **limits}
    if "pattern" in shown and shown["pattern"] not in IN_WORDS and info.description:
        return info.description.rstrip(".")
    return _one(shown)


def of_field(schema: Schema, path: str) -> str | None:
    """What may stand at a path such as `items[3].message`; None where the schema does not go so far."""
    kinds = list(_at(schema, path))
    if not kinds:
        return None
    found = list(dict.fromkeys(_one(kind) for kind in kinds))
    said = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"
    return f"{said}, each of them" if path.endswith("[...]") else said


def fields(schema: Schema, path: str) -> list[str]:
    """The names that an object at a path may have."""
    return sorted({name for kind in _at(schema, path) for name in kind.get("properties", ())})


def _at(schema: Schema, path: str) -> Iterator[Schema]:
    known = schema.get("$defs", {})
    found = list(_alternatives(schema, known))
    for step in _STEP.findall(path):
        found = [
            kind for outer in found for inner in _inside(outer, step) for kind in _alternatives(inner, known)
        ]
    return iter(found)


def _inside(kind: Schema, step: str) -> Iterator[Schema]:
    properties = kind.get("properties", {})
    if step in properties:
        yield properties[step]
    elif step.startswith("[") and isinstance(kind.get("items"), Mapping):
        yield kind["items"]
    elif isinstance(kind.get("additionalProperties"), Mapping):
        yield kind["additionalProperties"]


def _alternatives(schema: Schema, known: Mapping[str, Schema]) -> Iterator[Schema]:
    """What a value may be, one by one and without references; null is left out."""
    if "$ref" in schema:
        yield from _alternatives(known[schema["$ref"].rpartition("/")[2]], known)
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _alternatives(one, known)
    elif schema.get("type") != "null":
        yield schema


def _one(schema: Schema) -> str:
    if "enum" in schema or "const" in schema:
        choices = [str(choice) for choice in schema.get("enum", [schema.get("const")])]
        return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    if schema.get("pattern") in IN_WORDS:
        return IN_WORDS[schema["pattern"]]
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    kind = str(schema.get("type", "any JSON"))
    least, most = schema.get("minimum"), schema.get("maximum")
    if kind == "string" and "maxLength" in schema:
        return f"{schema.get('minLength', 0)} to {schema['maxLength']} characters"
    return _PLAIN.get(kind, kind) + _range(least, most)


def _range(least: float | None, most: float | None) -> str:
    if most is not None and most >= _BOUNDLESS:
        most = None
    if least is not None and most is not None:
        return f" from {least:g} to {most}"
    if least is not None:
        return f" of at least {least:g}"
    return "" if most is None else f" of at most {most}"
