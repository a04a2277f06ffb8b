"""Every constant of the search on one screen, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPU", "GPU", "Pace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the budget is spent on one kind of machine."""

    baseline_window_s: float = 2.5
    """All else is judged against the baseline: a longer look than at the others."""
    window_s: float
    """Of a joint trial. Many short looks and a race beat few long ones."""
    part_window_s: float = 0.5
    """Of a compute or loader probe: no pipeline to settle, so shorter."""
    trial_cap_s: float = 20.0
    """No single trial may eat the budget."""
    patience: float = 2.0
    """Times what the last trial took that the next may take in any case: a kill costs a new process."""
    patience_s: float = 2.0
    """Seconds beyond that: larger batches take longer."""
    cut_share: float
    """A trial clearly below this share of the best rate is cut after half a second."""
    precision_cut_share: float = 0.33
    """The same for a precision: emulated ones are many times slower, and one step shows it."""
    accept_gain: float = 0.01
    """The smallest gain for which the plan moves on to the new setting."""
    part_gain: float = 0.02
    """The smallest gain in a compute probe that is not noise."""
    batch_gain: float = 0.04
    """A doubled batch that gains less than this is not worth the change in training."""
    large_batch_gain: float = 0.15
    """The same for growth by ``batch_step``: with less, finer steps are due."""
    batch_step: int = 4
    """First growth of the batch: large enough to show whether the batch matters at all."""
    step_cap_s: float = 2.0
    """A micro-batch whose step takes longer than this is not grown further: nothing is gained by then."""
    step_cap_share: float = 1 / 80
    """The same as a share of the budget: trials and laps of long steps take all of it."""
    memory_line_share: float = 0.95
    """Of the memory that a line through smaller batches may predict for the next one."""
    loader_headroom: float = 1.3
    """Workers are sized for this much more than the step consumes: loading times vary."""
    no_workers_below: float = 0.03
    """Loading that takes less than this share of the time in-process cannot gain from workers."""
    loading_share: float = 0.15
    """Of the time: loading that takes less is looked at after the step."""
    padding_least_share: float = 0.05
    """Of a batch that must be padding for grouping by length to be worth a trial: no more than that can be gained."""
    compile_least_s: float = 45.0
    """Compilation takes 20 to 120 s: with less left it would only cost."""
    comparison_share: float = 0.3
    """Of the time of a compilation: with dropout off the same kernels are compiled again, mostly from the disk."""
    compiled_start_s: float = 11.0
    """That a compiled setting takes longer to start again, its kernels coming from the disk."""
    compile_least_share: float = 0.6
    """Of the compute-only rate that the joint rate must reach, else loading is what limits and compiling is idle."""
    compile_most_loading: float = 0.7
    """Of the time without workers: with more of it spent on loading, a compiled step would gain too little."""
    idle_moves: int = 6
    """Local moves without a gain after which nothing is left to find; more with a budget above ``idle_moves_s``."""
    idle_moves_s: float = 60.0
    second_looks: bool = False
    """What takes the lead is measured again, and the lower rate counts: the fastest of many noisy looks was lucky."""
    luck: float = 0.35
    """The gain that noise alone may show; what gains more needs no second look."""
    tie_share: float = 0.01
    """Of the best rate: what comes within it is as good, and the simplest of it is raced."""
    playoff_share: float = 0.85
    """Of the best rate: what comes within it is looked at again before one is picked."""
    race_lap_s: float
    """Length of a race lap when there is time."""
    race_rounds: int = 5
    """Fewest rounds that the one-sided 95 % paired bound is taken over."""
    most_race_rounds: int = 16
    """Beyond these, time is better not spent at all."""
    lap_noise: float
    """Standard deviation of the log ratio of two laps of equal settings, as seen on such machines."""
    margin: float
    """A setting ships only if the bound on its gain is above this."""


CPU = Pace(window_s=1.5, cut_share=0.75, second_looks=True, tie_share=0.03, race_lap_s=1.0, lap_noise=0.18, margin=0.05)
"""Rankings on a shared CPU are noisy: longer windows, a weaker cut, a larger margin."""

GPU = Pace(window_s=1.0, cut_share=0.85, race_lap_s=1.0, lap_noise=0.05, margin=0.02)
