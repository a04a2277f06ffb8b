"""Random number generators left exactly as they were."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch

__all__ = ["rng_kept"]


@contextlib.contextmanager
def rng_kept(device: torch.device | str | None = None) -> Iterator[None]:
    """Run a block and put the states of python's, numpy's and torch's generators back afterwards.

    numpy's is kept where numpy is loaded; an accelerator's only where ``device`` names a CUDA or XPU device.

    Args:
        device: The device that the block draws random numbers on, besides the CPU.
    """
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        with _torch_kept(None if device is None else torch.device(device)):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def _torch_kept(device: torch.device | None) -> contextlib.AbstractContextManager[None]:
    if device is None or device.type not in ("cuda", "xpu"):
        return torch.random.fork_rng(devices=[])
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    return torch.random.fork_rng(devices=[index], device_type=device.type)
