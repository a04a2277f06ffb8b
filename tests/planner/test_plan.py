"""The plan on machines with a known optimum."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autotune.errors import DoesNotFitError, TaskError
from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.planner import CPU, GPU, Plan
from autotune.settings import Settings
from autotune.study import Study
from tests.planner.fake_machine import CARD, FakeMachine, candidates, hardware


def _plan(machine: FakeMachine, *, budget_s: float = 120.0, **more: Any) -> Plan:
    arguments: dict[str, Any] = {
        "candidates": candidates(),
        "hardware": hardware(),
        "pace": CPU,
        "study": Study(),
        "run": machine.run,
        "clock": machine.clock,
        "budget_s": budget_s,
        "started_s": machine.clock(),
    }
    return Plan(**{**arguments, **more})


def _loading_bound(settings: Settings) -> float:
    """Loading at 100/s a core beside a step at 1,000/s, threads worth nothing; batches pay a little."""
    loaded = 100.0 * (min(settings.num_workers, 2) or 1) - 5 * ((settings.num_threads or 2) - 1)
    return loaded * (1 + 0.1 * ((settings.batch_size or 1) > 64))


def test_a_loading_bound_task_gets_a_worker_per_core_and_one_thread() -> None:
    """The optimum on paper is found."""
    found = _plan(FakeMachine(_loading_bound)).search()
    assert (found.finalists[0].settings.num_workers, found.finalists[0].settings.num_threads) == (2, 1)


@pytest.mark.parametrize("pace", [CPU, GPU])
def test_an_earlier_runs_answer_is_tried_right_after_the_baseline(pace: Any) -> None:
    """As far as it is allowed here, and the search builds on it where it still gains."""
    machine = FakeMachine(_loading_bound)
    earlier = Settings(batch_size=128, num_workers=2, prefetch_factor=2, persistent_workers=True, num_threads=1)
    on_card = {"hardware": hardware(cores=4, accelerator=CARD)} if pace is GPU else {}
    plan = _plan(machine, earlier=earlier.replace(num_workers=64), pace=pace, budget_s=60.0, **on_card)
    plan.search()
    joint = [probe.settings for probe in machine.probes if probe.kind == "joint"]
    cores = 4 if pace is GPU else 2
    assert joint[1] == earlier.replace(num_workers=cores)
    assert plan.best.samples_per_s > 0.98 * _loading_bound(joint[1])


def test_an_earlier_answer_waits_for_its_compilation_until_there_is_time() -> None:
    """With too little time left to compile, the rest of the answer is tried eagerly."""
    machine = FakeMachine(_loading_bound)
    earlier = Settings(batch_size=128, num_threads=2, compile_mode="default")
    values = {"compile_mode": ("default",)}
    _plan(machine, earlier=earlier, budget_s=40.0, candidates=candidates(values=values)).search()
    assert machine.probes[1].settings == earlier.replace(compile_mode=None)


def test_the_baseline_is_measured_before_anything_else() -> None:
    """Everything else is judged against it."""
    machine = FakeMachine(_loading_bound)
    plan = _plan(machine)
    plan.search()
    assert machine.probes[0].settings == plan.candidates.baseline
    assert machine.probes[0].cut_below_samples_per_s is None


def test_no_setting_is_measured_twice_on_an_accelerator() -> None:
    """A budget is not spent on what is known (optuna/optuna#2021 and #4237)."""
    machine = FakeMachine(_loading_bound)
    _plan(machine, pace=GPU, hardware=hardware(cores=4, accelerator=CARD)).search()
    joint = [probe.settings for probe in machine.probes if probe.kind == "joint"]
    assert len(joint) == len(set(joint))


def test_on_a_noisy_cpu_only_what_comes_near_the_best_is_looked_at_again() -> None:
    """A second look at a leader, and the playoff of the fastest few; nothing slow is asked twice."""
    machine = FakeMachine(_loading_bound)
    plan = _plan(machine)
    plan.search()
    joint = [probe.settings for probe in machine.probes if probe.kind == "joint"]
    again = {settings for settings in joint if joint.count(settings) > 1}
    assert again
    assert all(_loading_bound(settings) > 0.8 * plan.best.samples_per_s for settings in again)
    assert max(map(joint.count, again)) <= 5


def test_a_second_worker_that_adds_next_to_nothing_is_not_raced() -> None:
    """Behind a lock two workers load hardly more than one: what is within noise of the fastest goes to fewer."""

    def rate(settings: Settings) -> float:
        return {0: 100.0, 1: 200.0}.get(settings.num_workers, 203.0)

    found = _plan(FakeMachine(rate)).search()
    assert [one.settings.num_workers for one in found.finalists] == [1]


def test_a_lucky_look_does_not_decide() -> None:
    """A setting that once showed twice its rate is found out by a second look; the truly faster one is picked."""
    lucky = iter([2.0])

    def rate(settings: Settings) -> float:
        true = 120.0 if settings.num_threads == 1 and not settings.num_workers else 100.0
        once = settings.channels_last and settings.num_threads == 2
        return true * (next(lucky, 1.0) if once else 1.0)

    found = _plan(FakeMachine(rate), budget_s=200.0).search()
    assert found.finalists[0].settings.num_threads == 1


def test_nothing_faster_means_no_finalist() -> None:
    """Where every change loses, the baseline is all there is."""

    def rate(settings: Settings) -> float:
        return 100.0 if settings == candidates().baseline else 50.0

    assert _plan(FakeMachine(rate)).search().finalists == ()


def test_both_answers_are_left_for_the_race() -> None:
    """The fastest setting, and the fastest that keeps the batch."""

    def rate(settings: Settings) -> float:
        return 10.0 * (settings.batch_size or 1) * (1.5 if settings.num_workers else 1.0)

    found = _plan(FakeMachine(rate)).search()
    batches = [one.settings.effective_batch_size for one in found.finalists]
    assert batches == [256, 32]
    assert all(one.settings.num_workers for one in found.finalists)


def test_a_batch_that_gains_little_is_not_grown() -> None:
    """2 % for eight times the batch is not worth the change in training."""

    def rate(settings: Settings) -> float:
        return 100.0 * (1 + 0.02 * math.log2((settings.batch_size or 1) / 32) / 3)

    found = _plan(FakeMachine(rate)).search()
    assert all(one.settings.batch_size == 32 for one in found.finalists)


def test_the_time_for_the_race_is_kept_back() -> None:
    """With 30 s, at least five rounds of two laps are left when the search ends."""
    machine = FakeMachine(_loading_bound)
    plan = _plan(machine, budget_s=30.0)
    plan.search()
    assert 30.0 - machine.clock() >= 2 * 5 * 0.4


@pytest.mark.parametrize("budget_s", [5.0, 15.0, 30.0, 60.0])
@pytest.mark.parametrize("trial_s", [1.0, 6.0, 50.0])
def test_the_budget_is_never_exceeded_however_slow_trials_are(budget_s: float, trial_s: float) -> None:
    """Deadlines cap each trial at what is left.

    Report: optuna/optuna#3009.
    """
    machine = FakeMachine(_loading_bound, trial_s=trial_s)
    _plan(machine, budget_s=budget_s).search()
    assert machine.clock() <= 1.1 * budget_s


def test_a_baseline_that_does_not_answer_in_time_leaves_the_task_untuned() -> None:
    """The reason is said, nothing is raised."""

    def fate(probe: Probe) -> Outcome:
        return TimedOut(kind="joint", settings=probe.settings, deadline_s=probe.deadline_s)

    found = _plan(FakeMachine(_loading_bound, fate=fate), budget_s=20.0).search()
    assert found.baseline is None
    assert "20 s" in found.stopped


def test_a_baseline_that_does_not_fit_is_halved_with_the_effective_batch_kept() -> None:
    """32 rows do not fit, 8 do: four accumulation steps of 8, and it is said.

    Reports: mosaicml/composer#1081, EuroEval/EuroEval PR #69.
    """

    def fate(probe: Probe) -> Outcome | None:
        if (probe.settings.batch_size or 0) <= 8:
            return None
        return OutOfMemory(kind="joint", settings=probe.settings, where="allocator", message="full")

    plan = _plan(FakeMachine(_loading_bound, fate=fate))
    found = plan.search()
    assert found.baseline is not None
    assert (found.baseline.settings.batch_size, found.baseline.settings.effective_batch_size) == (8, 32)
    assert any("accumulation" in text for text in found.warnings)


def test_nothing_fits_is_an_error_with_the_last_cause() -> None:
    """Not even one row: a clear error, no endless halving."""

    def fate(probe: Probe) -> Outcome:
        return OutOfMemory(kind="joint", settings=probe.settings, where="allocator", message="all gone")

    with pytest.raises(DoesNotFitError, match="all gone"):
        _plan(FakeMachine(_loading_bound, fate=fate)).search()


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Rejected(kind="joint", settings=Settings(), phase="step", reason="bad shapes", traceback="T"), "bad shapes"),
        (Crashed(kind="joint", settings=Settings(), exit_code=-11, output_tail="tail"), "tail"),
    ],
)
def test_a_baseline_that_does_not_train_is_the_users_error_in_full(outcome: Outcome, message: str) -> None:
    """The original message (or last output) comes through."""
    machine = FakeMachine(_loading_bound, fate=lambda probe: outcome)
    with pytest.raises(TaskError, match=message):
        _plan(machine).search()


