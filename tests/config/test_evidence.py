"""Evidence and its JSON form."""

from __future__ import annotations

import dataclasses
import json
import math

from autotune.config import Evidence, Speedup
from tests.config.conftest import evidence


def test_evidence_survives_json() -> None:
    """All that was measured comes back equal."""
    told = Evidence(
        kept_baseline=False,
        reason="won",
        speedup=Speedup(median=1.7, low=1.6, high=1.8, rounds=5),
        samples_per_s=10.5,
        largest_batch=64,
        dropped_knobs={"pin_memory": "no accelerator"},
        warnings=("busy",),
        spent_s={"race": 3.5},
        trials=4,
        created="2025-01-02",
    )
    assert Evidence.from_json(json.loads(json.dumps(told.to_json(), allow_nan=False))) == told


def test_numbers_that_are_not_finite_become_null() -> None:
    """A NaN rate or an unbounded interval never breaks the JSON."""
    told = Evidence(
        kept_baseline=True,
        reason="",
        samples_per_s=math.nan,
        speedup=Speedup(median=1.5, low=1.2, high=math.inf, rounds=5),
        spent_s={"race": math.inf},
    )
    document = told.to_json()
    json.dumps(document, allow_nan=False)
    read = Evidence.from_json(document)
    assert read.samples_per_s is None
    assert read.speedup == told.speedup
    assert read.spent_s == {}


def test_tokens_follow_from_samples() -> None:
    """The rate in tokens is that in samples times their mean length, also where the rate is replaced."""
    found = evidence(samples_per_s=100.0, tokens_per_sample=30.0, padding_share=0.4, samples_seen=9)
    assert found.tokens_per_s == 3000.0
    assert dataclasses.replace(found, samples_per_s=10.0).tokens_per_s == 300.0
    assert evidence().tokens_per_s is None
    assert found.to_json()["tokens_per_s"] == 3000.0
    assert Evidence.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_speedup_without_a_median_is_none() -> None:
    """An empty object and a null median both mean that nothing was raced."""
    assert Speedup.from_json({}) is None
    nothing = Speedup(median=math.nan, low=math.nan, high=math.nan, rounds=0)
    assert Speedup.from_json(nothing.to_json()) is None
