"""Probes and outcomes: JSON both ways, statistics derived from raw samples."""

from __future__ import annotations

import json
import random
import statistics

import pytest

from autotune.measurement import (
    Chunk,
    Crashed,
    Measured,
    Outcome,
    OutOfMemory,
    Probe,
    Rejected,
    TimedOut,
    mean_interval,
    outcome_from_json,
    student_t_95,
)
from autotune.settings import Settings

_SETTINGS = Settings().replace(num_workers=2)


def _measured(*chunks: Chunk, **more: object) -> Measured:
    return Measured(kind="joint", settings=_SETTINGS, chunks=chunks, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "outcome",
    [
        _measured(Chunk(8, 0.5, 0.1), Chunk(8, 0.4), epoch_rows=100, warnings=("noisy",)),
        OutOfMemory(kind="joint", settings=_SETTINGS, where="allocator", message="no"),
        _measured(peak_ram_bytes=5, ram_limit_bytes=9, accelerator_limit_bytes=7, allocation_retries=0),
        Rejected(kind="compute", settings=_SETTINGS, phase="step", reason="shapes", error_type="RuntimeError"),
        Rejected(kind="compute", settings=_SETTINGS, phase="step", reason="INT_MAX", size_limit=True),
        Crashed(kind="joint", settings=_SETTINGS, exit_code=-11, output_tail="bye"),
        TimedOut(kind="lap", settings=_SETTINGS, deadline_s=3.0),
    ],
    ids=lambda outcome: outcome.fate,
)
def test_every_outcome_survives_the_process_border(outcome: Outcome) -> None:
    """to_json, text, outcome_from_json gives an equal outcome."""
    assert outcome_from_json(json.loads(json.dumps(outcome.to_json(), allow_nan=False))) == outcome


def test_a_probe_survives_the_process_border() -> None:
    """to_json, text, from_json gives an equal probe."""
    probe = Probe(
        kind="lap", settings=_SETTINGS, window_s=1.0, cut_below_samples_per_s=7.5, seed=3, steps=2, fresh=True
    )
    assert Probe.from_json(json.loads(json.dumps(probe.to_json()))) == probe


def test_the_rate_is_all_rows_over_all_seconds() -> None:
    """A slow chunk counts by its time, not as one of many rates."""
    assert _measured(Chunk(10, 1.0), Chunk(10, 3.0)).samples_per_s == pytest.approx(5.0)


def test_the_turn_of_each_epoch_is_priced_in() -> None:
    """100 rows at 50/s take 2 s; a turn of 3 s makes the epoch 5 s."""
    assert _measured(Chunk(50, 1.0), epoch_rows=100, epoch_turn_s=3.0).samples_per_s == pytest.approx(20.0)


def test_an_empty_window_has_no_rate_and_no_interval() -> None:
    """No division by zero."""
    nothing = _measured()
    assert (nothing.samples_per_s, nothing.median_samples_per_s, nothing.interval) == (0.0, 0.0, None)


def test_data_wait_is_a_share_of_the_window_and_unknown_without_a_loader() -> None:
    """Waiting 1 s of 4 s is 25 %; a compute probe has no loader to wait for."""
    assert _measured(Chunk(8, 2.0, 1.0), Chunk(8, 2.0)).data_wait_share == pytest.approx(0.25)
    assert Measured(kind="compute", settings=_SETTINGS, chunks=(Chunk(8, 1.0),)).data_wait_share is None


def test_the_t_quantile_falls_to_the_normal_one() -> None:
    """Known values: 2.132 at 4 degrees of freedom, 1.684 at 40, 1.645 in the limit."""
    assert student_t_95(4) == pytest.approx(2.132)
    assert student_t_95(40) == pytest.approx(1.684, abs=2e-3)
    assert student_t_95(10**6) == pytest.approx(1.645, abs=1e-3)


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    """95 % of 2,000 intervals from 6 normal values hold the mean, within sampling error."""
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        interval = mean_interval([draw.gauss(5.0, 2.0) for _ in range(6)])
        assert interval is not None
        held += interval.low <= 5.0 <= interval.high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_the_interval_of_the_rate_holds_the_rate() -> None:
    """The two-sided interval brackets rows over seconds for equal chunks."""
    measured = _measured(Chunk(10, 1.0), Chunk(10, 1.1), Chunk(10, 0.9))
    assert measured.interval is not None
    assert measured.interval.low < measured.window_samples_per_s < measured.interval.high
    assert measured.median_samples_per_s == pytest.approx(statistics.median([10.0, 10 / 1.1, 10 / 0.9]))
