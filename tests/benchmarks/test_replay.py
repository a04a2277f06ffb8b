"""Search strategies on simulated and recorded machines: the simulation is as it says, the product holds its word."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from autotune.hardware import Hardware
from autotune.measurement import Measured, OutOfMemory, Probe, TimedOut
from autotune.settings import Settings
from benchmarks import replay
from benchmarks.simulated.bench import SimulatedBench
from benchmarks.simulated.drawing import draw_tasks
from benchmarks.simulated.machine import MACHINES, hardware_record
from benchmarks.simulated.model import memory_gb, true_samples_per_s
from benchmarks.simulated.noise import NoiseLevel
from benchmarks.simulated.optimum import best_possible, most_batch
from benchmarks.simulated.ours import ours
from benchmarks.simulated.plot import score_at
from benchmarks.simulated.recorded import RecordedRow, RecordedTable, load_table, recorded_world, save_table
from benchmarks.simulated.runs import jobs_of, play, play_all
from benchmarks.simulated.summary import restricted_mean_s
from benchmarks.simulated.task import SimulatedTask
from benchmarks.simulated.trace import Score

QUIET = NoiseLevel(
    of_run=0.0, of_second=0.0, of_step=0.0, outlier_share=0.0, outlier=(0.0, 0.0), wandering=0.0, warming=0.0
)


def _task(kind: str, machine: str = "A") -> SimulatedTask:
    return next(one for one in draw_tasks(0) if one.kind == kind and one.machine.kind == machine)


def _quiet_bench(task: SimulatedTask, monkeypatch: pytest.MonkeyPatch) -> SimulatedBench:
    for name in ("GPU_NOISE", "CPU_NOISE"):
        monkeypatch.setattr(f"benchmarks.simulated.bench.{name}", QUIET)
    return SimulatedBench(task, 0)


def _measured(bench: SimulatedBench, settings: Settings, **more: object) -> Measured:
    outcome = bench.run(Probe(kind="joint", settings=settings, deadline_s=1000.0, **more))  # type: ignore[arg-type]
    assert isinstance(outcome, Measured)
    return outcome


@cache
def _scores(strategy: str) -> tuple[Score, ...]:
    """Every task of set 0 with a GPU, at 120 s."""
    jobs = jobs_of(strategies=[strategy], kinds=["A", "C"], budgets_s=[120.0], seeds=1)
    return tuple(play_all(jobs))


def test_a_set_has_the_same_tasks_each_time() -> None:
    """What a seed drew, it draws again."""
    once, again = draw_tasks(1), draw_tasks(1)
    assert [one.baseline for one in once] == [one.baseline for one in again]
    assert [one.row_s for one in once] == [one.row_s for one in again]
    assert [one.row_s for one in once] != [one.row_s for one in draw_tasks(0)]


def test_every_baseline_fits_in_memory() -> None:
    """The user trains with it, so it must."""
    tasks = [*draw_tasks(0), *draw_tasks(1)]
    assert len(tasks) == 48
    assert all(memory_gb(task, task.baseline) <= 0.9 * task.machine.memory_gb for task in tasks)


def test_nothing_tried_at_random_is_faster_than_the_optimum() -> None:
    """The optimum is one: settings that were drawn from the same space never beat it."""
    for task in draw_tasks(0)[::5]:
        optimum = best_possible(task)
        assert true_samples_per_s(task, optimum.settings) == pytest.approx(optimum.samples_per_s)
        others = [
            optimum.settings.replace(batch_size=batch, precision=precision, num_workers=workers)
            for batch in (1, 16, 256, 4096)
            for precision in ("fp32", "bf16-mixed")
            for workers in range(task.machine.cores + 1)
        ]
        assert max(float(true_samples_per_s(task, one)) for one in others) <= optimum.samples_per_s * 1.0001


def test_a_tighter_limit_of_the_batch_has_no_faster_optimum() -> None:
    """Free, the product's cap, locked: each space holds the next."""
    for task in draw_tasks(0)[::3]:
        free, cap, locked = (best_possible(task, limit).samples_per_s for limit in ("free", "cap", "locked"))
        assert free >= cap * 0.9999
        assert cap >= locked * 0.9999
        assert best_possible(task, "locked").settings.batch_size == most_batch(task, "locked")


