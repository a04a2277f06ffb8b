"""Laps in turns and their ratios, with a machine that only exists on paper."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from autotune.measurement import Chunk, Measured, Outcome, Probe, Rejected
from autotune.settings import Settings
from benchmarks.probing import Interleaved, LapFailed, Ratio, described, interleave

A, B, C = Settings(), Settings(batch_size=64), Settings(batch_size=128)
RATES = {A: 100.0, B: 150.0, C: 200.0}


class Paper:
    """Answers laps with known rates; a drift slows every lap down a little more than the one before."""

    def __init__(self, drift: float = 0.0, others: Iterable[float] = ()) -> None:
        self.drift, self.others = drift, iter(others)
        self.asked: list[Settings] = []

    def __call__(self, probe: Probe) -> Outcome:
        rate = RATES[probe.settings] * (1 - self.drift * len(self.asked))
        self.asked.append(probe.settings)
        chunk = Chunk(rows=int(1e6 * rate), seconds=1e6)
        others = next(self.others, 0.0)
        return Measured(kind="lap", settings=probe.settings, chunks=(chunk,), others_cores=others)


def test_the_order_is_reversed_each_round_and_the_first_lap_of_each_is_not_timed() -> None:
    """A drift then hits all entries alike: the ratios come out right although the machine slows down all the time."""
    paper = Paper(drift=0.01)
    laps = interleave(paper, (A, B), rounds=4)
    assert paper.asked == [A, B, A, B, B, A, A, B, B, A]
    assert len(laps.rounds) == 4
    assert laps.rate(B) / laps.rate(A) == pytest.approx(1.5, rel=1e-3)


def test_the_same_settings_twice_run_once() -> None:
    """An answer that is the grid's best scores exactly 1 against it."""
    laps = interleave(Paper(), (B, A, B), rounds=2)
    assert laps.entries == [B, A]
    assert laps.ratio(B, B).median == 1.0


def test_disturbed_rounds_are_run_again_and_left_out() -> None:
    """What others did to two rounds is not in the ratio, and the raw rates keep all rounds."""
    laps = interleave(Paper(others=[0, 0, 0, 0.9, 0.5, 0]), (A, B), rounds=3)
    assert len(laps.rounds) == 5
    assert laps.disturbed == 2
    assert laps.ratio(B, A).rounds == 3


def test_a_machine_that_is_always_disturbed_ends_the_race_all_the_same() -> None:
    """At most four rounds are added, and all of them count then."""
    laps = interleave(Paper(others=[1.0] * 100), (A, B), rounds=3)
    assert laps.ratio(B, A).rounds == 7


def test_a_setting_that_fails_in_the_race_is_named() -> None:
    """A score without one of its sides is none."""

    def run(probe: Probe) -> Outcome:
        return Rejected(kind="lap", settings=probe.settings, phase="step", reason="no")

    with pytest.raises(LapFailed, match="batch_size=64"):
        interleave(run, (B, A))


def test_the_interval_covers_the_truth_and_one_round_has_none() -> None:
    """Known ratios around 1.5."""
    ratio = Ratio.of([1.4, 1.5, 1.6])
    assert ratio.median == pytest.approx(1.5)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 1.49 < 1.51 < ratio.high
    assert Ratio.of([1.2]).low is None
    assert str(Ratio.of([1.2])) == "1.20 (1 round)"


def test_ratios_are_paired_by_round() -> None:
    """A round in which everything is twice as slow has the same ratio."""
    laps = Interleaved([A, B], rounds=[[100, 150], [50, 75]], others_cores=[0, 0])
    assert laps.ratio(B, A).high == pytest.approx(1.5)


def test_a_description_names_what_differs() -> None:
    """What follows from the number of workers is left out."""
    assert described(A, A) == "the baseline"
    assert described(A.replace(num_workers=2), A) == "num_workers=2"
