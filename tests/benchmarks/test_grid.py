"""The grid and the recorded table, with a machine that only exists on paper."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.config.evidence import Evidence
from autotune.hardware import Hardware, Limits
from autotune.measurement import Chunk, Measured, Outcome, Probe, TimedOut
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.task import Facts, Task
from autotune.trial import Bench
from benchmarks.grid import Point, cells, fill, flag_combinations
from benchmarks.oracle import Effort, check, say_table, score
from benchmarks.probing import Bench as OpenBench
from benchmarks.recording import Table, record
from benchmarks.workloads import workload


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    return dataclasses.replace(Hardware.detect(device="cpu"), cores=2, cpu_bf16_native=True)


@pytest.fixture(scope="module")
def facts(hardware: Hardware) -> Facts:
    """Of a small conv net on what looks like 60,000 images."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    data = TensorDataset(torch.zeros(64, 3, 8, 8), torch.zeros(64, dtype=torch.long))
    found = Bench(Task(network, data, loss_fn=nn.CrossEntropyLoss()), hardware, Limits.of(hardware)).describe()
    return dataclasses.replace(found, samples=60_000, caller={**found.caller, "num_threads": 2})


def candidates(facts: Facts, hardware: Hardware, locked: bool = False) -> Candidates:
    rules = BatchRules(base_batch_size=32, effective_batch_size="keep" if locked else None)
    return Candidates.of(facts, hardware, Limits.of(hardware), rules, Space())


class Paper:
    """Rates as a formula; what it was asked, in order."""

    def __init__(self, hangs: int | None = None) -> None:
        self.hangs = hangs
        self.probes: list[Probe] = []

    def __call__(self, probe: Probe) -> Outcome:
        self.probes.append(probe)
        settings = probe.settings
        if settings.num_workers == self.hangs:
            return TimedOut(kind="joint", settings=settings, deadline_s=probe.deadline_s, cost_s=15.0)
        rate = (settings.batch_size or 1) * (2 if settings.channels_last else 1) + settings.num_workers
        cut = rate < (probe.cut_below_samples_per_s or 0)
        chunk = Chunk(rows=1000 * rate, seconds=1000.0)
        return Measured(kind=probe.kind, settings=settings, chunks=(chunk,), cut=cut, cost_s=2.0)


def test_the_grid_reaches_what_the_tuner_may_reach(facts: Facts, hardware: Hardware) -> None:
    """Eight times the batch, more workers than cores, one thread, and the baseline among them; all allowed."""
    rules = candidates(facts, hardware)
    found = cells(rules, 2)
    assert found[0] == rules.baseline
    assert {one.batch_size for one in found} == {32, 64, 128, 256}
    assert {one.num_workers for one in found} == {0, 1, 2, 3}
    assert {one.num_threads for one in found} == {1, 2}
    assert len(found) == len(set(found)) == 32
    assert all(rules.refusal(one) is None for one in found)


def test_a_locked_grid_keeps_the_effective_batch(facts: Facts, hardware: Hardware) -> None:
    """Only the split into micro-batches varies."""
    found = cells(candidates(facts, hardware, locked=True), 2)
    assert {one.effective_batch_size for one in found} == {32}
    assert {one.batch_size for one in found} == {8, 16, 32}


def test_flags_are_combined(facts: Facts, hardware: Hardware) -> None:
    """Precision, memory format and fused steps in all seven combinations; nothing compiled."""
    found = flag_combinations(candidates(facts, hardware))
    assert len(found) == 7
    assert {"precision": "bf16-mixed", "channels_last": True, "optimizer_implementation": "fused"} in found


def test_the_second_pass_runs_backwards_and_leaves_out_what_was_cut(facts: Facts, hardware: Hardware) -> None:
    """What is far below the best so far is measured once; a second look is never cut."""
    paper = Paper()
    points = fill(paper, candidates(facts, hardware), cores=2, points=40, window_s=1.0, say=lambda _: None)
    first, second = ([p.settings for p in paper.probes if p.seed == number] for number in (1, 2))
    assert len(first) == len(set(first)) == 40
    joint = [point for point in points if point.kind == "joint"]
    assert second[:-8] == [point.settings for point in reversed(joint) if not point.given_up]
    assert [probe.kind for probe in paper.probes[-8:]] == ["compute", "loader"] * 4
    assert all(probe.cut_below_samples_per_s is None for probe in paper.probes if probe.seed == 2)
    assert points[0].settings.batch_size == 32
    assert len(points[0].outcomes) == 2
    best = max(points, key=lambda point: point.samples_per_s)
    assert best.settings.channels_last
    assert (best.settings.batch_size, best.settings.num_workers) == (256, 3)


def test_a_point_that_hangs_is_not_asked_again_and_has_no_rate(facts: Facts, hardware: Hardware) -> None:
    """The table goes on without it."""
    paper = Paper(hangs=3)
    points = fill(paper, candidates(facts, hardware), cores=2, points=32, window_s=1.0, say=lambda _: None)
    hung = [point for point in points if point.settings.num_workers == 3 and point.kind == "joint"]
    assert len(hung) == 8
    assert all(len(point.outcomes) == 1 and point.samples_per_s == 0.0 for point in hung)


