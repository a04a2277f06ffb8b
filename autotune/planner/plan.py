"""The search: what to look at next, until the time for the race has come.

Baseline first; then joint trials, each building on the best so far; then the numerics gate. Everything measured
goes into the study; nothing measured here is returned without a race.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.errors import DoesNotFitError, TaskError
from autotune.hardware import Hardware
from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.planner.gate import numerics_refusal
from autotune.planner.ledger import Ledger
from autotune.planner.pace import Pace, race_reserve_s
from autotune.planner.stages import stages_for
from autotune.settings import Settings
from autotune.space import Candidates
from autotune.study import Study

__all__ = ["Found", "Plan"]

_LEAST_TRIAL_S = 1.0
_COMPUTE_COST_S = 4.0  # two warm-up steps, half a second and a rebuilt model; slow steps take more, up to the cap


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search leaves for the race."""

    baseline: Measured | None
    """None: not even the baseline could be measured in the time."""
    finalists: tuple[Measured, ...]
    """The fastest setting first, then the fastest with the baseline's batch; empty if nothing beat the baseline."""
    stopped: str
    """Why the search ended."""
    compute: Measured | None = None
    """The training step alone, on a batch in memory, under the fastest settings: no loader can do better."""
    warnings: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Plan:
    """One search.

    Attributes:
        candidates: What may be tried.
        hardware: Of this machine.
        pace: Constants.
        study: The ledger everything is written to.
        run: Answers a probe.
        clock: Seconds, monotonic.
        budget_s: The whole budget.
        started_s: Clock time at which it began.
        say: Told of every outcome.
        memory_margin: Share of memory to leave free.
        seed: Seeds the trials' samplers.
    """

    candidates: Candidates
    hardware: Hardware
    pace: Pace
    study: Study
    run: Callable[[Probe], Outcome]
    clock: Callable[[], float]
    budget_s: float
    started_s: float
    say: Callable[[Outcome], object] = field(default=lambda _: None)
    memory_margin: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.candidates, self._fits, batch_gain=self.pace.batch_gain)
        self.warnings: list[str] = []
        self._stopped = "every move of the plan was tried"

    def search(self) -> Found:
        """Runs the plan.

        Raises:
            TaskError: The baseline cannot be trained at all.
            DoesNotFitError: Not even a batch of one fits.
        """
        baseline = self._measure_baseline()
        if baseline is None:
            return Found(baseline=None, finalists=(), stopped=self._stopped)
        for stage in stages_for(self.hardware):
            for change in stage(self):
                if self.left_s() < self._next_cost_s():
                    self._stopped = "the time left was kept for the race"
                    return self._found(baseline)
                self.attempt(change)
        return self._found(baseline)

    def attempt(self, settings: Settings) -> Outcome | None:
        """One joint trial of ``settings``; None where it may not be tried or was tried before."""
        if settings in self.ledger.outcomes or self.candidates.refusal(settings):
            return None
        best = self.best
        probe = Probe(
            kind="joint",
            settings=settings,
            window_s=self.pace.window_s,
            deadline_s=max(_LEAST_TRIAL_S, min(self.pace.trial_cap_s, self.left_s() + self._reserve_s() / 2)),
            cut_below_samples_per_s=self.pace.cut_share * best.samples_per_s,
            seed=self.seed,
        )
        return self._record(self.run(probe))

    @property
    def best(self) -> Measured:
        """The fastest setting so far (the baseline at least)."""
        best = self.ledger.best
        if best is None:
            raise TaskError("The baseline was not measured yet.", "")
        return best

    def left_s(self) -> float:
        """Seconds left for the search, the race's share kept back."""
        return self.started_s + self.budget_s - self.clock() - self._reserve_s()

    def _measure_baseline(self) -> Measured | None:
        settings = self.candidates.baseline
        while True:
            left = self.started_s + self.budget_s - self.clock()
            if left < _LEAST_TRIAL_S:
                self._stopped = "the time was over before the baseline could be measured"
                return None
            outcome = self._record(self.run(self._baseline_probe(settings, left)))
            match outcome:
                case Measured():
                    return outcome
                case TimedOut():
                    self._stopped = f"the baseline did not get through its first window in {outcome.deadline_s:.0f} s"
                    return None
                case OutOfMemory():
                    settings = self._halved(settings, outcome)
                case Rejected() | Crashed():
                    raise _baseline_error(outcome)

    def _baseline_probe(self, settings: Settings, left_s: float) -> Probe:
        window_s = min(self.pace.baseline_window_s, left_s / 8)
        return Probe(kind="joint", settings=settings, window_s=window_s, deadline_s=left_s, seed=self.seed)

    def _halved(self, settings: Settings, outcome: OutOfMemory) -> Settings:
        batch = settings.batch_size
        if batch is None or batch == 1:
            raise DoesNotFitError(
                f"Not even {'the smallest batch' if batch else 'your own batch'} fits in memory: {outcome.message}",
                "Use a smaller model or smaller samples, or a machine with more memory.",
            )
        effective = batch * settings.gradient_accumulation_steps
        smaller = next(size for size in range(batch // 2, 0, -1) if effective % size == 0)
        self.warnings.append(
            f"batch {batch} does not fit in memory ({outcome.where}); the baseline is batch {smaller} with "
            f"{effective // smaller} accumulation steps, the same effective batch."
        )
        halved = settings.replace(batch_size=smaller, gradient_accumulation_steps=effective // smaller)
        self.candidates = self.candidates.with_baseline(halved)
        self.ledger = Ledger(self.candidates, self._fits, batch_gain=self.pace.batch_gain)
        return halved

    def _record(self, outcome: Outcome) -> Outcome:
        self.study.record(outcome)
        self.ledger.add(outcome)
        self.say(outcome)
        if isinstance(outcome, Measured):
            self.warnings += [text for text in outcome.warnings if text not in self.warnings]
        return outcome

    def _found(self, baseline: Measured) -> Found:
        finalists: list[Measured] = []
        for same_batch in (False, True):
            winner = self._gated(same_batch)
            if winner is not None and winner.settings not in [one.settings for one in finalists]:
                finalists.append(winner)
        return Found(
            baseline=baseline,
            finalists=tuple(finalists),
            stopped=self._stopped,
            compute=self._compute(),
            warnings=tuple(self.warnings),
        )

    def _compute(self) -> Measured | None:
        """One look at the step alone, if there is time: it says what bounds the speed."""
        if self.left_s() < _COMPUTE_COST_S:
            return None
        probe = Probe(kind="compute", settings=self.best.settings, window_s=0.5, deadline_s=self.pace.trial_cap_s)
        outcome = self._run_probe(probe)
        return outcome if isinstance(outcome, Measured) else None

    def _gated(self, same_batch: bool) -> Measured | None:
        """The fastest setting whose numbers hold; None if that is the baseline."""
        for measured in self.ledger.ranked(same_batch=same_batch):
            if measured.settings == self.candidates.baseline:
                return None
            refusal = numerics_refusal(
                measured.settings, self.candidates.baseline, run=self._run_probe, deadline_s=self.pace.trial_cap_s
            )
            if refusal is None:
                return measured
            self.ledger.ban(measured.settings, refusal)
            self.warnings.append(refusal)
        return None

    def _run_probe(self, probe: Probe) -> Outcome:
        outcome = self.run(probe)
        self.study.record(outcome)
        self.say(outcome)
        return outcome

    def _fits(self, measured: Measured) -> bool:
        share = 1 - self.memory_margin
        accelerator = self.hardware.accelerator
        total = accelerator.memory_bytes if accelerator else None
        if measured.peak_accelerator_bytes is not None and total is not None:
            return measured.peak_accelerator_bytes <= share * total
        return measured.peak_ram_bytes is None or measured.peak_ram_bytes <= share * self.candidates.limits.ram_bytes

    def _reserve_s(self) -> float:
        measured = [one for one in self.ledger.outcomes.values() if isinstance(one, Measured)]
        set_up = max((one.start_s + one.warmup_s for one in measured), default=None)
        return race_reserve_s(self.budget_s, self.pace, set_up_s=set_up, entries=2)

    def _next_cost_s(self) -> float:
        costs = [outcome.cost_s for outcome in self.ledger.outcomes.values()]
        return max(_LEAST_TRIAL_S, costs[-1] if costs else 0.0)


def _baseline_error(outcome: Rejected | Crashed) -> TaskError:
    if isinstance(outcome, Rejected):
        trace = f"\n{outcome.traceback}" if outcome.traceback else ""
        return TaskError(
            f"Your own setting does not train: {outcome.reason}", f"Nothing was tuned; mend this first.{trace}"
        )
    return TaskError(
        f"The process died while it trained your own setting (exit code {outcome.exit_code}).",
        f"Its last output:\n{outcome.output_tail}",
    )
