"""Values as Python calls, YAML and TOML: just what exports hold, written without a library."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.export.record import NotExpressed

__all__ = ["comments", "python_call", "toml", "yaml"]


def python_call(target: str, arguments: Mapping[str, Any], *first: str) -> str:
    """A call with one argument per line.

    Args:
        target: What is called.
        arguments: Plain values by name.
        first: Positional arguments, as they are to be written.
    """
    lines = [*first, *(f"{name}={value!r}" for name, value in arguments.items())]
    return "\n".join([f"{target}(", *(f"    {line}," for line in lines), ")"])


def comments(left: Sequence[NotExpressed], *, mark: str = "#") -> str:
    """What is not expressed, as comment lines; empty where there is nothing.

    Args:
        left: Those things.
        mark: Begins a comment.
    """
    if not left:
        return ""
    lines = [f"{mark} Not expressed here:"]
    for one in left:
        lines += textwrap.wrap(str(one), 110, initial_indent=f"{mark} - ", subsequent_indent=f"{mark}   ")
    return "\n".join(lines) + "\n"


def yaml(values: Mapping[str, Any]) -> str:
    """Scalars, lists of scalars and one level of mappings as YAML.

    Args:
        values: By name.
    """
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{name}:", *(f"  {key}: {_scalar(item)}" for key, item in value.items())]
        else:
            lines.append(f"{name}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of scalars and lists as TOML; a value of None has no form there and is not allowed.

    Args:
        tables: By name, which may be dotted.
    """
    parts = []
    for name, table in tables.items():
        parts.append("\n".join([f"[{name}]", *(f"{key} = {_scalar(value)}" for key, value in table.items())]))
    return "\n\n".join(parts) + "\n"


def _scalar(value: Any) -> str:
    """JSON's form, which YAML and TOML share; but both want a point in a number with an exponent."""
    if isinstance(value, float) and "e" in repr(value) and "." not in repr(value):
        return repr(value).replace("e", ".0e")
    return json.dumps(value)
