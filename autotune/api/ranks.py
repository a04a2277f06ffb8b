"""Several processes that train together: each would tune against the others."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from autotune.errors import TaskError

__all__ = ["refuse_ranks"]


def refuse_ranks(environ: Mapping[str, str] = os.environ) -> None:
    """Refuse to tune in one of several ranks, before anything is started.

    Args:
        environ: Where launchers leave ``WORLD_SIZE``.

    Raises:
        TaskError: A process group of several ranks is there, or a launcher has started several.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    said = environ.get("WORLD_SIZE", "")
    ranks = torch.distributed.get_world_size() if distributed else int(said) if said.isdecimal() else 1
    if ranks > 1:
        raise TaskError(
            f"This is one of {ranks} ranks that train together: they would take the cores and the device from each "
            "other, and each would find other settings.",
            "Tune in one process (torch-autotune tune FILE:FUNC --out tuned.json), then TunedConfig.load('tuned.json', "
            "task) in every rank; AUTOTUNE=cached and AUTOTUNE=off work in ranks, too.",
        )