def test_without_noise_a_window_shows_the_true_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch ends aside: the true rate holds them, a window in process does not."""
    task = replace(_task("comp"), samples=10**9)
    outcome = _measured(_quiet_bench(task, monkeypatch), task.baseline)
    assert outcome.samples_per_s == pytest.approx(float(true_samples_per_s(task, task.baseline)), rel=1e-3)


def test_running_out_of_memory_ends_the_process_on_a_cpu_only() -> None:
    """The next probe pays a new process there."""
    for machine, dies in (("A", False), ("B", True)):
        task = _task("comp", machine)
        bench = SimulatedBench(task, 0)
        bench.start()
        huge = Probe(kind="compute", settings=Settings(batch_size=2**20), deadline_s=1e9)
        assert isinstance(bench.run(huge), OutOfMemory)
        _measured(bench, task.baseline)
        assert bench.starts == 1 + dies


def test_a_deadline_kills_the_process_and_is_all_the_time_it_takes() -> None:
    """The clock stands at the deadline; the start of the next process is not part of the next trial's cost."""
    task = _task("load")
    bench = SimulatedBench(task, 0)
    bench.start()
    began_s = bench.clock()
    outcome = bench.run(Probe(kind="joint", settings=task.baseline, deadline_s=0.5))
    assert isinstance(outcome, TimedOut)
    assert bench.clock() == pytest.approx(began_s + 0.5)
    killed_s = bench.clock()
    following = _measured(bench, task.baseline)
    assert bench.clock() - killed_s == pytest.approx(task.machine.process_start_s + following.cost_s)


def test_a_hopeless_trial_is_cut_early() -> None:
    """It takes less of the window, and says so."""
    task = _task("launch")
    full = _measured(SimulatedBench(task, 0), task.baseline, window_s=5.0)
    cut = _measured(
        SimulatedBench(task, 0), task.baseline, window_s=5.0, cut_below_samples_per_s=10 * full.samples_per_s
    )
    assert cut.cut
    assert not full.cut
    assert cut.cost_s < full.cost_s - 3.0