def test_every_failed_candidate_leaves_the_baseline_and_no_exception() -> None:
    """Only the baseline runs: it is what remains.

    Reports: deepspeedai/DeepSpeed#4100, optuna/optuna#2867.
    """

    def fate(probe: Probe) -> Outcome | None:
        if probe.settings == candidates().baseline:
            return None
        return Crashed(kind="joint", settings=probe.settings, exit_code=-9)

    found = _plan(FakeMachine(_loading_bound, fate=fate)).search()
    assert found.baseline is not None
    assert found.finalists == ()


def test_a_slow_precision_costs_one_cut_trial() -> None:
    """40 times slower bf16 is cut, never chosen and not asked for again."""

    def rate(settings: Settings) -> float:
        return _loading_bound(settings) / (40 if settings.precision == "bf16-mixed" else 1)

    machine = FakeMachine(rate)
    found = _plan(machine).search()
    assert sum(probe.settings.precision == "bf16-mixed" for probe in machine.probes) == 1
    assert all(one.settings.precision == "fp32" for one in found.finalists)


def test_wrong_numbers_are_kept_out_of_the_race() -> None:
    """A precision whose loss differs is replaced by the next best setting, and it is said."""

    def rate(settings: Settings) -> float:
        return _loading_bound(settings) * (2 if settings.precision == "bf16-mixed" else 1)

    def fate(probe: Probe) -> Outcome | None:
        if probe.kind != "numerics":
            return None
        wrong = 0.5 if probe.settings.precision == "bf16-mixed" else 0.0
        return Measured(kind="numerics", settings=probe.settings, chunks=(), first_loss=1.0, loss_error=wrong)

    found = _plan(FakeMachine(rate, fate=fate)).search()
    assert found.finalists
    assert all(one.settings.precision == "fp32" for one in found.finalists)
    assert any("bf16" in text for text in found.warnings)


