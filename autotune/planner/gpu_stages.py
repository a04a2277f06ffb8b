"""The plan with an accelerator: measure loading and step apart, verify together, grow the batch while it pays."""

from __future__ import annotations

import math

from autotune.measurement import Measured
from autotune.planner.moves import Move, Moves, Search, Stage, batch_times, gained, rate_of
from autotune.planner.shared_stages import compile_last, group_lengths, local_moves, rescue, resume, same_batch
from autotune.settings import Settings

__all__ = ["GPU_STAGES"]

_PREFETCH = 4
_EARLY_SPEEDUP = 3.0  # of the step over the baseline's, assumed when workers are sized before it was measured
_LOADER_SHARE = 0.8  # of (cores - 1) workers' ideal rate that a loader reaches in practice
_NEVER_HURT = ("optimizer_implementation", "cudnn_benchmark")
_FEW_WORKERS = 4  # more of them keep enough ready with torch's two batches each
_HARDLY_SLOWER = 0.77  # loading takes less than 0.3 of the step's time
_MORE_WORKERS = 1.5  # times what there were
_LONG_STEP_S = 0.2  # beside it, no batch that was late matters
_COMPUTE_SHARE = 0.85  # a joint rate below this share of the step's own leaves something to the loader


def measure_parts(search: Search) -> Moves:
    """Seconds per sample of the data in-process, and the step alone on a batch in memory."""
    baseline = search.candidates.baseline
    yield Move(baseline.replace(num_workers=0), "loader")
    yield Move(baseline.replace(num_workers=0), "compute")
    search.guess = baseline


def early_joint(search: Search) -> Moves:
    """One guess with everything that usually helps; then without what changes training."""
    start = search.best
    if start.settings != search.candidates.baseline:
        return  # an earlier run's answer is a better guess already
    fast = _EARLY_SPEEDUP * _compute_rate(search, start)
    usual = _with_workers(search, _usual(search, start.settings), fast)
    grown = _grown_early(search, usual, fast) or usual
    outcome = yield Move(grown)
    if gained(outcome, start.samples_per_s, search.pace.accept_gain):
        search.guess = grown
        return
    usual = _with_workers(search, _usual(search, start.settings), fast)
    usual = usual.replace(precision=start.settings.precision)  # without a knob that made the first guess fail, too
    outcome = yield Move(usual)
    if gained(outcome, start.samples_per_s, search.pace.accept_gain):
        search.guess = usual


def grow_compute(search: Search) -> Moves:
    """The batch doubles in compute probes while the step gains, stays short, fits, and the loader could follow."""
    outcome = yield Move(search.guess, "compute")
    rate = rate_of(outcome)
    while rate and rate < search.pace.loader_headroom * _loader_ceiling(search):
        doubled = batch_times(search, search.guess, 2)
        if doubled is None or not _worth_growing(search, doubled, rate):
            break
        outcome = yield Move(doubled, "compute")
        if not gained(outcome, rate, search.pace.batch_gain):
            break
        search.guess, rate = doubled, rate_of(outcome)
    half = batch_times(search, search.guess, 0.5)
    if half is not None:
        outcome = yield Move(half, "compute")
        if rate_of(outcome) > rate / (1 + search.pace.batch_gain):
            search.guess = half


def compute_flags(search: Search) -> Moves:
    """Each flag alone, kept where the step gains: on, or off again where it may hurt."""
    for name in ("channels_last", "precision", "optimizer_implementation", "cudnn_benchmark"):
        for value in search.candidates.values.get(name, ()):
            if name in _NEVER_HURT and getattr(search.guess, name) != getattr(search.candidates.baseline, name):
                continue
            now = search.ledger.part("compute", _bare(search.guess))
            other = getattr(search.candidates.baseline, name) if getattr(search.guess, name) == value else value
            changed = search.guess.replace(**{name: other})
            if changed == search.guess or now is None:
                continue
            outcome = yield Move(changed, "compute", cut_share=search.pace.precision_cut_share)
            if gained(outcome, now.samples_per_s, search.pace.part_gain):
                search.guess = changed


