"""The race decides rightly on machines whose truth is known: noise, drift, failures and short budgets."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from autotune.measurement import Chunk, Crashed, Measured, Outcome, OutOfMemory, Probe, TimedOut
from autotune.race import RaceResult, race
from autotune.settings import Settings

A = Settings()
B = Settings(batch_size=64)
C = Settings(batch_size=128)
LOADED = Settings(num_workers=2, prefetch_factor=2)
RACES = 2000


@dataclass
class Machine:
    """A fake machine with a clock of its own: true rates, a noise per lap, and the cost of a lap."""

    rates: dict[Settings, float]
    noise: Callable[[], float] = lambda: 0.0
    build_s: float = 0.0
    lap_overhead_s: float = 0.0
    resident: bool = True
    says_so: bool = False
    """Laps tell that their objects stay."""
    chunk_s: float = 0.0
    """Laps of settings with workers, which are waited for, are whole multiples of this."""
    fails: dict[tuple[Settings, int], Outcome] = field(default_factory=dict)
    now_s: float = 0.0
    probes: list[Probe] = field(default_factory=list)
    slow_down: float = 1.0

    def clock(self) -> float:
        return self.now_s

    def run(self, probe: Probe) -> Outcome:
        turn = sum(p.settings == probe.settings for p in self.probes)
        build_s = self.build_s if turn == 0 or not self.resident else 0.0
        chunk_s = self.chunk_s if probe.settings.num_workers else 0.0
        window_s = math.ceil(probe.window_s / chunk_s) * chunk_s if chunk_s else probe.window_s
        self.now_s += (window_s + build_s + self.lap_overhead_s) * (self.slow_down if turn else 1.0)
        self.probes.append(probe)
        failure = self.fails.get((probe.settings, turn))
        if failure is not None:
            return failure
        rate = self.rates[probe.settings] * math.exp(self.noise())
        rows = max(1, round(rate * (self.chunk_s or 1000 / rate)))
        waited_s = rows / rate / 2 if chunk_s else 0.0
        return Measured(
            kind="lap",
            settings=probe.settings,
            chunks=(Chunk(rows, rows / rate, waited_s),),
            others_cores=0.1,
            resident=self.says_so,
        )

    def race(self, *candidates: Settings, budget_s: float = 20.0, margin: float = 0.05) -> list[RaceResult]:
        return race(A, candidates, run=self.run, clock=self.clock, budget_s=budget_s, margin=margin)


def white(source: random.Random, spread: float) -> Callable[[], float]:
    """Independent noise on each lap."""
    return lambda: source.gauss(0.0, spread)


def drifting(source: random.Random, spread: float, memory: float) -> Callable[[], float]:
    """Noise of the machine as a whole, which laps near in time share (AR(1))."""

    def states() -> Iterator[float]:
        state = source.gauss(0.0, spread)
        while True:
            yield state
            state = memory * state + math.sqrt(1 - memory**2) * source.gauss(0.0, spread)

    return states().__next__


def share_of_wins(ratio: float, noise: Callable[[random.Random], Callable[[], float]], budget_s: float) -> float:
    """Share of ``RACES`` simulated races that a candidate of the true ``ratio`` wins at a margin of 5 %."""
    source = random.Random(1234)
    wins = 0
    for _ in range(RACES):
        (result,) = Machine({A: 100.0, B: 100.0 * ratio}, noise(source)).race(B, budget_s=budget_s)
        assert result.undecided is None
        wins += result.wins
    return wins / RACES


def at_most(share: float) -> float:
    """``share`` plus three standard errors of a simulation of ``RACES`` races."""
    return share + 3 * math.sqrt(share * (1 - share) / RACES)


@pytest.mark.parametrize("budget_s", [8.0, 40.0], ids=["5 short rounds", "8 long rounds"])
@pytest.mark.parametrize("spread", [0.02, 0.10])
def test_equal_settings_hardly_ever_win(spread: float, budget_s: float) -> None:
    """At a true ratio of 1.0 the margin keeps false wins far below 5 %."""
    assert share_of_wins(1.0, lambda source: white(source, spread), budget_s) < 0.025


@pytest.mark.parametrize("budget_s", [8.0, 40.0], ids=["5 short rounds", "8 long rounds"])
@pytest.mark.parametrize("spread", [0.02, 0.10])
def test_a_gain_of_just_the_margin_wins_in_at_most_one_of_twenty(spread: float, budget_s: float) -> None:
    """The bound covers: at a true ratio of 1 + margin, 5 % of races win, plus the simulation's error."""
    share = share_of_wins(1.05, lambda source: white(source, spread), budget_s)
    assert 0.025 < share <= at_most(0.05)


