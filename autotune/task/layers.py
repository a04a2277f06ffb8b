"""What a model is made of, as far as it decides which knobs can matter."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

__all__ = [
    "compiled_in_place",
    "has_channels_last_weights",
    "has_compiled_parts",
    "repeated_blocks",
    "without_overlap",
]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def has_channels_last_weights(model: nn.Module) -> bool:
    """Whether channels_last applies: convolutions over images (4-D weights), and none over volumes (5-D).

    ``Module.to(memory_format=torch.channels_last)`` raises on 5-D weights.
    """
    convolutions = (nn.Conv2d, nn.ConvTranspose2d)
    if any(parameter.dim() == 5 for parameter in model.parameters()):
        return False
    return any(isinstance(module, convolutions) for module in model.modules())


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost submodules whose class occurs at least twice and that hold submodules themselves.

    These are the layers of a transformer or the blocks of a residual network: compiled one by one, they share one
    compiled code. Plain containers and single layers do not count.
    """
    counts = Counter(type(module) for module in model.modules() if module is not model and _is_block(module))
    found: list[nn.Module] = []
    pending = list(model.children())
    while pending:
        module = pending.pop(0)
        if counts[type(module)] >= 2 and _is_block(module):
            found.append(module)
        else:
            pending.extend(module.children())
    return list(dict.fromkeys(found))


def _is_block(module: nn.Module) -> bool:
    return type(module) not in _CONTAINERS and next(module.children(), None) is not None


def compiled_in_place(model: nn.Module) -> list[str]:
    """Names of the modules on which ``Module.compile`` was called; "" is the model itself. Pickling forgets it."""
    found = model.named_modules()
    return [name for name, module in found if getattr(module, "_compiled_call_impl", None) is not None]


def has_compiled_parts(model: nn.Module) -> bool:
    """Whether submodules are results of ``torch.compile``, which travel as such."""
    return any(hasattr(module, "_orig_mod") for module in model.modules())


def without_overlap(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """A view in which no two elements share memory, so that it can be written to: of an expanded tensor its source.

    Args:
        tensor: Any tensor.
        like: Its memory decides which elements are taken; None: that of the tensor itself.
    """
    memory = tensor if like is None else like
    if memory.layout is torch.strided:
        for dim, (size, stride) in enumerate(zip(memory.shape, memory.stride(), strict=True)):
            if size > 1 and stride == 0:
                tensor = tensor.narrow(dim, 0, 1)
    return tensor
