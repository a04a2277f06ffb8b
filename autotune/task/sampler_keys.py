"""Whether a sampler draws numbers, by which a sample's length can be looked up, or other keys."""

from __future__ import annotations

import operator
from typing import Any

import torch

from autotune.task.names import qualified_name
from autotune.task.rng import rng_kept

__all__ = ["key_refusal"]


def key_refusal(sampler: Any) -> str | None:
    """Why what a sampler draws cannot be looked up in a list.

    Its first key is drawn for it where the sampler is none of torch's; random generators are put back.

    Args:
        sampler: An iterable of keys; None: there is none.

    Returns:
        The reason; None where it draws numbers.
    """
    own = type(sampler).__module__.startswith("torch.utils.data")
    if sampler is None or (own and not hasattr(sampler, "indices")):
        return None
    key = next(iter(sampler.indices), 0) if own else _first_key(sampler)
    try:
        operator.index(key)
    except TypeError:
        return (
            f"the sampler ({qualified_name(type(sampler))}) draws keys of type {type(key).__name__}, not the numbers "
            "of samples"
        )
    return None


def _first_key(sampler: Any) -> Any:
    generator = getattr(sampler, "generator", None)
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    try:
        with rng_kept():
            return next(iter(sampler), 0)
    finally:
        if isinstance(generator, torch.Generator) and state is not None:
            generator.set_state(state)
