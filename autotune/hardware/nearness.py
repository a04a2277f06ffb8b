"""How one machine's record differs from another's, in the facts that change how fast a setting is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.hardware.accelerator import UNKNOWN_NAME

__all__ = ["Difference", "is_patch_release", "speed_differences"]

_PLAIN = ("cores", "cpu_model", "torch", "cuda", "cudnn")
_OF_CARD = ("type", "name", "count", "memory_gib", "driver_major")
_UNKNOWN = (None, UNKNOWN_NAME)  # what only the device itself could say is no difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that is not the same."""

    field: str
    there: Any
    """Where the settings were measured."""
    here: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.there} there, {self.here} here"

    def to_json(self) -> dict[str, Any]:
        """JSON scalars."""
        return {"field": self.field, "there": self.there, "here": self.here}


def speed_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The facts of ``Hardware.speed_facts`` in which two records differ; none where settings can be carried over.

    Args:
        there: As ``Hardware.to_json`` gives it, perhaps with its fingerprint; from a file, so perhaps with less.
        here: The same of this machine.
    """
    if there.get("fingerprint") is not None and there.get("fingerprint") == here.get("fingerprint"):
        return ()
    if not any(name in there for name in _PLAIN):
        return (Difference(field="fingerprint", there=there.get("fingerprint"), here=here.get("fingerprint")),)
    one, other = _facts(there), _facts(here)
    card = "accelerator" in there and "accelerator" in here
    if card and (there["accelerator"] is None) != (here["accelerator"] is None):
        one, other = ({**facts, "accelerator": _name(record)} for facts, record in ((one, there), (other, here)))
        names = [*_PLAIN, "accelerator"]
    else:
        names = list(one)
    return tuple(
        Difference(field=name, there=one[name], here=other[name])
        for name in names
        if one[name] != other[name] and not (name.startswith("accelerator.") and _unknown(one[name], other[name]))
    )


def is_patch_release(differences: Sequence[Difference]) -> bool:
    """Whether nothing but torch's patch release (and the cuDNN it brings) differs: a near match, to be checked."""
    fields = {one.field for one in differences}
    if "torch" not in fields or not fields <= {"torch", "cudnn"}:
        return False
    return all(_same_minor(one) for one in differences)


def _same_minor(difference: Difference) -> bool:
    if difference.field == "cudnn":
        both = (difference.there, difference.here)
        return all(type(one) is int for one in both) and both[0] // 10_000 == both[1] // 10_000
    there, here = (
        re.fullmatch(r"(\d+\.\d+)\.\d+[^+]*(\+.*)?", str(one)) for one in (difference.there, difference.here)
    )
    return there is not None and here is not None and there.groups() == here.groups()


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: record.get(name) for name in _PLAIN}
    card = record.get("accelerator")
    card = card if isinstance(card, Mapping) else {}
    memory, driver = card.get("memory_bytes"), card.get("driver")
    known = {
        **{name: card.get(name) for name in ("type", "name", "count")},
        "memory_gib": round(memory / 2**30) if isinstance(memory, int) else None,
        "driver_major": str(driver).split(".")[0] if driver is not None else None,
    }
    return {**facts, **{f"accelerator.{name}": known[name] for name in _OF_CARD}}


def _name(record: Mapping[str, Any]) -> Any:
    card = record["accelerator"]
    return card.get("name") if isinstance(card, Mapping) else None


def _unknown(*values: Any) -> bool:
    return any(value in _UNKNOWN for value in values)