def points() -> list[Point]:
    def measured(settings: Settings, rate: float, cut: bool = False) -> Measured:
        chunk = Chunk(rows=int(rate * 10), seconds=10.0, waited_s=1.0)
        seen = Measured(kind="joint", settings=settings, chunks=(chunk,), cut=cut, peak_ram_bytes=7)
        return dataclasses.replace(seen, start_s=0.5, warmup_s=2.0, cost_s=13.0)

    one, two, three = (Settings(batch_size=size) for size in (32, 64, 128))
    hung = TimedOut(kind="joint", settings=Settings(batch_size=256), deadline_s=15.0, cost_s=15.5)
    return [
        Point(one, [measured(one, 100), measured(one, 110)]),
        Point(two, [measured(two, 300), measured(two, 300)]),
        Point(three, [measured(three, 20, cut=True)]),
        Point(hung.settings, [hung]),
    ]


def test_a_recorded_table_reads_back(
    tmp_path: Path, facts: Facts, hardware: Hardware, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raw rates of both passes, what failed without one, the fastest first."""
    rules, path = candidates(facts, hardware), tmp_path / "new" / "w2.json"
    table = record(path, points(), rules, workload="w2", machine=hardware, seconds=30.0)
    assert table == Table.read(tmp_path / "new" / "w2.json")
    assert [one.batch_size for one in table.best] == [64, 32]
    assert table.rates[Settings(batch_size=32)] == pytest.approx([100, 110])
    assert table.rates[Settings(batch_size=128)] == table.rates[Settings(batch_size=256)] == []
    assert table.scatter == pytest.approx(0.05, abs=0.01)
    document = json.loads(path.read_text())
    rows = document["rows"]
    assert [row["fate"] for row in rows] == ["measured", "measured", "measured", "timed out"]
    assert [[one["cut"] for one in passes] for passes in document["passes"]] == [[False] * 2] * 2 + [[True], [False]]
    assert rows[0]["peak_ram_bytes"] == 7
    parts = {"cost_s", "start_s", "first_batch_s", "warmup_s", "data_wait_share"}  # what a replay takes, no more
    assert set(rows[0]) == parts | {
        "settings",
        "kind",
        "fate",
        "samples_per_s",
        "peak_ram_bytes",
        "peak_accelerator_bytes",
    }
    assert (rows[0]["start_s"], rows[0]["first_batch_s"], rows[0]["warmup_s"]) == pytest.approx((1.0, 0.5, 1.5))
    assert Hardware.from_json(document["machine"]) == hardware
    assert Facts.from_json(document["facts"]) == facts
    say_table(table)
    assert "4 points in 30 s, 2 measured to the end; 105 to 300 samples/s" in capsys.readouterr().out


def test_a_table_of_another_workload_is_refused(tmp_path: Path, facts: Facts, hardware: Hardware) -> None:
    """So is one with another rule for batches."""
    rules = candidates(facts, hardware, locked=True)
    table = record(tmp_path / "w2.json", points(), rules, workload="w2", machine=hardware, seconds=1.0)
    job = workload("w2", size=64)
    check(table, job, locked=True)
    with pytest.raises(SystemExit, match="w2, locked"):
        check(table, job, locked=False)
    with pytest.raises(SystemExit, match="of w2"):
        check(table, workload("w3"), locked=True)


def answer(pick: Settings) -> tuple[Any, float, float]:
    """As much of a tuned config as a score looks at."""
    evidence = Evidence(kept_baseline=False, reason="won", trials=17)
    return SimpleNamespace(settings=pick, baseline=Settings(), evidence=evidence), 60.0, 58.5


def scored(run: Any, pick: Settings, facts: Facts, hardware: Hardware) -> dict[str, Any]:
    rules = candidates(facts, hardware)
    bench = OpenBench(run=run, candidates=rules, hardware=hardware, start_s=1.0)
    return score(bench, answer(pick), Settings(batch_size=128), Effort(rounds=3))


def test_a_score_is_the_answer_over_the_best_of_the_grid(
    facts: Facts, hardware: Hardware, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half the grid's best and twice the baseline, with what it cost."""
    found = scored(Paper(), Settings(batch_size=64), facts, hardware)
    assert found["score"]["median"] == pytest.approx(0.5)
    assert found["over_baseline"]["median"] == pytest.approx(2.0)
    assert len(found["laps"]["samples_per_s"]) == 3
    printed = capsys.readouterr().out
    assert "60 s: score 0.50 (0.50 to 0.50, 3 rounds); over the baseline 2.00" in printed
    assert "58.5 s, 17 probes; batch_size=64" in printed


def test_an_answer_that_does_not_run_has_no_score(facts: Facts, hardware: Hardware) -> None:
    """It is recorded as failed, and the other budgets are still raced."""

    def run(probe: Probe) -> Outcome:
        return TimedOut(kind="lap", settings=probe.settings, deadline_s=1.0)

    found = scored(run, Settings(batch_size=64), facts, hardware)
    assert "does not run" in found["failed"]
    assert "score" not in found
