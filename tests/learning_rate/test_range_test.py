"""The range test: curves with a known knee, and curves that have none."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest
import torch

from autotune.errors import MissingPackageError, SettingsError
from autotune.learning_rate import LrCurve, LrSuggestion, suggest
from autotune.learning_rate.range_test import diverged_at, linear_slope_suggestion, smoothed, steepest_rate

RATES = tuple(1e-7 * 10 ** (8 * index / 99) for index in range(100))


def curve(knee: float, *, noise: float = 0.05, seed: int = 0, fall: float = 1.5, blow_up: float = 50.0) -> LrCurve:
    """Flat at 2.3, falling around ``knee``, rising again far above it."""
    draw = random.Random(seed)
    losses = []
    for rate in RATES:
        fallen = fall / (1 + math.exp(-5 * (math.log10(rate) - math.log10(knee))))
        losses.append(2.3 - fallen + fall * (rate / (knee * blow_up)) ** 2 + draw.gauss(0, noise))
    return LrCurve(RATES, tuple(losses))


@pytest.mark.parametrize("knee", [1e-4, 1e-3, 1e-2, 1e-1])
def test_the_suggestion_is_near_a_known_knee(knee: float) -> None:
    """Within a factor 3 in every one of ten noisy sweeps, and within 2 as the median of three."""
    for seed in range(10):
        rate = steepest_rate(curve(knee, seed=seed))
        assert rate is not None
        assert knee / 3 < rate < knee * 3
    suggestion = suggest([curve(knee, seed=seed) for seed in range(3)]).suggestion
    assert suggestion is not None
    assert knee / 2 < suggestion < knee * 2


def test_the_slope_against_the_rate_itself_goes_wrong_on_the_same_curves() -> None:
    """The rule that is not used suggests rates ten times too low and more: that is why it is not."""
    assert all(linear_slope_suggestion(curve(1e-2, seed=seed)) < 1e-3 for seed in range(10))


@pytest.mark.parametrize("broken", [None, 60])
def test_the_rule_that_is_not_used_is_the_peers_to_the_letter(broken: int | None) -> None:
    """Its average, points left out and gradient are Lightning's, infinite losses at the end included."""
    for seed in range(5):
        swept = curve(1e-3, seed=seed)
        losses = [math.inf if broken is not None and index >= broken else one for index, one in enumerate(swept.losses)]
        average, averaged = 0.0, []
        for steps, loss in enumerate(losses, start=1):
            average = 0.98 * average + 0.02 * loss
            averaged.append(average / (1 - 0.98 ** (steps + 1)))
        kept, rates = (torch.tensor(all_of[10:-1], dtype=torch.float64) for all_of in (averaged, swept.rates))
        finite = torch.isfinite(kept)
        gradient = torch.gradient(kept[finite], spacing=[rates[finite]])[0]
        expected = rates[finite][gradient.argmin()].item()
        assert linear_slope_suggestion(LrCurve(swept.rates, tuple(losses))) == expected


def test_seeds_that_agree_give_confidence_and_their_spread() -> None:
    """Three seeds within a factor 3: high, with lowest and highest beside the median."""
    found = suggest([curve(1e-2, seed=seed) for seed in range(3)], current=0.1)
    assert found.confidence == "high"
    assert found.low is not None
    assert found.high is not None
    assert found.low <= (found.suggestion or 0) <= found.high < 3 * found.low
    assert "now 0.1" in str(found)


@pytest.mark.parametrize(
    ("knees", "confidence"), [([1e-2], "low"), ([1e-2, 1e-2], "medium"), ([1e-4, 1e-2, 1e-1], "low")]
)
def test_few_seeds_or_seeds_that_differ_are_said(knees: list[float], confidence: str) -> None:
    """One seed is no evidence, two are little, and seeds decades apart are none."""
    found = suggest([curve(knee, seed=seed) for seed, knee in enumerate(knees)])
    assert found.confidence == confidence
    assert found.note


