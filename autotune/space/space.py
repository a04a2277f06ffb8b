"""The caller's own limits on what may be tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from autotune.errors import SettingsError
from autotune.settings import DOMAINS

__all__ = ["Space"]

_UNLESS_ALLOWED = {"length_grouped": (False,)}  # knobs that are not free unless the caller says so


class Space:
    """The caller's own limits on what may be tried: knob name -> allowed values.

    Example: ``Space(num_workers=[0, 2, 4], precision=["fp32"])``. Knobs left out are free, but for
    ``length_grouped``, which changes the order of samples: ``Space(length_grouped=True)`` allows it. The baseline is
    always allowed: it is what the caller has.

    Args:
        **knobs: Any knob of ``Settings`` with a non-empty sequence of values from its domain.

    Raises:
        SettingsError: Unknown knob, or a value outside the knob's domain.
    """

    def __init__(self, **knobs: Sequence[Any] | bool) -> None:
        wanted = {name: _plain(_flag(name, values)) for name, values in knobs.items()}
        for name, values in wanted.items():
            _check_knob(name, values)
        self._allowed: dict[str, tuple[Any, ...]] = {name: tuple(values) for name, values in wanted.items()}

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={list(values)!r}' for name, values in self._allowed.items())})"

    def allows(self, name: str, value: object) -> bool:
        """Whether ``value`` may be tried for knob ``name``."""
        allowed = self._allowed.get(name, _UNLESS_ALLOWED.get(name))
        return allowed is None or any(type(value) is type(one) and value == one for one in allowed)

    def listed(self, name: str) -> tuple[Any, ...] | None:
        """What the caller listed for a knob; None where it is free."""
        return self._allowed.get(name)

    def nearest(self, name: str, number: int) -> int:
        """The allowed number nearest to ``number`` by ratio; ``number`` itself where the knob is free."""
        allowed = [value for value in self._allowed.get(name, ()) if value is not None]
        return min(allowed, key=lambda value: abs(math.log2((value + 0.5) / (number + 0.5))), default=number)


def _flag(name: str, values: Any) -> Any:
    """``length_grouped=True`` allows it, ``False`` does not."""
    return ((False, True) if values else (False,)) if name == "length_grouped" and isinstance(values, bool) else values


def _plain(values: Any) -> Any:
    """numpy's integers as python's."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        return values
    return [int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value for value in values]


def _check_knob(name: str, values: Sequence[Any]) -> None:
    domain = DOMAINS.get(name)
    if domain is None:
        raise SettingsError(f"Unknown knob {name!r}.", f"Knobs are: {', '.join(DOMAINS)}.")
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise SettingsError(f"Space({name}={values!r}) is no list of values.", f"Give a list, e.g. {name}=[...].")
    for value in values:
        if not domain.holds(value):
            raise SettingsError(f"{name}={value!r} is not possible.", f"Allowed: {domain}.")
