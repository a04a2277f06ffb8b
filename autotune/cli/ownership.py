"""Whether another installed distribution owns files of the package ``autotune``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import packages_distributions

from autotune.errors import AutotuneError

__all__ = ["check_ownership"]

_OURS = "torch-autotune"


def check_ownership(owners: Callable[[], Mapping[str, Sequence[str]]] = packages_distributions) -> None:
    """Refuse to run from an installation in which two distributions wrote into one folder ``autotune``.

    Args:
        owners: Top-level package -> distributions that own it.

    Raises:
        AutotuneError: ``torch-autotune`` and another distribution own it; which files are whose cannot be known.
    """
    names = {re.sub(r"[-_.]+", "-", name).lower() for name in owners().get("autotune", ())}
    others = sorted(names - {_OURS})
    if _OURS in names and others:
        raise AutotuneError(
            f"The package 'autotune' is owned by {_OURS} and also by {', '.join(others)}: their files are mixed.",
            f"Run: pip uninstall {' '.join(others)}, then: pip install --force-reinstall --no-deps {_OURS}.",
        )
