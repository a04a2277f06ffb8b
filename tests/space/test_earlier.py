"""An earlier answer, as far as it may be tried here and now."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.settings import Settings
from autotune.space import Space, allowed_part
from tests.planner.fake_machine import candidates

_EARLIER = Settings(
    batch_size=128,
    num_workers=2,
    prefetch_factor=4,
    persistent_workers=True,
    precision="bf16-mixed",
    channels_last=True,
    num_threads=1,
)


def test_what_may_be_tried_is_kept_whole() -> None:
    """Where every value is allowed, the earlier answer comes back as it was."""
    assert allowed_part(_EARLIER, candidates(), cores=2) == _EARLIER


@pytest.mark.parametrize(
    ("changes", "knob", "expected"),
    [
        ({"values": {"precision": ()}}, "precision", "fp32"),
        ({"dropped": {"channels_last": "no convolutions"}}, "channels_last", False),
        ({"dropped": {"batch_size": "the user's own"}}, "batch_size", 32),
        ({"dropped": {"num_workers": "they hang"}}, "num_workers", 0),
        ({"max_effective_batch_size": 64}, "batch_size", 64),
        ({"locked": True}, "batch_size", 32),
        ({"space": Space(num_workers=[0, 1])}, "num_workers", 1),
        ({"space": Space(precision=["fp32"])}, "precision", "fp32"),
        ({"forbidden": {("precision", "bf16-mixed"): "drifts"}}, "precision", "fp32"),
    ],
)
def test_a_value_that_is_not_allowed_any_more_is_dropped_alone(
    changes: dict[str, Any], knob: str, expected: object
) -> None:
    """The knob falls back to what is allowed; the others stay as they were found."""
    part = allowed_part(_EARLIER, candidates(**changes), cores=2)
    assert getattr(part, knob) == expected
    assert len(candidates().baseline.differences(part)) >= 3


def test_workers_and_threads_are_cut_down_to_the_cores_there_are() -> None:
    """An answer of 16 cores is tried with as many workers and threads as there are cores."""
    large = _EARLIER.replace(num_workers=15, num_threads=16)
    part = allowed_part(large, candidates(), cores=2)
    assert (part.num_workers, part.num_threads) == (2, 2)


def test_locked_accumulation_of_the_same_batch_is_kept() -> None:
    """With a locked batch, an earlier split of that very batch is tried again."""
    split = Settings(batch_size=16, gradient_accumulation_steps=2, num_threads=2)
    assert allowed_part(split, candidates(locked=True), cores=2) == split
