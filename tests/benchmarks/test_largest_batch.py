"""What the benchmark of batch finders says of their cost."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("resource", reason="the benchmark caps memory through it")

from benchmarks.largest_batch import cost_beside_binsearch, counts, summary


def found(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "batch_size": 96, "share_of_edge": 0.96, "out_of_memory": 1, **more}


def test_cost_is_ours_over_binsearch_in_probes_and_seconds() -> None:
    """The best and the worst of our runs; what was left out does not count."""
    results = [
        found("autotune", probes=5, seconds=12.0),
        found("autotune", probes=10, seconds=24.0),
        {"method": "accelerate", "left_out": "accelerate is not installed"},
        found("binsearch", probes=20, seconds=48.0),
    ]
    text = cost_beside_binsearch(results)
    assert "probes 0.25 to 0.50, seconds 0.25 to 0.50 (2 runs)" in text
    assert "not both" in cost_beside_binsearch(results[:3])
    assert "5 probes, 1 out of memory, 12 s" in summary(results[0])


def test_a_finder_that_crashes_still_has_its_probes_and_seconds() -> None:
    """And what it raised."""

    def crash() -> int:
        raise RuntimeError("no executable batch size")

    result = counts(crash, [[64, "out of memory"], [32, "measured"]])
    assert (result["batch_size"], result["probes"], result["out_of_memory"]) == (None, 2, 1)
    assert "no executable batch size" in result["crash"]
    assert result["seconds"] >= 0
