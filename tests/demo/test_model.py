"""The demo's model."""

from __future__ import annotations

import torch

from autotune.demo.model import CropNet


def test_logits_for_every_photo():
    """One row of ten logits for each image."""
    assert CropNet()(torch.randn(5, 3, 64, 64)).shape == (5, 10)


def test_every_parameter_learns():
    """No parameter is left without a gradient."""
    model = CropNet()
    model(torch.randn(5, 3, 64, 64)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_it_is_small():
    """The time goes into decoding, not into the model."""
    assert sum(parameter.numel() for parameter in CropNet().parameters()) < 10_000