def test_a_loss_that_never_falls_gives_no_suggestion() -> None:
    """Noise alone, flat or rising, is not taken for a fall."""
    for seed in range(10):
        assert steepest_rate(curve(1e-2, fall=0.0, seed=seed)) is None
    found = suggest([curve(1e-2, fall=0.0)])
    assert (found.suggestion, found.low, found.high, found.confidence) == (None, None, None, "none")
    assert "no suggestion" in str(found)


def test_sweeps_without_a_fall_lower_the_confidence() -> None:
    """Two of three that fell are not three."""
    found = suggest([curve(1e-2), curve(1e-2, seed=1), curve(1e-2, fall=0.0)])
    assert found.confidence == "low"
    assert "2 of 3" in found.note


def test_what_comes_after_divergence_does_not_count() -> None:
    """A loss that falls back after it has blown up is no progress."""
    losses = list(curve(1e-3, noise=0.0).losses)
    for index in range(75, 100):
        losses[index] = 100.0 - (index - 75) * 3
    rate = steepest_rate(LrCurve(RATES, tuple(losses)))
    assert rate is not None
    assert 3e-4 < rate < 3e-3


@pytest.mark.parametrize(
    ("losses", "end"),
    [
        ([2.0] * 10, 10),
        ([2.0] * 6 + [math.nan, 2.0], 6),
        ([2.0] * 6 + [math.inf], 6),
        ([2.0] * 6 + [9.0, 9.0, 9.0], 6),
        ([2.0] * 6 + [9.0, 2.0, 2.0], 9),
        ([2.0] * 6 + [1.0] * 3 + [4.5, 4.5], 11),
        ([-2.0] * 6 + [5.0, 5.0], 6),
        ([], 0),
        ([math.nan], 0),
    ],
)
def test_divergence_is_a_lasting_rise_or_a_number_that_is_none(losses: list[float], end: int) -> None:
    """One outlier among good losses is none; a loss below zero can diverge as well."""
    assert diverged_at(losses) == end


def test_smoothing_takes_the_noise_and_leaves_the_shape() -> None:
    """Nearer to the noiseless curve than the points are, without moving it sideways."""
    clean, noisy = curve(1e-2, noise=0.0), curve(1e-2, noise=0.1)
    flat = range(60)
    smooth = smoothed(noisy)
    off = sum((smooth[i] - clean.losses[i]) ** 2 for i in flat)
    assert off < sum((noisy.losses[i] - clean.losses[i]) ** 2 for i in flat) / 5


@pytest.mark.parametrize(("rates", "losses"), [((1e-3,), ()), ((1e-3, 1e-3), (1.0, 1.0)), ((0.0, 1.0), (1.0, 1.0))])
def test_what_is_no_sweep_is_refused(rates: tuple[float, ...], losses: tuple[float, ...]) -> None:
    """Rates have to increase, be positive, and have a loss each."""
    with pytest.raises(SettingsError, match="sweep"):
        LrCurve(rates, losses)


def test_a_sweep_too_short_to_judge_gives_nothing() -> None:
    """Four points hold no slope worth the name."""
    assert steepest_rate(LrCurve(RATES[:4], (2.0, 1.5, 1.0, 0.5))) is None


def test_the_document_holds_no_number_that_json_does_not_know() -> None:
    """An infinite loss becomes null."""
    found = suggest([LrCurve(RATES, (*curve(1e-2).losses[:-1], math.inf))])
    assert found.to_json()["curves"][0]["loss"][-1] is None
    assert found.to_json()["suggestion"] == found.suggestion


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One error with the command, whether or not it is installed here."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r"torch-autotune\[plot\]"):
        suggest([curve(1e-2)]).plot(tmp_path / "lr.png")


@pytest.mark.parametrize("found", [suggest([curve(1e-2)]), suggest([curve(1e-2, fall=0.0)])])
def test_a_plot_is_written(found: LrSuggestion, tmp_path: Path) -> None:
    """With matplotlib a picture is there, with and without a suggestion."""
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "lr.png")
    assert (tmp_path / "lr.png").read_bytes().startswith(b"\x89PNG")
