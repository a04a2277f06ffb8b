"""Weight decay under the scaling rules; the rules themselves are tested in ``tests/test_learning_rate.py``."""

from __future__ import annotations

import pytest

from autotune.errors import SettingsError
from autotune.learning_rate import scale


@pytest.mark.parametrize(
    ("rule", "effective", "factor"),
    [("linear", 128, 1.0), ("sqrt", 128, 2.0), ("linear", 32 * 16, 2.0), (None, 128, 4.0)],
)
def test_the_pull_of_weight_decay_per_epoch_stays(rule: str | None, effective: int, factor: float) -> None:
    """lr x decay x steps per epoch is what it was: the linear rule needs nothing, root, cap and no rule do."""
    plan = scale(
        base_batch_size=32,
        effective_batch_size=effective,
        rule=rule,  # type: ignore[arg-type]
        optimizer_name="torch.optim.AdamW",
        steps_per_epoch=100,
        weight_decay="timescale",
    )
    assert plan.weight_decay_factor == pytest.approx(factor)
    assert plan.factor * plan.weight_decay_factor * 32 / effective == pytest.approx(1.0)
    assert any("Weight decay" in note for note in plan.notes) is (factor != 1)


def test_weight_decay_is_left_alone_by_default() -> None:
    """Nobody asked for it."""
    plan = scale(base_batch_size=32, effective_batch_size=128, rule="sqrt", optimizer_name="AdamW", steps_per_epoch=100)
    assert plan.weight_decay_factor == 1.0


def test_an_unknown_rule_for_weight_decay_is_refused() -> None:
    """By its name."""
    with pytest.raises(SettingsError, match="weight_decay='linear'"):
        scale(
            base_batch_size=32,
            effective_batch_size=128,
            rule="sqrt",
            optimizer_name="AdamW",
            steps_per_epoch=100,
            weight_decay="linear",  # type: ignore[arg-type]
        )