def verify_together(search: Search) -> Moves:
    """The guess with a loader sized for it; other worker counts where the step still waits."""
    alone = search.ledger.part("compute", _bare(search.guess))
    if alone is None:
        return
    rate = alone.samples_per_s
    outcome = yield Move(_with_workers(search, search.guess, rate))
    in_turns = 1 / (1 / rate + _seconds_per_sample(search))  # without workers, loading and step take turns
    if in_turns > min(search.best.samples_per_s, _HARDLY_SLOWER * rate):
        yield Move(search.candidates.shared(search.guess, 0))
    if rate_of(outcome) >= _COMPUTE_SHARE * rate:
        return
    cores = search.hardware.cores
    for count in (cores - 1, cores // 2):
        if 0 < count <= search.candidates.most_workers:
            yield Move(_shared(search, search.guess, count))


def feed(search: Search) -> Moves:
    """More workers while the step, faster by now, still waits for them."""
    while (search.best.data_wait_share or 0.0) > search.pace.no_workers_below:
        best = search.best.settings
        most = min(search.hardware.cores - 1, search.candidates.most_workers)
        more = min(most, math.ceil(_MORE_WORKERS * best.num_workers))
        if not 0 < best.num_workers < more or "num_workers" in search.candidates.dropped:
            return
        yield Move(_shared(search, best, more))
        if search.best.settings == best:
            return


GPU_STAGES: tuple[Stage, ...] = (
    measure_parts,
    resume,
    early_joint,
    rescue,
    group_lengths,
    grow_compute,
    compute_flags,
    verify_together,
    same_batch,
    compile_last,
    feed,
    same_batch,
    local_moves,
)


def _grown_early(search: Search, usual: Settings, fast: float) -> Settings | None:
    """A much larger batch, where neither loading nor the length of a step speaks against it."""
    if fast > _loader_ceiling(search):
        return None
    for factor in (search.pace.batch_step, 2):
        grown = batch_times(search, usual, factor)
        if grown is not None and (grown.batch_size or 0) <= fast * search.step_cap_s():
            return grown
    return None


def _usual(search: Search, settings: Settings) -> Settings:
    names = ("precision", "channels_last", "optimizer_implementation", "pin_memory", "cudnn_benchmark")
    values = search.candidates.values
    return settings.replace(**{name: values[name][0] for name in names if values.get(name)})


def _with_workers(search: Search, settings: Settings, rate: float) -> Settings:
    """Enough workers for ``rate``; none where loading in-process hardly costs."""
    if "num_workers" in search.candidates.dropped:
        return settings
    load = rate * _seconds_per_sample(search)
    if load < search.pace.no_workers_below:
        return search.candidates.shared(settings, 0)
    most = min(max(1, search.hardware.cores - 1), search.candidates.most_workers)
    count = min(most, max(1, math.ceil(search.pace.loader_headroom * load)))
    return _shared(search, settings, count)


def _shared(search: Search, settings: Settings, num_workers: int) -> Settings:
    """Few workers keep more batches ready than torch's two each: steps on a device are short."""
    shared = search.candidates.shared(settings, num_workers)
    if shared.num_workers > _FEW_WORKERS or (settings.batch_size or 1) > _LONG_STEP_S * search.best.samples_per_s:
        return shared
    ahead = search.candidates.space.nearest("prefetch_factor", _PREFETCH)
    return shared.replace(prefetch_factor=ahead) if shared.num_workers else shared


def _seconds_per_sample(search: Search) -> float:
    loader = search.ledger.part("loader", search.candidates.baseline.replace(num_workers=0))
    return 1 / loader.samples_per_s if loader is not None and loader.samples_per_s else 0.0


def _loader_ceiling(search: Search) -> float:
    seconds = _seconds_per_sample(search)
    return _LOADER_SHARE * max(1, search.hardware.cores - 1) / seconds if seconds else math.inf


def _compute_rate(search: Search, start: Measured) -> float:
    alone = search.ledger.part("compute", _bare(search.candidates.baseline))
    return alone.samples_per_s if alone is not None else start.samples_per_s


def _worth_growing(search: Search, settings: Settings, rate: float) -> bool:
    if (settings.batch_size or 0) > rate * search.step_cap_s():
        return False
    accelerator = search.hardware.accelerator
    predicted = search.ledger.predicted_bytes(settings)
    if predicted is None or accelerator is None or accelerator.memory_bytes is None:
        return True
    return predicted <= search.pace.memory_line_share * accelerator.memory_bytes


def _bare(settings: Settings) -> Settings:
    """As compute probes are kept: the loader plays no part in them."""
    return settings.replace(num_workers=0)
