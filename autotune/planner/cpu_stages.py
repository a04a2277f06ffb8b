"""The plan without an accelerator: loading and training share the cores, so everything is tried together."""

from __future__ import annotations

from autotune.measurement import Measured
from autotune.planner.loader_faults import worker_fault
from autotune.planner.moves import Move, Moves, Search, Stage, batch_times, gained, rate_of
from autotune.planner.shared_stages import compile_last, group_lengths, local_moves, playoff, rescue, resume, same_batch
from autotune.settings import Settings

__all__ = ["CPU_STAGES"]


def split_cores(search: Search) -> Moves:
    """Workers and intra-op threads share the cores, so they are one move: all cores load, one thread trains.

    One thread alone is always tried: threads that wait for a core spin, and a busy machine then does worse with more.
    """
    workers_pay = not _loading_is_nothing(search)
    for num_workers, num_threads in _splits(search.hardware.cores, waits=_waits(search)):
        if num_workers and not workers_pay:
            continue
        start = search.best
        outcome = yield Move(search.candidates.shared(start.settings, num_workers, num_threads))
        if num_workers and outcome is not None and not rate_of(outcome) and worker_fault(outcome) is None:
            workers_pay = False  # far slower already: the data does not take workers well


def grow_batch(search: Search) -> Moves:
    """A much larger batch, again while that pays; then to and fro by half of that."""
    start = search.best
    while True:
        before = search.best
        grown = _grown(search, before, search.pace.batch_step)
        if grown is None:
            break
        outcome = yield Move(grown)
        # On only where it pays, and where it leaves the memory margin.
        if search.best.settings != grown or not gained(outcome, before.samples_per_s, search.pace.large_batch_gain):
            break
    if search.best.settings == start.settings:
        for factor in (2, 0.5):
            other = _grown(search, start, factor)
            if other is not None:
                yield Move(other)
        return
    for factor in (2, 0.5):  # the best lies between what was tried
        before = search.best
        other = _grown(search, before, factor)
        if other is not None:
            outcome = yield Move(other)
            if gained(outcome, before.samples_per_s, search.pace.batch_gain):
                return


def flags(search: Search) -> Moves:
    """Memory format and optimizer implementation together; apart where the pair lost."""
    values = search.candidates.values
    implementations = values.get("optimizer_implementation", ())
    changes = {"channels_last": True} if values.get("channels_last") else {}
    fused = {"optimizer_implementation": implementations[0]} if implementations else {}
    start = search.best
    if not changes and not fused:
        return
    outcome = yield Move(start.settings.replace(**changes, **fused))
    if changes and fused and not gained(outcome, start.samples_per_s, 0.0):
        yield Move(start.settings.replace(**changes))
        yield Move(start.settings.replace(**fused))


def reduced_precision(search: Search) -> Moves:
    """Each precision worth a look here; a slow one is cut after a step or two."""
    for precision in search.candidates.values.get("precision", ()):
        yield Move(search.best.settings.replace(precision=precision), cut_share=search.pace.precision_cut_share)


def resplit_cores(search: Search) -> Moves:
    """The best split moves with the batch, so it is looked at once more."""
    start = search.best.settings
    cores = search.hardware.cores
    with_workers = [] if _loading_is_nothing(search) else [(cores, 1), (cores, cores), (1, cores), (1, cores - 1)]
    for num_workers, num_threads in (*with_workers, (0, cores), (0, 1)):
        yield Move(search.candidates.shared(start, num_workers, max(1, num_threads)))


def _grown(search: Search, before: Measured, factor: float) -> Settings | None:
    """Another batch, unless its steps would take all the time there is."""
    grown = batch_times(search, before.settings, factor)
    if grown is None or factor < 1 or (grown.batch_size or 0) <= search.step_cap_s() * before.samples_per_s:
        return grown
    return None


CPU_STAGES: tuple[Stage, ...] = (
    resume,
    split_cores,
    rescue,
    group_lengths,
    reduced_precision,
    grow_batch,
    flags,
    resplit_cores,
    same_batch,
    compile_last,
    same_batch,
    local_moves,
    playoff,
)


def _splits(cores: int, *, waits: bool) -> list[tuple[int, int]]:
    """(workers, threads), best guess first."""
    half = max(1, cores // 2)
    for_loading = [(cores, 1), (half, max(1, cores - half)), (1, cores)]
    in_process = [(0, cores), (0, 1)]
    return list(dict.fromkeys([*for_loading, *reversed(in_process)] if waits else [*in_process, *for_loading]))


def _waits(search: Search) -> bool:
    """Whether the baseline spends more than a little of its time on loading."""
    baseline = search.ledger.baseline
    share = baseline.data_wait_share if baseline is not None else None
    return share is None or share >= search.pace.loading_share


def _loading_is_nothing(search: Search) -> bool:
    """Measured in-process: what workers could hide is too little to matter."""
    baseline = search.ledger.baseline
    if baseline is None or baseline.settings.num_workers or baseline.data_wait_share is None:
        return False
    share = baseline.data_wait_share
    if share >= search.pace.no_workers_below:
        return False
    search.skipped["num_workers"] = f"loading takes {share:.1%} of the time: workers could not gain more than that"
    return True
