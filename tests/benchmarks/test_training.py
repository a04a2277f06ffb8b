"""Real trainings at a toy's size: what is timed, what is left out."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import time_to_loss
from benchmarks.honesty import say
from benchmarks.time_to_loss import time_to
from benchmarks.training import Loop, judged, plain_loop, train
from benchmarks.workloads import Workload, workload


class Clock:
    """Advances only where it is told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def loop(clock: Clock, batches: int, *, first_s: float = 5.0, step_s: float = 1.0) -> Loop:
    """Batches of four; the first step is slow."""
    taken: list[Any] = []

    def step(batch: Any) -> Tensor:
        clock.now_s += step_s if taken else first_s
        taken.append(batch)
        return torch.tensor(0.0)

    batch = (torch.zeros(4, 1), torch.zeros(4))
    return Loop(model=nn.Linear(1, 1), loader=[batch] * batches, step=step)


def test_the_rate_leaves_the_first_step_out_and_says_what_it_costs() -> None:
    """Twenty steps of 1 s after one of 5 s: 4 samples/s, 3.5 with the start."""
    clock = Clock()
    trained = train(loop(clock, 8), epochs=2, limit_s=100.0, clock=clock)
    assert (trained.epochs, trained.samples, trained.ended_by) == (2, 64, "epochs")
    assert trained.samples_per_s == pytest.approx(4.0)
    assert trained.to_json()["samples_per_s_with_start"] == pytest.approx(64 / 20)


def test_the_limit_ends_a_training_and_is_named() -> None:
    """Two epochs or the limit, whichever is less."""
    clock = Clock()
    trained = train(loop(clock, 100), epochs=2, limit_s=10.0, clock=clock)
    assert (trained.seconds, trained.epochs, trained.ended_by) == (10.0, 0, "10 s")


def test_snapshots_are_taken_by_samples_seen() -> None:
    """Every eight samples, with the seconds until then."""
    clock = Clock()
    trained = train(loop(clock, 4), epochs=1, limit_s=100.0, snapshot_every=8, clock=clock)
    assert [(seconds, samples) for seconds, samples, _ in trained.snapshots] == [(6.0, 8), (8.0, 16)]


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workload:
    monkeypatch.setenv("AUTOTUNE_BENCHMARK_CACHE", str(tmp_path))
    monkeypatch.setenv("AUTOTUNE_BENCHMARK_OFFLINE", "1")
    return dataclasses.replace(workload("w2", size=64), model=linear)  # the real one is slow on a busy machine


def test_plain_training_changes_the_weights_that_are_judged(job: Workload) -> None:
    """Real data from loader to judgement: both snapshots have finite losses on held-out data, not the same one."""
    trained = train(plain_loop(job, seed=0), epochs=1, limit_s=60.0, snapshot_every=32)
    losses = [judged(job, weights) for _, _, weights in trained.snapshots]
    assert len(losses) == 2
    assert all(0 < loss < 100 for loss in losses)
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("curve", "seconds"),
    [
        ([(1.0, 10, 3.0), (2.0, 20, 2.0), (3.0, 30, 1.0)], 2.5),
        ([(1.0, 10, 1.4), (2.0, 20, 2.0)], 1.0),
        ([(1.0, 10, 3.0), (2.0, 20, 2.0)], None),
    ],
    ids=["between two points", "at the first", "never"],
)
def test_the_time_to_a_loss_is_its_first_crossing(curve: list[tuple[float, int, float]], seconds: float | None) -> None:
    """Linear between two judgements."""
    assert time_to(curve, 1.5) == (None if seconds is None else pytest.approx(seconds))


def honesty_runs(others_cores: float) -> list[dict[str, Any]]:
    """Three rounds; in the last one the tuned run is 1.02 of its promise, or half where others use the CPU."""
    found = []
    for ratio in (0.98, 1.0, 0.5 if others_cores else 1.02):
        rates = {"samples_per_s": 100.0, "samples_per_s_with_start": 90.0}
        for kind in ("tuned", "defaults"):
            found.append({"kind": kind, "real_over_promised": ratio, "others_cores": 0.0, **rates})
    found[-2]["others_cores"] = others_cores
    return found


def test_honesty_prints_each_kind_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    """Real over promised, what the start costs on top, and both kinds against each other."""
    summary = say(honesty_runs(0.0))
    assert summary["tuned"]["ratio"]["median"] == pytest.approx(1.0)
    assert summary["relative"]["median"] == pytest.approx(1.0)
    printed = capsys.readouterr().out
    assert "tuned: real / promised 1.00 (0.95 to 1.05, 3 runs); with the first step 0.90" in printed


def test_a_disturbed_round_is_left_out_of_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """The round in which another process halved the rate is said, and does not count."""
    summary = say(honesty_runs(0.8))
    assert summary["tuned"]["ratio"]["rounds"] == 2
    assert "1 of 3 rounds disturbed, 2 counted" in capsys.readouterr().out


def compared(monkeypatch: pytest.MonkeyPatch, curves: dict[str, list[tuple[float, int, float]]], seed: int) -> Any:
    """``compare`` with trainings that are already known; the result, and what was asked."""
    asked = []

    def trained(name: str, **options: Any) -> dict[str, Any]:
        kind = options["config"].stem if options.get("config") else "default"
        asked.append((kind, options["limit"], options["seed"]))
        return {"curve": curves[kind], "seconds": curves[kind][-1][0]}

    monkeypatch.setattr(time_to_loss, "trained_in_child", trained)
    configs = {"locked": Path("locked.json"), "free": Path("free.json")}
    return time_to_loss.compare(Namespace(workload="w3", size=64), configs, seed), asked


def test_the_target_is_the_loss_of_the_defaults_of_the_same_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is there in half the time, the other one misses it within half as long again; both are said."""
    curves = {
        "default": [(10.0, 32, 2.0), (20.0, 64, 1.0)],
        "locked": [(5.0, 32, 2.0), (10.0, 64, 1.0)],
        "free": [(15.0, 64, 3.0), (30.0, 128, 1.5)],
    }
    found, asked = compared(monkeypatch, curves, seed=1)
    assert asked == [("default", 3600.0, 1), ("free", 30.0, 1), ("locked", 30.0, 1)]
    assert (found["target"], found["default_s"]) == (1.0, 20.0)
    assert (found["locked"]["ratio"], found["free"]["ratio"]) == (0.5, None)
    assert "free: not within 30.0 s" in capsys.readouterr().out
    assert time_to_loss.say("free", [None]) is None
    assert "free: never reached; 1 of 1 seeds missed the target" in capsys.readouterr().out