def test_a_setting_beyond_the_memory_margin_is_not_a_finalist() -> None:
    """It ran, but it leaves less than the margin free.

    Report: pytorch/pytorch#13246.
    """

    def fate(probe: Probe) -> Outcome | None:
        measured = FakeMachine(_loading_bound).run(probe)
        if not isinstance(measured, Measured) or not probe.settings.num_workers:
            return None
        import dataclasses

        return dataclasses.replace(measured, peak_ram_bytes=2**33 - 1)

    found = _plan(FakeMachine(_loading_bound, fate=fate)).search()
    assert all(one.settings.num_workers == 0 for one in found.finalists)


def test_an_accelerator_gets_one_guess_with_everything_first() -> None:
    """The second trial already has the larger batch, bf16, pinning and workers together."""
    accelerator = type("Accelerator", (), {"memory_bytes": None})()
    machine = FakeMachine(lambda settings: 100.0 * (settings.batch_size or 1) ** 0.5)
    values = {
        "precision": ("bf16-mixed",),
        "channels_last": (True,),
        "pin_memory": (True,),
        "optimizer_implementation": ("fused",),
    }
    plan = _plan(machine, hardware=hardware(8, accelerator), pace=GPU, candidates=candidates(values=values))
    plan.search()
    assert [probe.kind for probe in machine.probes[:4]] == ["joint", "loader", "compute", "joint"]
    guess = machine.probes[3].settings
    assert (guess.batch_size, guess.precision, guess.pin_memory, guess.num_workers) == (128, "bf16-mixed", True, 3)


@pytest.mark.parametrize("budget_s", [30.0, 60.0, 120.0])
@pytest.mark.parametrize("accelerated", [False, True])
def test_comparisons_that_hang_leave_time_for_the_race(budget_s: float, accelerated: bool) -> None:
    """Each set of knobs that changes numbers hangs once at most, for half of the time left at most."""

    def rate(settings: Settings) -> float:
        gain = (1 + settings.num_workers) * (settings.batch_size or 1) ** 0.3
        return 100.0 * gain * (2 if settings.precision != "fp32" else 1)

    machine = FakeMachine(rate)

    def run(probe: Probe) -> Outcome:
        if probe.kind != "numerics":
            return machine.run(probe)
        machine.now += probe.deadline_s
        compared.append((probe.settings.precision, probe.settings.channels_last))
        return TimedOut(kind="numerics", settings=probe.settings, deadline_s=probe.deadline_s)

    compared: list[tuple[str, bool]] = []
    accelerator = type("Accelerator", (), {"memory_bytes": 2**34})() if accelerated else None
    pace = GPU if accelerated else CPU
    plan = _plan(machine, budget_s=budget_s, run=run, hardware=hardware(4, accelerator), pace=pace)
    found = plan.search()
    assert len(compared) == len(set(compared))
    assert machine.clock() < budget_s
    assert all(one.settings.precision == "fp32" for one in found.finalists)


@pytest.mark.parametrize("accelerated", [False, True])
def test_a_stream_for_one_worker_still_gets_that_one(accelerated: bool) -> None:
    """More are never asked for; that they are refused does not end the search for workers."""

    def rate(settings: Settings) -> float:
        return 1000.0 if settings.num_workers else 100.0

    machine = FakeMachine(rate, loader=lambda settings: 100.0, compute=lambda settings: 2000.0)
    facts = candidates().facts
    stream: Any = type(facts)(**{**vars(facts), "one_worker_only": "it would repeat its samples"})
    accelerator = type("Accelerator", (), {"memory_bytes": 2**34})() if accelerated else None
    machines = {"hardware": hardware(4, accelerator), "pace": GPU if accelerated else CPU}
    found = _plan(machine, candidates=candidates(facts=stream), **machines).search()
    assert found.finalists[0].settings.num_workers == 1
    assert {probe.settings.num_workers for probe in machine.probes} == {0, 1}