@pytest.mark.parametrize("budget_s", [8.0, 40.0], ids=["5 short rounds", "8 long rounds"])
def test_a_real_gain_wins(budget_s: float) -> None:
    """At a true ratio of 1.5 and 10 % noise nearly every race is won."""
    assert share_of_wins(1.5, lambda source: white(source, 0.10), budget_s) > 0.98


def test_a_slower_candidate_never_wins() -> None:
    """At a true ratio of 0.9 no race of two thousand is won."""
    assert share_of_wins(0.9, lambda source: white(source, 0.05), 20.0) == 0.0


def test_drift_shared_by_neighbouring_laps_cancels() -> None:
    """A machine that wanders by 20 % but slowly gives no more false wins, and lets a gain of 15 % be seen."""

    def noise(source: random.Random) -> Callable[[], float]:
        slow, fast = drifting(source, 0.20, 0.99), white(source, 0.02)
        return lambda: slow() + fast()

    assert share_of_wins(1.05, noise, 20.0) <= at_most(0.06)
    assert share_of_wins(1.15, noise, 20.0) > 0.8


@pytest.mark.parametrize("memory", [0.3, 0.8])
def test_noise_that_remembers_the_last_lap_hardly_weakens_the_bound(memory: float) -> None:
    """The worst memory makes at most 7 % of wins at the margin, not a multiple of 5 %."""
    assert share_of_wins(1.05, lambda source: drifting(source, 0.10, memory), 20.0) <= at_most(0.07)


def test_steady_drift_cancels_exactly() -> None:
    """A machine that loses 5 % with every lap does not favour who runs first."""
    lap = iter(range(1000))
    (result,) = Machine({A: 100.0, B: 130.0}, lambda: -0.05 * next(lap)).race(B, budget_s=40.0)
    assert result.rounds % 2 == 0
    assert math.exp(math.fsum(result.log_ratios) / result.rounds) == pytest.approx(1.3)
    assert result.wins


def test_the_order_is_reversed_every_round() -> None:
    """A B C, C B A, ... after the untimed laps."""
    machine = Machine({A: 1.0, B: 1.0, C: 1.0})
    results = machine.race(B, C, budget_s=60.0)
    timed = [probe.settings for probe in machine.probes[3:]]
    assert timed == ([A, B, C, C, B, A] * 8)[: len(timed)]
    assert len(timed) == 3 * results[0].rounds
    assert {probe.kind for probe in machine.probes} == {"lap"}


def test_every_lap_reads_other_samples() -> None:
    """No two laps share a sampler seed, so none profits from files the other has read."""
    machine = Machine({A: 1.0, B: 1.0})
    machine.race(B)
    seeds = [probe.seed for probe in machine.probes]
    assert len(set(seeds)) == len(seeds)


def test_raw_rates_are_kept_and_statistics_derived() -> None:
    """Laps, ratios, median and bounds belong together."""
    noise = iter([0.0, 0.0] + [0.0, 0.1, 0.2, 0.0, 0.0, 0.3] * 5)
    (result,) = Machine({A: 100.0, B: 200.0}, lambda: next(noise)).race(B)
    assert result.baseline_samples_per_s[0] == pytest.approx(100.0)
    assert result.candidate_samples_per_s[0] == pytest.approx(200.0 * math.exp(0.1))
    assert result.rounds == len(result.log_ratios) == len(result.baseline_samples_per_s)
    assert result.log_ratios[0] == pytest.approx(math.log(2.0) + 0.1)
    assert result.low is not None
    assert result.median is not None
    assert result.high is not None
    assert result.low < result.median < result.high
    assert result.others_cores == 0.1


def test_the_bound_is_students() -> None:
    """Five log ratios with mean 0.3 and deviation 0.1 give the table's t of 2.132."""
    result = RaceResult(
        baseline=A,
        candidate=B,
        margin=0.05,
        baseline_samples_per_s=(1.0,) * 5,
        candidate_samples_per_s=tuple(math.exp(0.3 + 0.1 * x / math.sqrt(2.5) * 1.0) for x in (-2, -1, 0, 1, 2)),
    )
    assert result.low == pytest.approx(math.exp(0.3 - 2.132 * 0.1 / math.sqrt(5)))
    assert result.high == pytest.approx(math.exp(0.3 + 2.132 * 0.1 / math.sqrt(5)))


