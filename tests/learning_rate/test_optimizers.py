"""Advice about the optimizer, and when to keep quiet."""

from __future__ import annotations

import pytest

from autotune.learning_rate import optimizer_advice
from autotune.learning_rate.optimizers import LAMB_ABOVE, LARS_ABOVE


@pytest.mark.parametrize(
    ("optimizer", "effective", "named"),
    [
        ("torch.optim.SGD", LARS_ABOVE, None),
        ("torch.optim.SGD", LARS_ABOVE + 1, "timm.optim.Lars"),
        ("torch.optim.AdamW", LAMB_ABOVE, None),
        ("torch.optim.AdamW", LAMB_ABOVE + 1, "timm.optim.Lamb"),
        ("timm.optim.lars.Lars", 10**6, None),
        ("timm.optim.lamb.Lamb", 10**6, None),
        ("apex.optimizers.fused_lamb.FusedLAMB", 10**6, None),
        ("torch.optim.SGD", None, None),
    ],
)
def test_layer_wise_rates_are_advised_beyond_the_stated_batch(
    optimizer: str, effective: int | None, named: str | None
) -> None:
    """LARS for SGD, LAMB for the Adam family, with source; nobody is advised to take what they have."""
    said = optimizer_advice(optimizer, effective, installed=lambda _: True)
    assert bool(said) is (named is not None)
    if named is not None:
        assert named in said[0]
        assert "You et al." in said[0]
        assert "nothing was switched" in said[0]


@pytest.mark.parametrize(("there", "text"), [(True, "has it;"), (False, "once timm is installed")])
def test_a_package_that_is_missing_is_said(there: bool, text: str) -> None:
    """The advice does not pretend that timm is there."""
    assert text in optimizer_advice("SGD", 10**5, installed=lambda _: there)[0]


@pytest.mark.parametrize(
    ("optimizer", "decay", "noted"),
    [("torch.optim.Adam", 0.01, True), ("torch.optim.Adam", 0, False), ("torch.optim.AdamW", 0.01, False)],
)
def test_adam_with_weight_decay_gets_a_note(optimizer: str, decay: float, noted: bool) -> None:
    """Only Adam itself, and only where there is a decay to speak of."""
    said = optimizer_advice(optimizer, 32, weight_decay=decay)
    assert bool(said) is noted
    assert not noted or "AdamW" in said[0]
