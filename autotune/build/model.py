"""A model made ready for training: device, memory format and compilation, all of it in place."""

from __future__ import annotations

import warnings
from functools import partial
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.errors import SettingsError
from autotune.settings import Settings
from autotune.task.layers import has_channels_last_weights, repeated_blocks

__all__ = ["prepare_model"]

# Modules compiled here, so that preparing a model again can make exactly these eager, and none of the user's own.
_compiled_here: WeakSet[nn.Module] = WeakSet()
# The same for blocks whose activations are recomputed.
_checkpointed_here: WeakSet[nn.Module] = WeakSet()


def prepare_model(model: nn.Module, settings: Settings, device: torch.device | str) -> nn.Module:
    """Move, lay out and compile ``model`` in place; names in its ``state_dict`` stay as they are.

    Preparing again with other settings takes back a compilation done here (never the user's own); the memory
    format is only ever set, since setting it back would overwrite a choice of the user's.

    Args:
        model: The model; parameters keep their identity.
        settings: channels_last, activation_checkpointing, compile_mode and compile_scope are used.
        device: Where to train.

    Returns:
        The same object. Compilation itself happens at the first forward pass.

    Raises:
        SettingsError: compile_scope="blocks" or activation_checkpointing for a model without repeated blocks, or a
            model that already is the result of ``torch.compile``.

    Warns:
        UserWarning: channels_last has no use here (no 4-D convolution weights, or 5-D ones) and is left off.
    """
    model.to(device)
    if settings.channels_last:
        _lay_out(model)
    _make_eager(model)
    _keep_activations(model)
    if settings.activation_checkpointing:
        _recompute_activations(model)
    if settings.compile_mode is not None:
        for module in _compile_targets(model, settings):
            module.compile(mode=settings.compile_mode)
            _compiled_here.add(module)
    return model


def _lay_out(model: nn.Module) -> None:
    if has_channels_last_weights(model):
        model.to(memory_format=torch.channels_last)
    else:
        warnings.warn(
            "channels_last is left off: the model has no convolutions over images, or has some over volumes.",
            UserWarning,
            stacklevel=3,
        )


def _make_eager(model: nn.Module) -> None:
    for module in model.modules():
        if module in _compiled_here:
            module._compiled_call_impl = None
            _compiled_here.discard(module)


def _keep_activations(model: nn.Module) -> None:
    for module in model.modules():
        if module in _checkpointed_here:
            del module.forward
            _checkpointed_here.discard(module)


def _recompute_activations(model: nn.Module) -> None:
    blocks = [block for block in repeated_blocks(model) if "forward" not in vars(block)]
    if not blocks:
        raise SettingsError(
            "activation_checkpointing=True: the model has no repeated blocks to recompute.",
            "Use torch.utils.checkpoint inside the model, or leave it off.",
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        _checkpointed_here.add(block)


def _compile_targets(model: nn.Module, settings: Settings) -> list[nn.Module]:
    if hasattr(model, "_orig_mod"):
        raise SettingsError(
            "The model already is the result of torch.compile.", "Hand over the plain model, or leave compile off."
        )
    if settings.compile_scope == "model":
        return [model]
    blocks = repeated_blocks(model)
    if not blocks:
        raise SettingsError("compile_scope='blocks': the model has no repeated blocks.", "Use compile_scope='model'.")
    return blocks