@pytest.mark.parametrize("budget_s", [7.0, 9.0, 14.0, 40.0, 300.0])
@pytest.mark.parametrize("overhead_s", [0.0, 0.1])
def test_the_budget_is_kept_and_rounds_stay_between_their_limits(budget_s: float, overhead_s: float) -> None:
    """Short budgets shorten laps, not the number of rounds; long ones are not spent for nothing."""
    machine = Machine({A: 1.0, B: 1.0}, lap_overhead_s=overhead_s)
    (result,) = machine.race(B, budget_s=budget_s)
    assert result.undecided is None
    assert 5 <= result.rounds <= 16
    assert machine.now_s <= budget_s
    assert result.seconds == pytest.approx(machine.now_s)
    assert result.lap_s is not None
    assert 0.4 <= result.lap_s <= 3.0
    assert len({probe.window_s for probe in machine.probes[-2 * result.rounds :]}) == 1


def test_a_budget_too_short_for_five_rounds_is_not_raced() -> None:
    """Never fewer rounds: no lap counts, nothing wins, and the reason says how long it would take."""
    machine = Machine({A: 1.0, B: 9.0})
    (result,) = machine.race(B, budget_s=4.0)
    assert not result.wins
    assert result.rounds == 0
    assert result.lap_s is None
    assert result.undecided is not None
    assert "Not raced, since 5 rounds need" in result.undecided
    assert machine.now_s <= 4.0


def test_objects_that_stay_are_built_once() -> None:
    """A slow start is paid once where objects stay resident: a second untimed lap shows it."""
    machine = Machine({A: 1.0, B: 2.0}, build_s=4.0)
    (result,) = machine.race(B, budget_s=20.0)
    assert result.wins
    assert result.rounds >= 5
    assert machine.now_s <= 20.0


def test_what_is_said_to_stay_needs_no_second_untimed_lap() -> None:
    """A race that would not fit with two untimed laps each is run where laps say that their objects stay."""
    told = Machine({A: 3200.0, LOADED: 6400.0}, build_s=4.0, says_so=True, chunk_s=0.5)
    (result,) = told.race(LOADED, budget_s=17.0)
    assert result.wins
    assert len(told.probes) == 2 + 2 * result.rounds
    assert told.now_s <= 17.0


def test_laps_of_whole_turns_are_planned_as_such() -> None:
    """Where a turn of the workers takes 3 s, no lap is shorter, and what cannot hold five rounds of it is not raced."""
    rates = {A: 3200.0, LOADED: 6400.0}
    (raced,) = Machine(rates, says_so=True, chunk_s=3.0).race(LOADED, budget_s=60.0)
    assert raced.wins
    (refused,) = Machine(rates, says_so=True, chunk_s=3.0).race(LOADED, budget_s=17.0)
    assert refused.undecided is not None
    assert not refused.wins


def test_objects_rebuilt_on_every_lap_are_planned_for() -> None:
    """Where memory holds one setting at a time, building is part of each lap's price."""
    machine = Machine({A: 1.0, B: 2.0}, build_s=1.0, resident=False)
    (result,) = machine.race(B, budget_s=40.0)
    assert result.wins
    assert machine.now_s <= 40.0
    (refused,) = Machine({A: 1.0, B: 2.0}, build_s=4.0, resident=False).race(B, budget_s=20.0)
    assert refused.undecided is not None


def test_a_machine_that_slows_down_midway_ends_the_race_in_time() -> None:
    """Laps five times as long as planned: no decision on too few rounds, and no endless overrun."""
    machine = Machine({A: 1.0, B: 2.0}, slow_down=5.0)
    (result,) = machine.race(B, budget_s=20.0)
    assert not result.wins
    assert result.undecided is not None
    assert "Time ran out" in result.undecided
    assert 0 < result.rounds < 5
    assert machine.now_s < 2.5 * 20.0


OOM = OutOfMemory(kind="lap", settings=B, where="allocator", message="no memory")