def test_what_was_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the process, nor after another setting from the disk, where loading it takes a little."""
    task = _task("launch")
    bench = _quiet_bench(task, monkeypatch)
    compiled = task.baseline.replace(compile_mode="default")
    costs = [
        _measured(bench, settings).cost_s
        for settings in (compiled, compiled, compiled.replace(precision="bf16-mixed"), compiled)
    ]
    assert costs[0] > costs[1] + 15.0
    assert costs[1] + 2.0 < costs[3] < costs[1] + 4.0


def test_a_lap_of_a_resident_setting_starts_nothing() -> None:
    """Its second lap is cheaper by all that the first one started."""
    task = _task("load")
    bench = SimulatedBench(task, 0)
    bench.start()
    settings = task.baseline.replace(num_workers=4)
    laps = [bench.run(Probe(kind="lap", settings=settings, window_s=1.0, deadline_s=1e3)) for _ in range(2)]
    assert laps[1].cost_s < laps[0].cost_s - 4 * task.worker_start_s
    assert bench.clock.spent_s["race"] == pytest.approx(sum(lap.cost_s for lap in laps))


def test_the_same_seed_gives_the_same_answer() -> None:
    """To the last figure, for the product and for a sampler."""
    for strategy in ("ours", "tpe"):
        job = jobs_of(strategies=[strategy], kinds=["B"], budgets_s=[60.0], seeds=1)[0]
        assert play(job) == play(job)


def test_the_product_is_never_slower_than_the_baseline_on_a_gpu() -> None:
    """What the race lets through is faster, or it is the baseline."""
    slower = [one.world for one in _scores("ours") if one.against_baseline < 0.98]
    assert slower == []


def test_the_product_is_closer_to_the_optimum_than_random_settings() -> None:
    """What the search believed in, race aside, on the same tasks and budget."""
    own = statistics.median(one.believed for one in _scores("ours"))
    assert own > statistics.median(one.score for one in _scores("random")) + 0.1


def test_random_and_tpe_lie_where_the_study_found_them() -> None:
    """Loosely, since this is a small sample: random and TPE are alike at 120 s, and far from the optimum."""
    for strategy in ("random", "tpe"):
        assert 0.25 < statistics.median(one.score for one in _scores(strategy)) < 0.65


def test_the_budget_is_kept() -> None:
    """Simulated seconds are within what the product promises."""
    assert max(one.wall_s / one.budget_s for one in _scores("ours")) <= 1.1


def test_a_reached_share_counts_from_the_first_belief_in_it() -> None:
    """The restricted mean takes the horizon for runs that never get there."""
    one = _scores("ours")[0]
    early = replace(one, curve=((5.0, 0.5), (20.0, 0.95), (40.0, 0.8)))
    never = replace(one, curve=((5.0, 0.5),))
    assert early.seconds_to(0.9) == 20.0
    assert restricted_mean_s([early, never], 0.9) == (20.0 + 300.0) / 2
    assert [score_at(early, at_s, 0.1) for at_s in (0.0, 6.0, 50.0)] == [0.1, 0.5, 0.8]


def _table() -> RecordedTable:
    """A CPU on which two workers with batch 128 are twice as fast as the baseline."""
    own = Settings(batch_size=32, num_threads=2)
    rows = [
        RecordedRow(settings=own, samples_per_s=(100.0, 101.0, 99.0), cost_s=3.0, start_s=0.2, warmup_s=0.3),
        RecordedRow(settings=own.replace(num_workers=2, num_threads=1), samples_per_s=(150.0, 152.0), start_s=0.5),
        RecordedRow(settings=own.replace(num_workers=2, num_threads=1, batch_size=128), samples_per_s=(200.0, 201.0)),
        RecordedRow(settings=own.replace(batch_size=4096), samples_per_s=(), fate=OutOfMemory.fate, cost_s=2.0),
    ]
    machine: Hardware = hardware_record(MACHINES["B"], bf16_pays=False)
    return RecordedTable(workload="a test", machine=machine, rows=tuple(rows))


def test_a_recorded_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """JSON holds all of it."""
    save_table(_table(), tmp_path / "table.json")
    assert load_table(tmp_path / "table.json") == _table()


def test_the_schema_needs_no_more_than_its_plain_fields() -> None:
    """Baseline, facts, notes and a row's kind may be left out; the first row is the baseline then."""
    plain = json.loads(json.dumps(_table().to_json()))
    for name in ("baseline", "facts", "notes", "schema_version"):
        del plain[name]
    for row in plain["rows"]:
        del row["kind"], row["data_wait_share"], row["peak_accelerator_bytes"]
    table = RecordedTable.from_json(plain)
    assert recorded_world(table).baseline == _table().rows[0].settings


def test_the_product_finds_the_best_of_a_recorded_table() -> None:
    """The nearest recorded setting answers; the race proves what was recorded as faster."""
    score = ours(recorded_world(_table()), 120.0, 0).scored()
    assert score.score == pytest.approx(1.0, abs=0.01)


def test_the_program_prints_its_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One small call from the command line, with all runs in a file."""
    out = tmp_path / "runs.json"
    replay.main(
        ["--kinds", "B", "--budgets", "60", "--seeds", "1", "--strategies", "ours", "descent", "--out", str(out)]
    )
    said = capsys.readouterr().out
    assert "| ours |" in said
    assert "Where ours loses" in said
    assert len(json.loads(out.read_text())) == 14
