"""The small validator and the shipped schema, checked against the jsonschema package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config.validation import config_schema, first_fault

_TOY = {
    "type": "object",
    "required": ["kind"],
    "additionalProperties": False,
    "properties": {
        "kind": {"enum": ["a", 1, None]},
        "size": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
        "rate": {"type": "number", "exclusiveMinimum": 0},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
        "notes": {"type": "object", "additionalProperties": {"type": "string"}},
        "version": {"const": 1},
    },
    "$defs": {"part": {"type": "object", "required": ["on"], "properties": {"on": {"type": "boolean"}}}},
}


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"kind": "a"}, None),
        ({"kind": None, "size": 3, "rate": 0.5, "parts": [{"on": True}], "notes": {"x": "y"}, "version": 1}, None),
        ({}, "kind is missing"),
        ([], "the document is a list and must be object"),
        ({"kind": "b"}, 'kind is "b" and must be one of "a", 1, null'),
        ({"kind": True}, 'kind is true and must be one of "a", 1, null'),
        ({"kind": "a", "size": True}, "size is true and must be integer or null"),
        ({"kind": "a", "size": 0}, "size is 0 and must be at least 1"),
        ({"kind": "a", "size": 10}, "size is 10 and must be at most 9"),
        ({"kind": "a", "rate": 0}, "rate is 0 and must be above 0"),
        ({"kind": "a", "rate": "x" * 99}, f'rate is "{"x" * 36}... and must be number'),
        ({"kind": "a", "parts": [{"on": True}, {}]}, "parts[1].on is missing"),
        ({"kind": "a", "parts": [{"on": {}}]}, "parts[0].on is an object and must be boolean"),
        ({"kind": "a", "notes": {"x": 1}}, "notes.x is 1 and must be string"),
        ({"kind": "a", "version": 2}, "version is 2 and must be 1"),
        ({"kind": "a", "colour": 1}, "colour is unknown (known are kind, size, rate, parts, notes, version)"),
    ],
)
def test_first_fault_names_place_value_and_rule(document: object, fault: str | None) -> None:
    """Each keyword gives a clause that a person can act on."""
    assert first_fault(document, _TOY) == fault


def _leaves() -> st.SearchStrategy[Any]:
    return st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from(["a", "b", 0.5, -1.5])


_VALUES = st.recursive(
    _leaves(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*_TOY["properties"], "on", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*_TOY["properties"], "x"]), _VALUES, max_size=5))
def test_verdict_agrees_with_jsonschema(document: dict[str, Any]) -> None:
    """On the keywords in use the validator accepts exactly what the full one accepts."""
    accepted = jsonschema.Draft202012Validator(_TOY).is_valid(document)
    assert (first_fault(document, _TOY) is None) == accepted


def test_schema_is_valid_draft_2020_12() -> None:
    """The shipped file is a schema other tools can use."""
    jsonschema.Draft202012Validator.check_schema(config_schema())


def test_schema_uses_only_known_keywords() -> None:
    """A keyword the validator does not know would be silently ignored by ``load``."""
    known = {"type", "enum", "const", "minimum", "exclusiveMinimum", "maximum", "properties", "required"}
    known |= {"additionalProperties", "items", "$ref", "description", "title", "$schema", "$id", "$defs"}
    assert {key for schema in _schemas(config_schema()) for key in schema} <= known


def test_every_field_is_described() -> None:
    """Each property, item and definition says what it means."""
    bare = [json.dumps(schema) for schema in _fields(config_schema()) if not _description(schema)]
    assert bare == []


def _schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for child in _children(schema):
        yield from _schemas(child)


def _fields(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for child in _properties(schema):
        yield child
        yield from _fields(child)
    for child in schema.get("$defs", {}).values():
        yield from _fields(child)


def _children(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [*_properties(schema), *schema.get("$defs", {}).values()]


def _properties(schema: dict[str, Any]) -> list[dict[str, Any]]:
    nested = [schema.get("items"), schema.get("additionalProperties")]
    return [*schema.get("properties", {}).values(), *(one for one in nested if isinstance(one, dict))]


def _description(schema: dict[str, Any]) -> str:
    if "$ref" in schema and "description" not in schema:
        schema = config_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema.get("description", "")
