"""The search: what to look at next, until the time for the race has come.

Baseline first; then the stages for this kind of machine, each building on the best so far; then the numerics gate.
Everything measured goes into the study; nothing measured here is returned without a race.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autotune.errors import TaskError
from autotune.hardware import Hardware
from autotune.measurement import DataCosts, Measured, Outcome, Probe, ProbeKind
from autotune.planner.asking import Asking
from autotune.planner.baseline import measure_baseline
from autotune.planner.cpu_stages import CPU_STAGES
from autotune.planner.found import Found
from autotune.planner.gatekeeper import Gatekeeper
from autotune.planner.gpu_stages import GPU_STAGES
from autotune.planner.ledger import Ledger
from autotune.planner.loader_faults import pinning_fault, workers_do_not_run
from autotune.planner.moves import Move, Stage
from autotune.planner.pace import Pace
from autotune.planner.reserve import race_reserve_s
from autotune.planner.worst_case import WorstCases
from autotune.settings import Settings
from autotune.space import Candidates
from autotune.study import Study

__all__ = ["Plan"]

_LEAST_TRIAL_S = 1.0
_LIMITED = "Some settings were not tried for lack of room"
_PARTS: tuple[ProbeKind, ...] = ("compute", "loader")
_LAST_FEW = 4
_PART_TIMES = 1.5  # what looking at a part may take, in joint trials
_SLACK = 1.05  # of the budget: a trial that ends within it may still be answered


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
        earlier: What an earlier run found to be fastest, tried first; None: there was none.
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
    earlier: Settings | None = None
    ledger: Ledger = field(init=False)
    guess: Settings = field(init=False)

    def __post_init__(self) -> None:
        self._begin(self.candidates)
        self.ask = Asking(
            self.run,
            self.clock,
            start_s=self.clock() - self.started_s,
            survives_out_of_memory=self.hardware.accelerator is not None,
        )
        self.worst = WorstCases(self, lambda probe: self._noted(self.ask(probe)), self._fits, seed=self.seed)
        self.warnings: list[str] = []
        self.skipped: dict[str, str] = {}
        self._gate = Gatekeeper(self)
        self._stopped = "every move of the plan was made, and the last ones gained nothing"

    def search(self) -> Found:
        """Runs the plan.

        Raises:
            TaskError: The baseline cannot be trained at all.
            DoesNotFitError: Not even a batch of one fits.
        """
        baseline = measure_baseline(self)
        if baseline is None:
            return Found(baseline=None, finalists=(), stopped=self._stopped)
        if self.left_s() >= self._cost_s(Move(baseline.settings)):
            self.worst.look_at_baseline()
        stages = CPU_STAGES if self.hardware.accelerator is None else GPU_STAGES
        for stage in stages:
            if not self._drive(stage):
                self._stopped = "the time left was kept for the race"
                self._say_not_reached()
                break
        finalists = self._finalists()
        self._look_at_parts()
        self._drop_workers(workers_do_not_run(self._trials))
        return Found(
            baseline=baseline,
            finalists=finalists,
            stopped=self._stopped,
            compute=self.ledger.fastest_part("compute"),
            loader=self.ledger.fastest_part("loader"),
            skipped=dict(self.skipped),
            warnings=tuple(self.warnings),
            data=self.worst.data,
        )

    @property
    def best(self) -> Measured:
        """The fastest setting so far (the baseline at least)."""
        best = self.ledger.best
        if best is None:
            raise TaskError("The baseline was not measured yet.", "")
        return best

    @property
    def data(self) -> DataCosts | None:
        """What the samples cost; None where all are alike."""
        return self.worst.data

    def left_s(self) -> float:
        """Seconds left for the search, the race's share kept back."""
        return self.until_end_s() - self._reserve_s()

    def until_end_s(self, *, starting: bool = True) -> float:
        """Seconds until the budget is used up; the start of a new process that is due (``starting``) counts as used."""
        return self.started_s + self.budget_s - self.clock() - (self.ask.due_s if starting else 0.0)

    def idle_moves(self) -> int:
        """Local moves without a gain after which nothing is left to find."""
        return max(self.pace.idle_moves, round(self.pace.idle_moves * self.budget_s / self.pace.idle_moves_s))

    def compile_cap_s(self) -> float:
        """Longest a trial may compile: its numbers are compared afterwards and it starts anew in the race."""
        return (self.left_s() - max(self.ask.start_s, self.pace.compiled_start_s)) / (1 + self.pace.comparison_share)

    def step_cap_s(self) -> float:
        """Longest step that a grown batch may lead to."""
        return min(self.pace.step_cap_s, self.pace.step_cap_share * self.budget_s)

    def stop(self, reason: str) -> None:
        """Notes why the search ended."""
        self._stopped = reason

    def rebase(self, baseline: Settings) -> None:
        """Takes another baseline: the one given does not fit."""
        tried = self.ledger
        self._begin(self.candidates.with_split_baseline(baseline))
        self.ledger.outcomes.update(tried.outcomes)

    def forbid(self, knob: str, value: object, reason: str) -> None:
        """Takes one value of a knob out of the search, and out of what was measured with it."""
        self.candidates = self.candidates.without_value(knob, value, reason)
        for settings in self.ledger.outcomes:
            if getattr(settings, knob) == value:
                self.ledger.ban(settings, reason)
        if getattr(self.guess, knob) == value:
            self.guess = self.guess.replace(**{knob: getattr(self.candidates.baseline, knob)})

    def asked(self, probe: Probe) -> Outcome:
        """The answer to a probe, written down."""
        return self.record(self.ask(probe))

    def record(self, outcome: Outcome) -> Outcome:
        """Writes an outcome down and tells of it."""
        self.ledger.add(outcome)
        return self._noted(outcome)

    def _noted(self, outcome: Outcome) -> Outcome:
        """Writes an outcome down that is no measure of speed."""
        self.study.record(outcome)
        self.say(outcome)
        if isinstance(outcome, Measured):
            self.warnings += [text for text in outcome.warnings if text not in self.warnings]
        elif outcome.settings != self.candidates.baseline:
            self._drop_what_failed(outcome)
        return outcome

    def _begin(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.guess = candidates.baseline
        self.ledger = Ledger(candidates, self._fits, batch_gain=self.pace.batch_gain)

    def _drive(self, stage: Stage) -> bool:
        """Makes the moves of ``stage``; False where the time ran out before its end."""
        moves = stage(self)
        answer: Outcome | None = None
        try:
            move = next(moves)
            while True:
                if self.left_s() < self._cost_s(move):
                    return False
                answer = self._made(move)
                move = moves.send(answer)
        except StopIteration:
            return True

    def _made(self, move: Move) -> Outcome | None:
        settings = move.settings if move.kind != "compute" else move.settings.replace(num_workers=0)
        if settings in self.ledger.banned:
            return None
        if self.ledger.tried(move.kind, settings) and not move.again:
            return self.ledger.outcomes.get(settings) if move.kind == "joint" else self.ledger.part(move.kind, settings)
        # Loader and compute probes stand for joint settings: their own worker count is no change to judge.
        asked = settings if move.kind == "joint" else self.candidates.with_own_workers(settings)
        if self.candidates.refusal(asked):
            self._say_limits(asked)
            return None
        if move.kind != "loader" and (self.ledger.too_large(settings) or self.worst.too_large(settings)):
            return None
        before = self.ledger.best
        outcome = self.asked(self._probe(move, settings))
        if self._leads_by_luck(outcome, before):
            self.asked(self._probe(replace(move, again=True), settings))
        return None if self._gate.refuses(outcome) or self.worst.breaks(outcome) else outcome

    def _leads_by_luck(self, outcome: Outcome, before: Measured | None) -> bool:
        """Whether a second look is due: on what leads now by little, all else will be built."""
        if not self.pace.second_looks or outcome is not self.ledger.best or before is None:
            return False
        looks, most = len(self.ledger.looks[outcome.settings]), (1 + self.pace.luck) * before.samples_per_s
        return looks == 1 and outcome.samples_per_s < most and self.left_s() > outcome.cost_s

    def _say_not_reached(self) -> None:
        """Knobs with values of their own that no trial has varied yet."""
        tried = {name for one in self._trials for name in self.candidates.baseline.differences(one.settings)}
        for name, values in self.candidates.values.items():
            if values and name not in tried:
                self.skipped.setdefault(name, "not reached in the time; run again with a larger time_budget_s")

    def _drop_what_failed(self, outcome: Outcome) -> None:
        """Takes knobs of the loader out of the search that can only fail again."""
        self._drop_workers(workers_do_not_run(self._trials, at_once=True))
        pinning = pinning_fault(outcome)
        if pinning is not None and not self.candidates.baseline.pin_memory:
            self.candidates = self.candidates.without("pin_memory", pinning)

    def _drop_workers(self, reason: str | None) -> None:
        if reason is not None and not self.candidates.baseline.num_workers:
            self.candidates = self.candidates.without("num_workers", reason)

    def _say_limits(self, settings: Settings) -> None:
        """Once: which limit of the machine keeps a setting from being tried."""
        limit = self.candidates.limit_refusal(settings)
        if limit is not None and not any(text.startswith(_LIMITED) for text in self.warnings):
            self.warnings.append(f"{_LIMITED} ({settings.num_workers} workers, batch {settings.batch_size}): {limit}")

    @property
    def _trials(self) -> list[Outcome]:
        return [*self.ledger.outcomes.values(), *self.ledger.parts.values()]

    def _probe(self, move: Move, settings: Settings) -> Probe:
        cut_below = self._cut_below(move)
        part = move.kind in ("compute", "loader")
        return Probe(
            kind=move.kind,
            settings=settings,
            window_s=self.pace.part_window_s if part else self.pace.window_s,
            deadline_s=self._deadline_s(move),
            give_up_s=max(_LEAST_TRIAL_S, self.left_s()) if move.kind == "joint" else None,
            cut_below_samples_per_s=cut_below,
            seed=self.seed,
        )

    def _deadline_s(self, move: Move) -> float:
        """Longest a trial may take: killing one that hangs must leave the race its time and a new process.

        Well more than the last of its kind took in any case, for a kill costs more than a late answer.
        """
        in_budget_s = self.until_end_s() + (_SLACK - 1) * self.budget_s
        patience_s = self.pace.patience * self._cost_s(move) + self.pace.patience_s
        spare_s = max(self.left_s() - self.ask.start_s, patience_s)
        return max(_LEAST_TRIAL_S, min(move.cap_s or self.pace.trial_cap_s, in_budget_s, spare_s))

    def _cut_below(self, move: Move) -> float | None:
        if move.again:
            return None  # a look cut short is none
        if move.settings.length_grouped:
            return None  # its batches differ so much that the first few say little
        if move.kind == "joint":
            return (move.cut_share or self.pace.cut_share) * self.best.samples_per_s
        fastest = self.ledger.fastest_part("compute")
        if move.kind != "compute" or fastest is None or move.cut_share is None:
            return None
        return move.cut_share * fastest.samples_per_s

    def _cost_s(self, move: Move) -> float:
        """What the move will cost, judged by the last few of its kind; what compiled something new is no measure."""
        known = self.ledger.outcomes if move.kind == "joint" else self.ledger.parts
        costs: list[float] = []
        modes: set[tuple[object, ...]] = {(None, self.candidates.baseline.compile_scope)}
        for outcome in known.values():
            mode = (outcome.settings.compile_mode, outcome.settings.compile_scope)
            if outcome.kind == move.kind and mode in modes:
                costs.append(outcome.cost_s - self._longer_look_s(outcome))
            modes.add(mode)
        return max([_LEAST_TRIAL_S, *costs[-_LAST_FEW:]])

    def _longer_look_s(self, outcome: Outcome) -> float:
        """Seconds that the baseline was looked at beyond what others are."""
        if outcome.settings != self.candidates.baseline or not isinstance(outcome, Measured):
            return 0.0
        return max(0.0, sum(chunk.seconds for chunk in outcome.chunks) - self.pace.window_s)

    def _finalists(self) -> tuple[Measured, ...]:
        finalists: list[Measured] = []
        for same_batch in (False, True):
            winner = self._gate.winner(same_batch=same_batch)
            if winner is not None and winner.settings not in [one.settings for one in finalists]:
                finalists.append(winner)
        return tuple(finalists)

    def _look_at_parts(self) -> None:
        """Step and loader alone under the best settings, if there is time: they say what bounds the speed.

        Each starts what the joint trial started, which is as long as it may take.
        """
        for kind in _PARTS:
            if self.left_s() > _PART_TIMES * self.best.cost_s + self.ask.start_s:
                self._made(Move(self.best.settings, kind))

    def _fits(self, measured: Measured) -> bool:
        share = 1 - self.memory_margin
        accelerator = self.hardware.accelerator
        total = accelerator.memory_bytes if accelerator else None
        if measured.peak_accelerator_bytes is not None and total is not None:
            return measured.peak_accelerator_bytes <= share * total
        return measured.peak_ram_bytes is None or measured.peak_ram_bytes <= share * self.candidates.limits.ram_bytes

    def _reserve_s(self) -> float:
        ranked, baseline = self.ledger.ranked(), self.ledger.baseline
        if baseline is None:
            return race_reserve_s(self.budget_s, self.pace, ())
        best = [] if ranked[0].settings == baseline.settings else ranked[:1]
        return race_reserve_s(self.budget_s, self.pace, (baseline, *best))