@pytest.mark.parametrize("turn", [0, 1, 3], ids=["untimed", "first timed", "later"])
def test_a_candidate_that_fails_leaves_the_race_and_the_others_go_on(turn: int) -> None:
    """Its result carries the outcome; the other candidate is raced to the end and wins."""
    machine = Machine({A: 1.0, B: 9.0, C: 2.0}, fails={(B, turn): OOM})
    failed, other = machine.race(B, C, budget_s=60.0)
    assert failed.failed == OOM
    assert not failed.wins
    assert failed.undecided is not None
    assert "out of memory" in failed.undecided
    assert other.wins
    assert other.failed is None
    assert sum(probe.settings == B for probe in machine.probes) == turn + 1


@pytest.mark.parametrize("turn", [0, 1, 4], ids=["untimed", "first timed", "later"])
def test_nothing_wins_when_the_baseline_fails(turn: int) -> None:
    """Without the baseline's laps there is no comparison, however fast the candidate was."""
    crashed = Crashed(kind="lap", settings=A, exit_code=-9)
    machine = Machine({A: 1.0, B: 9.0}, fails={(A, turn): crashed})
    (result,) = machine.race(B)
    assert not result.wins
    assert result.failed == crashed
    assert result.undecided is not None
    assert "baseline failed (crashed)" in result.undecided
    assert len(result.baseline_samples_per_s) == len(result.candidate_samples_per_s)


def test_a_lap_that_measured_nothing_is_a_failure() -> None:
    """A rate of zero has no logarithm and no meaning."""
    empty = Measured(kind="lap", settings=B, chunks=())
    (result,) = Machine({A: 1.0, B: 1.0}, fails={(B, 2): empty}).race(B)
    assert result.failed is not None
    assert result.failed.fate == "rejected"


def test_a_hanging_lap_cannot_hold_the_race_for_long() -> None:
    """Deadlines stay within what is left of the budget and its overrun."""
    machine = Machine({A: 1.0, B: 1.0}, fails={(B, 2): TimedOut(kind="lap", settings=B, deadline_s=1.0)})
    machine.race(B, budget_s=20.0)
    assert all(probe.window_s < probe.deadline_s <= 25.0 for probe in machine.probes)


def test_a_scatter_too_wide_to_decide_is_called_noisy() -> None:
    """Rounds from half to three times as fast are noise; a tight ratio of one is a plain no."""
    scatter = iter([0.0, 0.0] + [0.0, 1.1, -0.6, 0.0] * 5)
    (noisy,) = Machine({A: 1.0, B: 1.0}, lambda: next(scatter)).race(B)
    assert noisy.noisy
    assert not noisy.wins
    (plain,) = Machine({A: 1.0, B: 1.0}).race(B)
    assert not plain.noisy
    assert not plain.wins
    (won,) = Machine({A: 1.0, B: 2.0}).race(B)
    assert not won.noisy
    assert won.wins


def test_a_disturbed_round_is_run_again_and_left_out() -> None:
    """One lap in which others took a whole core does not widen the bound: another round replaces it."""
    laps = 0

    def run(probe: Probe) -> Outcome:
        nonlocal laps
        laps += 1
        rate = 200.0 if probe.settings.num_workers else 100.0
        disturbed = laps == 5
        return Measured(
            kind="lap",
            settings=probe.settings,
            chunks=(Chunk(10, 10 / rate * (20 if disturbed else 1)),),
            others_cores=1.0 if disturbed else 0.0,
        )

    now = iter(range(10**6))
    result = race(
        Settings(), [Settings().replace(num_workers=1)], run=run, budget_s=300.0, margin=0.05, clock=lambda: next(now)
    )[0]
    assert result.median == pytest.approx(2.0)
    assert result.low == pytest.approx(2.0)
    assert result.rounds >= 5


def test_with_time_for_one_candidate_the_first_is_raced() -> None:
    """Three settings do not fit, two do: one decision is better than none."""
    now = 0.0

    def run(probe: Probe) -> Outcome:
        nonlocal now
        now += probe.window_s + 0.2
        rate = 200.0 if probe.settings.num_workers else 100.0
        return Measured(kind="lap", settings=probe.settings, chunks=(Chunk(10, 10 / rate),))

    candidates = [Settings().replace(num_workers=count) for count in (1, 2)]
    first, second = race(Settings(), candidates, run=run, budget_s=10.5, margin=0.05, clock=lambda: now)
    assert first.wins
    assert not second.wins
    assert "one setting only" in (second.undecided or "")
