"""From what was found to what is returned."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autotune.config.verdict import Verdict, judge
from autotune.measurement import Chunk, DataCosts, Measured
from autotune.planner import Found
from autotune.race import RaceResult
from autotune.settings import Settings

_BASELINE = Settings(batch_size=32)
_LARGER = Settings(batch_size=128)
_WORKERS = _BASELINE.replace(num_workers=2)


def _measured(settings: Settings, rate: float, kind: Any = "joint", waited: float = 0.0) -> Measured:
    return Measured(kind=kind, settings=settings, chunks=(Chunk(100, 100 / rate, waited * 100 / rate),) * 2)


def _race(candidate: Settings, ratio: float, *, noise: float = 0.01, **more: Any) -> RaceResult:
    rates = tuple(100.0 * (1 + noise * (-1) ** number) for number in range(6))
    return RaceResult(
        baseline=_BASELINE,
        candidate=candidate,
        margin=0.05,
        baseline_samples_per_s=(100.0,) * 6,
        candidate_samples_per_s=tuple(ratio * rate for rate in rates),
        **more,
    )


def _judge(*races: RaceResult, outcomes: tuple[Measured, ...] = (), **found: Any) -> Verdict:
    baseline = _measured(_BASELINE, 100.0)
    finalists = tuple(_measured(one.candidate, 100.0) for one in races)
    facts = {"baseline": baseline, "finalists": finalists, "stopped": "every move was made", **found}
    return judge(_BASELINE, Found(**facts), races, outcomes=(baseline, *outcomes), dropped={}, warnings=(), spent_s={})


def test_the_winner_of_its_race_is_returned_with_its_laps() -> None:
    """Median, bounds and raw laps are those of the race."""
    verdict = _judge(_race(_LARGER, 1.5))
    assert verdict.settings == _LARGER
    speedup = verdict.evidence.speedup
    assert speedup is not None
    assert speedup.median == pytest.approx(1.5, rel=0.02)
    assert len(speedup.laps) == speedup.rounds == 6
    assert not verdict.evidence.kept_baseline


def test_a_lost_race_returns_the_baseline_and_still_says_the_ratio() -> None:
    """1.03x is below the margin: kept, with what was seen."""
    verdict = _judge(_race(_LARGER, 1.03))
    assert verdict.settings == _BASELINE
    assert verdict.evidence.kept_baseline
    assert verdict.evidence.speedup is not None
    assert "1.03x" in verdict.evidence.reason


def test_both_answers_are_judged_apart() -> None:
    """The larger batch wins; keeping the batch has its own winner and evidence."""
    verdict = _judge(_race(_LARGER, 2.0), _race(_WORKERS, 1.4))
    assert (verdict.settings, verdict.same_batch_settings) == (_LARGER, _WORKERS)
    assert verdict.same_batch_evidence.speedup is not None
    assert verdict.same_batch_evidence.speedup.median == pytest.approx(1.4, rel=0.02)


def test_without_a_same_batch_winner_that_answer_is_the_baseline() -> None:
    """keep_batch() never returns an unraced setting."""
    verdict = _judge(_race(_LARGER, 2.0))
    assert verdict.same_batch_settings == _BASELINE
    assert verdict.same_batch_evidence.kept_baseline


def test_an_undecided_race_ships_nothing_and_says_why() -> None:
    """However good the laps looked."""
    verdict = _judge(_race(_LARGER, 3.0, undecided="Time ran out after 2 of 5 rounds."))
    assert verdict.settings == _BASELINE
    assert "time ran out" in verdict.evidence.reason


def test_what_was_tried_is_counted_where_nothing_won() -> None:
    """'None of the 1 other settings' and 'nothing else could be tried' are different news."""
    assert "none of the 1 other settings" in _judge(outcomes=(_measured(_LARGER, 90.0),)).evidence.reason
    assert "nothing else could be tried" in _judge().evidence.reason


def test_an_upper_bound_that_a_measurement_refutes_is_not_shown() -> None:
    """A noisy look at the step alone below the measured rate bounds nothing."""
    low = _measured(_BASELINE, 50.0, "compute")
    high = _measured(_BASELINE, 500.0, "compute")
    assert _judge(compute=low).evidence.upper_bound_samples_per_s is None
    assert _judge(compute=high).evidence.upper_bound_samples_per_s == pytest.approx(500.0)


def test_the_upper_bound_is_the_lesser_of_loader_and_step() -> None:
    """Neither can be outrun."""
    found = {"compute": _measured(_BASELINE, 500.0, "compute"), "loader": _measured(_BASELINE, 300.0, "loader")}
    assert _judge(**found).evidence.upper_bound_samples_per_s == pytest.approx(300.0)


def test_skipped_knobs_join_the_dropped_ones() -> None:
    """A stage's reason reaches the user."""
    assert _judge(skipped={"compile_mode": "not tried"}).evidence.dropped_knobs == {"compile_mode": "not tried"}


def test_what_the_samples_cost_is_in_the_evidence() -> None:
    """Tokens and padding of ragged data; nothing of the kind for data whose samples are alike."""
    data = DataCosts(seen=90, samples=100, whole=False, mean_length=25.0, longest=80, padding_share=0.6)
    found = _judge(data=data).evidence
    assert (found.tokens_per_sample, found.padding_share, found.samples_seen) == (25.0, 0.6, 90)
    assert _judge().evidence.tokens_per_s is None


def test_a_disturbed_race_is_said() -> None:
    """Others' use of the cores is part of the evidence."""
    verdict = _judge(_race(_LARGER, 2.0, others_cores=0.8))
    assert any("0.8 cores" in text for text in verdict.evidence.warnings)
    assert verdict.evidence.speedup is not None
    assert verdict.evidence.speedup.others_cores == 0.8


def test_a_disturbed_search_is_said() -> None:
    """Half of its trials or more ran beside other work: no rate is that of this machine alone."""
    busy = dataclasses.replace(_measured(_WORKERS, 50.0), others_cores=1.2)
    assert any("1.2 cores in half of the search" in text for text in _judge(outcomes=(busy, busy)).evidence.warnings)
    quiet = dataclasses.replace(busy, others_cores=0.1)
    assert not any("of the search" in text for text in _judge(outcomes=(quiet, quiet)).evidence.warnings)


def test_what_was_seen_but_not_proven_is_said_with_the_remedy() -> None:
    """A race that time did not allow leaves the search's own figure, and the knobs it was seen with."""
    race = _race(_LARGER, 3.0, undecided="Not raced, since 5 rounds need 24 s and there were 17 s.")
    found = (_measured(_LARGER, 300.0),)
    reason = _judge(race, finalists=found).evidence.reason
    assert "not raced, since 5 rounds need 24 s" in reason
    assert "3.00x with batch_size=128" in reason
    assert "larger time_budget_s" in reason
