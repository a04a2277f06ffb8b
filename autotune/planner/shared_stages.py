"""Stages that both kinds of machine share; each builds on the best so far."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from typing import Any

from autotune.measurement import DataCosts, Measured, Outcome
from autotune.planner.moves import Move, Moves, Search, batch_times, gained
from autotune.settings import Settings
from autotune.space import allowed_part

__all__ = ["compile_last", "group_lengths", "local_moves", "playoff", "rescue", "resume", "same_batch"]


_COMPILE_TIMES = {"reduce-overhead": 1.2, "max-autotune-no-cudagraphs": 2.0}
_MOST_LOOKS, _IN_PLAYOFF = 5, 4
_LAUNCH_BOUND_SHARE = 0.7  # of the rate that half the batch keeps: 1/2 where launching is all, 1 where it is nothing
_MORE_LOOKS = 2  # of three the one in the middle counts
_CLOSE = 0.1  # one look at each of two settings may be off by as much
_FLAGS = ("channels_last", "optimizer_implementation", "precision", "cudnn_benchmark")


def resume(search: Search) -> Moves:
    """What an earlier run found to be fastest; without its compilation where there is no time for it."""
    earlier = search.earlier
    if earlier is None:
        return
    start = search.best
    settings = allowed_part(earlier, search.candidates, cores=search.hardware.cores)
    if settings.compile_mode is not None and search.left_s() < search.pace.compile_least_s:
        settings = settings.replace(compile_mode=None, compile_scope=start.settings.compile_scope)
    outcome = yield Move(settings, cap_s=search.compile_cap_s() if settings.compile_mode else None)
    if gained(outcome, start.samples_per_s, search.pace.accept_gain):
        search.guess = settings.replace(compile_mode=start.settings.compile_mode)


def rescue(search: Search) -> Moves:
    """Where the batch had to be split to fit: recomputing activations may hold more of it at a time."""
    baseline = search.candidates.baseline
    if "activation_checkpointing" in search.candidates.dropped:
        return
    if not search.candidates.split:
        search.skipped["activation_checkpointing"] = "saves memory and costs time: only for a batch that does not fit"
        return
    settings = baseline.replace(activation_checkpointing=True)
    larger = batch_times(search, settings, 2) or _merged(search, settings)
    if larger is not None:
        yield Move(larger)
    yield Move(settings)


def group_lengths(search: Search) -> Moves:
    """Batches of samples of similar length, where that is allowed and there is padding to save."""
    if "length_grouped" in search.candidates.dropped:
        return
    reason = _grouping_is_idle(search.data, search.pace.padding_least_share)
    if reason is not None:
        search.skipped["length_grouped"] = reason
        return
    before = search.best
    outcome = yield Move(before.settings.replace(length_grouped=True))
    if gained(outcome, before.samples_per_s, search.pace.accept_gain):
        search.guess = search.guess.replace(length_grouped=True)


def same_batch(search: Search) -> Moves:
    """The best with the batch the caller had: the gain without any change in training."""
    baseline, best = search.candidates.baseline, search.best.settings
    if best.effective_batch_size == baseline.effective_batch_size:
        return
    mode = best.compile_mode  # for another batch it compiles anew, and the race of what is found comes first
    if mode is not None and search.compile_cap_s() < _compile_cost_s(search, mode):
        return
    settings = best.replace(
        batch_size=baseline.batch_size, gradient_accumulation_steps=baseline.gradient_accumulation_steps
    )
    yield Move(settings, cap_s=search.compile_cap_s() if mode is not None else None)


def compile_last(search: Search) -> Moves:
    """Compilation, where the time left can hold it and loading is not what limits."""
    values = search.candidates.values.get("compile_mode", ())
    if not values:
        return
    reason = _no_time_to_compile(search) or _compiling_is_idle(search)
    if reason is not None:
        search.skipped["compile_mode"] = reason
        return
    for mode in _modes(values, launch_bound=_step_time_is_constant(search)):
        if search.left_s() < search.pace.compile_least_s or search.compile_cap_s() < _compile_cost_s(search, mode):
            return
        start = search.best
        won = yield from _compiled(search, start, mode, "model")
        if won or start.settings.compile_mode is not None:
            continue
        if mode == "default" and "blocks" in search.candidates.values.get("compile_scope", ()):
            won = yield from _compiled(search, start, mode, "blocks")
        if not won:
            return


def _compiled(search: Search, start: Measured, mode: str, scope: str) -> Generator[Move, Outcome | None, bool]:
    """Whether ``start`` gains by compiling; where it is close, both are looked at again: most of the price is paid."""
    settings = start.settings.replace(compile_mode=mode, compile_scope=scope)
    outcome = yield Move(settings, cap_s=search.compile_cap_s())
    if gained(outcome, start.samples_per_s, search.pace.accept_gain):
        return True
    if not gained(outcome, start.samples_per_s, -_CLOSE):
        return False
    for _ in range(_MORE_LOOKS):
        for again in (settings, start.settings):
            yield Move(again, again=True)
        if search.best.settings == settings:
            return True
    return False


def local_moves(search: Search) -> Moves:
    """Small random changes of one or two knobs around the best, until several in a row gained nothing."""
    chance = random.Random(0)
    idle = 0
    while idle < search.idle_moves():
        best = search.best
        changed = _random_move(search, best.settings, chance)
        if changed is None or search.ledger.tried("joint", changed) or search.candidates.refusal(changed):
            idle += 1
            continue
        outcome = yield Move(changed)
        idle = 0 if gained(outcome, best.samples_per_s, search.pace.accept_gain) else idle + 1


def playoff(search: Search) -> Moves:
    """The fastest few are looked at again, in turns, while there is time."""
    if not search.pace.second_looks:
        return
    ledger = search.ledger
    for looks in range(2, _MOST_LOOKS + 1):
        leader = ledger.score(search.best)
        close = [one.settings for one in ledger.ranked() if ledger.score(one) >= search.pace.playoff_share * leader]
        for settings in close[:_IN_PLAYOFF] if len(close) > 1 else ():
            if len(ledger.looks[settings]) < looks:
                yield Move(settings, again=True)


def _random_move(search: Search, settings: Settings, chance: random.Random) -> Settings | None:
    moves = [*_number_moves(search, settings, chance), *_flag_moves(search, settings)]
    if not moves:
        return None
    for change in chance.sample(moves, min(len(moves), chance.choice((1, 1, 2)))):
        workers = change.pop("num_workers", None)
        settings = (settings if workers is None else search.candidates.shared(settings, workers)).replace(**change)
    factor = chance.choice((None, None, 0.5, 0.7, 1.4, 2.0))
    if settings.compile_mode is not None:
        return settings  # another batch would be compiled anew
    return settings if factor is None else batch_times(search, settings, factor) or settings


def _number_moves(search: Search, settings: Settings, chance: random.Random) -> Iterator[dict[str, Any]]:
    cores, dropped = search.hardware.cores, search.candidates.dropped
    if "num_workers" not in dropped:
        workers = max(0, settings.num_workers + chance.choice((-4, -2, -1, 1, 2, 4)))
        yield {"num_workers": min(workers, cores)}
        if settings.num_workers:
            yield {"prefetch_factor": chance.choice((2, 4, 8))}
    if "num_threads" not in dropped and search.hardware.accelerator is None and settings.num_threads:
        yield {"num_threads": min(cores, max(1, settings.num_threads + chance.choice((-1, 1))))}


def _flag_moves(search: Search, settings: Settings) -> Iterator[dict[str, Any]]:
    """Flags turned on or off; under compilation only those that it does not start anew for, and no hopeless one."""
    baseline, compiled = search.candidates.baseline, settings.compile_mode is not None
    for name in ("optimizer_implementation",) if compiled else _FLAGS:
        for value in search.candidates.values.get(name, ()):
            now = getattr(settings, name)
            if now == value:
                yield {name: getattr(baseline, name)}
            elif not search.ledger.hopeless(name, value):
                yield {name: value}


def _grouping_is_idle(data: DataCosts | None, least_share: float) -> str | None:
    if data is None or data.padding_share is None:
        return "not tried: batches are not padded to their longest sample, or not by a length that can be told"
    if not data.whole:
        return f"not tried: only {data.seen:,} samples could be read in time, and it needs the lengths of all"
    if data.padding_share < least_share:
        return f"not tried: only {data.padding_share:.1%} of a batch is padding"
    return None


def _no_time_to_compile(search: Search) -> str | None:
    left_s, needed_s = search.left_s(), search.pace.compile_least_s
    if left_s >= needed_s:
        return None
    return (
        f"not tried: about {needed_s:.0f} s are needed, {max(0.0, left_s):.0f} s were left; run again with a larger "
        "time_budget_s"
    )


def _compiling_is_idle(search: Search) -> str | None:
    best = search.best
    wait = best.data_wait_share or 0.0
    # Without workers, loading and step take turns: a faster step helps all the same.
    most = 1 - search.pace.compile_least_share if best.settings.num_workers else search.pace.compile_most_loading
    return f"not tried: the step waits for data {wait:.0%} of the time" if wait > most else None


def _step_time_is_constant(search: Search) -> bool:
    """Half the largest batch took as long: launching kernels is what limits."""
    alone = [one for (kind, _), one in search.ledger.parts.items() if kind == "compute" and isinstance(one, Measured)]
    for full in sorted(alone, key=lambda one: -(one.settings.batch_size or 0)):
        smaller = batch_times(search, full.settings, 0.5)
        half = search.ledger.part("compute", smaller) if smaller is not None else None
        if half is not None:
            return half.samples_per_s < _LAUNCH_BOUND_SHARE * full.samples_per_s
    return False


def _modes(values: tuple[Any, ...], *, launch_bound: bool) -> list[Any]:
    """Graphs first where launching kernels is what takes the time; what compiles longest last."""
    first = "reduce-overhead" if launch_bound else "default"
    return sorted(values, key=lambda mode: (mode != first, mode.startswith("max-autotune")))


def _compile_cost_s(search: Search, mode: str) -> float:
    """What compiling in a mode will take, by what another took."""
    seen = [one for one in search.ledger.outcomes.values() if one.settings.compile_mode and isinstance(one, Measured)]
    return _COMPILE_TIMES.get(mode, 1.0) * max((one.cost_s for one in seen), default=0.0)


def _merged(search: Search, settings: Settings) -> Settings | None:
    batch, accumulation = settings.batch_size, settings.gradient_accumulation_steps
    if batch is None or accumulation == 1:
        return None
    factor = next(size for size in range(2, accumulation + 1) if accumulation % size == 0)
    return settings.replace(batch_size=batch * factor, gradient_accumulation_steps=accumulation // factor)
