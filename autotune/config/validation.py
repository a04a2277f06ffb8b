"""Checks a document against the shipped JSON schema: the part of draft 2020-12 that the schema uses, no more.

The schema is the one place that says what a config looks like, for people, for other programs and for ``load``;
a validator of our own keeps a dependency out and names the first fault the way a person looks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["config_schema", "first_fault"]

_TYPES: Mapping[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


@cache
def config_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a saved config. Do not change the returned object."""
    schema: dict[str, Any] = json.loads(files("autotune.config").joinpath("config_schema.json").read_text("utf-8"))
    return schema


def first_fault(document: object, schema: Mapping[str, Any]) -> str | None:
    """The first place in which a document departs from the schema.

    Args:
        document: What ``json.loads`` gave.
        schema: A schema of the keywords type, enum, const, minimum, exclusiveMinimum, maximum, properties, required,
            additionalProperties, items and $ref (to ``#/$defs/``).

    Returns:
        One clause such as ``"dataloader.batch_size is 'many' and must be integer or null"``; None if all is well.
    """
    return next(_faults(document, schema, schema.get("$defs", {}), ""), None)


def _faults(value: object, schema: Mapping[str, Any], defs: Mapping[str, Any], path: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _faults(value, defs[schema["$ref"].rpartition("/")[2]], defs, path)
    yield from _own_faults(value, schema, path or "the document")
    if isinstance(value, dict):
        yield from _object_faults(value, schema, defs, path)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _faults(item, schema["items"], defs, f"{path}[{index}]")


def _own_faults(value: object, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    if types and not any(_TYPES[name](value) for name in types):
        yield f"{path} is {_shown(value)} and must be {' or '.join(types)}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{path} is {_shown(value)} and must be {_shown(schema['const'])}"
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        yield f"{path} is {_shown(value)} and must be one of {', '.join(map(_shown, schema['enum']))}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _range_faults(value, schema, path)


def _range_faults(value: float, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if value < schema.get("minimum", value):
        yield f"{path} is {_shown(value)} and must be at least {schema['minimum']}"
    if value > schema.get("maximum", value):
        yield f"{path} is {_shown(value)} and must be at most {schema['maximum']}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield f"{path} is {_shown(value)} and must be above {schema['exclusiveMinimum']}"


def _object_faults(
    value: dict[str, Any], schema: Mapping[str, Any], defs: Mapping[str, Any], path: str
) -> Iterator[str]:
    within = f"{path}." if path else ""
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{within}{name} is missing"
    known = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            yield from _faults(item, known[name], defs, f"{within}{name}")
        elif rest is False:
            yield f"{within}{name} is unknown (known are {', '.join(known)})"
        elif isinstance(rest, Mapping):
            yield from _faults(item, rest, defs, f"{within}{name}")


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
