"""The noise scale out of squared norms: unbiased, averaged before the ratio, and honest where it cannot be told."""

from __future__ import annotations

import json
import random

import pytest

from autotune.errors import SettingsError
from autotune.learning_rate import NoiseScale, SquareNorms, noise_scale


def expected(square: float, trace: float, batch: int) -> float:
    """Expected squared norm of a gradient over a batch (McCandlish et al. 2018, A.1)."""
    return square + trace / batch


def noisy(square: float, trace: float, *, small: int, large: int, repeats: int, seed: int = 0) -> list[SquareNorms]:
    """Squared norms of gradients with independent normal entries, ten of them."""
    draw, size = random.Random(seed), 10
    found = []
    for _ in range(repeats):
        batches = [
            [draw.gauss((square / size) ** 0.5, (trace / size / small) ** 0.5) for _ in range(size)]
            for _ in range(large // small)
        ]
        mean = [sum(column) / len(batches) for column in zip(*batches, strict=True)]
        squares = [sum(one * one for one in batch) for batch in batches]
        found.append(SquareNorms(sum(squares) / len(squares), sum(one * one for one in mean)))
    return found


def test_expected_norms_give_the_exact_ratio() -> None:
    """Put in what the two batch sizes yield on average, out comes tr(S) / |G|^2."""
    one = SquareNorms(expected(2.0, 300.0, 16), expected(2.0, 300.0, 128))
    found = noise_scale([one] * 3, small_batch=16, large_batch=128)
    assert found.b_simple == pytest.approx(150.0)
    assert (found.square_gradient, found.trace) == (pytest.approx(2.0), pytest.approx(300.0))
    assert (found.low, found.high) == (pytest.approx(150.0), pytest.approx(150.0))
    assert found.samples == 3 * 128


def test_both_estimates_are_unbiased() -> None:
    """The mean over many repeats is the truth, for |G|^2 and tr(S) alike."""
    found = noise_scale(noisy(1.0, 50.0, small=8, large=64, repeats=3000), small_batch=8, large_batch=64)
    assert found.square_gradient == pytest.approx(1.0, rel=0.05)
    assert found.trace == pytest.approx(50.0, rel=0.05)


def test_the_ratio_is_taken_after_averaging() -> None:
    """A repeat whose own |G|^2 is about zero does not carry the result away."""
    usual = SquareNorms(expected(1.0, 100.0, 8), expected(1.0, 100.0, 64))
    unlucky = SquareNorms(expected(0.001, 100.0, 8), expected(0.001, 100.0, 64))
    found = noise_scale([usual] * 9 + [unlucky], small_batch=8, large_batch=64)
    assert found.b_simple == pytest.approx(100.0 / 0.9001)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """In 40 experiments of 12 repeats at least 32 hold it (95 % less what a bootstrap of 12 loses)."""
    held = 0
    for seed in range(40):
        repeats = noisy(1.0, 50.0, small=8, large=64, repeats=12, seed=seed)
        found = noise_scale(repeats, small_batch=8, large_batch=64)
        held += (found.low or 0.0) <= 50.0 <= (found.high or float("inf"))
    assert held >= 32


def test_a_gradient_that_drowns_in_noise_is_said() -> None:
    """An estimate of |G|^2 below zero gives no number, and an interval without an upper end."""
    one = SquareNorms(100.0 / 8, 100.0 / 64 * 0.9)
    found = noise_scale([one] * 4, small_batch=8, large_batch=64)
    assert (found.b_simple, found.high) == (None, None)
    assert found.useful_batch(32) is None
    assert "above 64 samples" in str(found)


def test_the_useful_batch_is_never_below_the_base() -> None:
    """Training with the batch that one has is always useful enough."""
    found = noise_scale([SquareNorms(expected(10, 20, 8), expected(10, 20, 64))] * 3, small_batch=8, large_batch=64)
    assert found.b_simple == pytest.approx(2.0)
    assert found.useful_batch(32) == 32
    assert found.useful_batch(1) == 2


def test_what_gives_no_noise_scale_is_refused() -> None:
    """Two repeats have no interval, and one batch size has no difference."""
    one = SquareNorms(2.0, 1.0)
    for repeats, small, large in (([one] * 2, 8, 64), ([one] * 3, 8, 8), ([one] * 3, 0, 8)):
        with pytest.raises(SettingsError, match="noise scale"):
            noise_scale(repeats, small_batch=small, large_batch=large)


def test_json_gives_it_back() -> None:
    """What is written is read as it was."""
    found = noise_scale(noisy(1, 50, small=8, large=64, repeats=4), small_batch=8, large_batch=64, note="so")
    assert NoiseScale.from_json(json.loads(json.dumps(found.to_json()))) == found
