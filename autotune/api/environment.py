"""``AUTOTUNE`` in the environment: whoever starts a program decides whether it may tune."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, cast, get_args

from autotune.errors import SettingsError

__all__ = ["MODE_VARIABLE", "Mode", "mode"]

MODE_VARIABLE = "AUTOTUNE"

Mode = Literal["tune", "off", "cached", "force"]
"""tune: as the arguments say; off: the baseline, nothing measured; cached: what is stored, else the baseline, never
tuning; force: tune whatever is stored."""


def mode(environ: Mapping[str, str] = os.environ) -> Mode:
    """What the environment asks for; it wins over the arguments of the call.

    Args:
        environ: The environment.

    Raises:
        SettingsError: ``AUTOTUNE`` has a value that it cannot have.
    """
    said = environ.get(MODE_VARIABLE, "").strip().lower()
    if not said:
        return "tune"
    if said not in get_args(Mode) or said == "tune":
        raise SettingsError(
            f"{MODE_VARIABLE}={environ[MODE_VARIABLE]!r} is not possible.", "Use off, cached or force, or unset it."
        )
    return cast(Mode, said)
