"""One measured window: warm-up until the pipeline is in its steady state, then whole chunks until the time is up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from autotune.measurement import STARVED_SHARE, Chunk
from autotune.trial.stream import BatchStream
from autotune.trial.timer import WindowTimer

__all__ = ["LONG_STEP_S", "Taken", "Window", "epoch_turn_s", "measure", "take_steps", "warm_up"]

_WAIT_SHARE = 0.2  # a batch waited for longer than this share of its step: the workers' stock is used up
_ONE_STEP_SHARE = 0.44  # one warm step is judged hopeless only this far below the threshold for windows
LONG_STEP_S = 0.5
"""A step that takes this long says enough by itself: it is neither repeated to warm up nor to be timed."""
_SLOW_TIMES, _SLOW_S = 3.0, 0.2  # a first step beyond this many times the second, and this much longer, took its time
_STOCK_SHARE = 0.5  # of a window's batches that lay ready before: more say nothing about the workers
_ENOUGH_SHARE = 0.5  # of a window says nearly as much as all of it
_CUT_AFTER_S = 0.5  # a rate is judged hopeless only after this long: the first steps of milliseconds say nothing
_TELLING_STEP_S = 0.1  # nor does a single step that is shorter than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Raw result of ``measure``."""

    chunks: tuple[Chunk, ...]
    """Chunks inside an epoch; those across its end if there are no others."""
    crossed: tuple[Chunk, ...]
    """Chunks in which an epoch ended, kept apart."""
    epoch_ends: int
    cut: bool
    stock_rows: int
    """Rows more than the workers loaded meanwhile: they lay ready when the window began. Negative: rows less."""
    losses: tuple[torch.Tensor, ...]
    """First and last loss, detached."""
    largest_batch_rows: int


@dataclass(slots=True)
class Taken:
    """What a run of steps saw."""

    rows: int = 0
    batches: int = 0
    waited_s: float = 0.0
    largest: int = 0
    epoch_ends: int = 0
    losses: list[torch.Tensor] = field(default_factory=list)
    hopeless: Chunk | None = None
    """A single warm step so slow, or so late, that no window is needed."""


def take_steps(
    count: int, stream: BatchStream, step: Callable[[Any], torch.Tensor], rows_of: Callable[[Any], int], seen: Taken
) -> None:
    """Runs ``count`` micro-batches and adds what they were to ``seen``."""
    for _ in range(count):
        batch, waited_s = stream.take()
        loss = step(batch)
        rows = rows_of(batch)
        seen.rows += rows
        seen.batches += 1
        seen.waited_s += waited_s
        seen.largest = max(seen.largest, rows)
        seen.losses[1:] = [loss]


def warm_up(
    stream: BatchStream,
    step: Callable[[Any], torch.Tensor],
    rows_of: Callable[[Any], int],
    *,
    stock: int,
    least: int,
    clock: Callable[[], float],
    workers: int | None = None,
    cut_below_samples_per_s: float | None = None,
    one_if_long: bool = False,
    settle: Callable[[], object] = lambda: None,
    until: float = math.inf,
) -> Taken:
    """Steps until the loader's first stock no longer flatters it.

    Args:
        stream: Where batches come from.
        step: One micro-batch of training.
        rows_of: Rows of a batch.
        stock: Batches the workers may have ready at most (workers × prefetch).
        least: Steps in any case.
        clock: Seconds, monotonic.
        workers: Batches that are ready when the first is: one of each worker. None: all of the stock, as after a pause.
        cut_below_samples_per_s: The threshold for windows; a second step far below it ends the warm-up at once.
        one_if_long: A single step will do where it shows that steps are long.
        settle: Waits for the device; called after the first two steps.
        until: Clock time after which the warm-up is given up at the next step.

    The stock is used up as soon as a step really waited for its batch. More of it than one batch a worker is ready only
    after a first step that took long for once, as compiling does.
    """
    seen = Taken()
    own_s: list[float] = []
    while len(own_s) < max(least, _ready(stock, workers, own_s)):
        taken, begin = len(own_s), clock()
        waited_before, rows_before = seen.waited_s, seen.rows
        take_steps(1, stream, step, rows_of, seen)
        if taken < 2:
            settle()
        last = Chunk(seen.rows - rows_before, clock() - begin, seen.waited_s - waited_before)
        own_s.append(last.seconds - last.waited_s)
        if clock() > until or (taken and _far_below(last, cut_below_samples_per_s)):
            seen.hopeless = last
            break
        if not taken and one_if_long and own_s[0] >= LONG_STEP_S:
            least = 1
        if len(own_s) > least and last.waited_s > _WAIT_SHARE * last.seconds:
            break
    return seen


def _far_below(step: Chunk, cut_below_samples_per_s: float | None) -> bool:
    own_s = step.seconds - step.waited_s
    if cut_below_samples_per_s is None or own_s < _TELLING_STEP_S:
        return False
    return step.rows < _ONE_STEP_SHARE * cut_below_samples_per_s * own_s


def _ready(stock: int, workers: int | None, own_s: list[float]) -> int:
    """Batches that lay ready at most, by what the first two steps took."""
    if workers is None or len(own_s) < 2:
        return stock
    return stock if own_s[0] > _SLOW_TIMES * own_s[1] + _SLOW_S else min(stock, workers)


def measure(
    stream: BatchStream,
    step: Callable[[Any], torch.Tensor],
    rows_of: Callable[[Any], int],
    timer: WindowTimer,
    *,
    batches_per_chunk: int,
    window_s: float,
    cut_below_samples_per_s: float | None = None,
    chunks: int | None = None,
    give_up_s: float = math.inf,
) -> Window:
    """Runs whole chunks for at least ``window_s``, and on while most of the batches are such as lay ready before.

    A chunk is a whole turn of the workers and of the accumulation, wherever in the turn it begins, so that one that
    takes as long as the window is enough.

    Args:
        stream: Where batches come from.
        step: One micro-batch of training; returns the detached loss.
        rows_of: Rows of a batch.
        timer: Fresh timer for this window.
        batches_per_chunk: See ``chunk_batches``.
        window_s: Seconds aimed at.
        cut_below_samples_per_s: End early once the rate is below this.
        chunks: Exactly so many chunks, whatever the time.
        give_up_s: The window ends after this long even so, and counts as cut before half of it is over.
    """
    least, most = (1, math.inf) if chunks is None else (chunks, chunks)
    seen: list[Taken] = []
    elapsed_s, cut = 0.0, False
    before = stream.ready() or 0
    timer.start()
    while not cut and (
        len(seen) < least or (len(seen) < most and _goes_on(elapsed_s < window_s, before, stream, seen))
    ):
        part, ends_before = Taken(), stream.epoch_ends
        take_steps(batches_per_chunk, stream, step, rows_of, part)
        elapsed_s = timer.mark()
        part.epoch_ends = stream.epoch_ends - ends_before
        seen.append(part)
        cut = _hopeless(sum(part.rows for part in seen), elapsed_s, cut_below_samples_per_s)
        if elapsed_s > give_up_s:
            cut = cut or elapsed_s < _ENOUGH_SHARE * window_s
            break
    drawn = _out_of_stock(seen, before - (stream.ready() or 0), len(stream.worker_pids), elapsed_s)
    return _window(seen, timer.spans_s(), cut=cut, drawn=drawn)


def _out_of_stock(seen: list[Taken], drawn: int, workers: int, elapsed_s: float) -> int:
    """Batches that the window took more (or less) than the workers loaded meanwhile."""
    if sum(part.waited_s for part in seen) >= STARVED_SHARE * elapsed_s:
        return drawn if drawn >= 0 else drawn + 1  # nearly all of a batch may have been loaded before the window
    return max(0, drawn - max(1, workers // 2))  # a full stock goes up and down by bursts


def _window(seen: list[Taken], spans_s: list[float], *, cut: bool, drawn: int) -> Window:
    ends = [part.epoch_ends for part in seen]
    inside, crossed = _split(_chunks(seen, spans_s), ends)
    rows, batches = (sum(getattr(part, name) for part in seen) for name in ("rows", "batches"))
    return Window(
        chunks=inside or crossed,
        crossed=crossed,
        epoch_ends=sum(ends),
        cut=cut,
        # within an epoch: at its end the workers stop loading ahead
        stock_rows=0 if sum(ends) else drawn * rows // batches,
        losses=(seen[0].losses[0], seen[-1].losses[-1]),
        largest_batch_rows=max(part.largest for part in seen),
    )


def epoch_turn_s(window: Window, *, latency_s: float) -> float:
    """Extra seconds each new epoch costs that the window's chunks do not hold.

    Args:
        window: What was measured; where it crossed epoch ends, they are the evidence.
        latency_s: The pipeline's start as it was seen, for windows that ended before their epoch did.
    """
    if window.crossed == window.chunks:
        return 0.0  # every chunk holds its epoch ends already
    if not window.crossed:
        return latency_s
    rows = sum(chunk.rows for chunk in window.chunks)
    s_per_row = math.fsum(chunk.seconds for chunk in window.chunks) / rows
    extra = math.fsum(chunk.seconds - chunk.rows * s_per_row for chunk in window.crossed)
    return max(0.0, extra / window.epoch_ends)


def _goes_on(early: bool, before: int, stream: BatchStream, seen: list[Taken]) -> bool:
    """While the time is not up, and while most batches lay ready; the stock is looked at only once it is up."""
    return early or before - (stream.ready() or 0) > _STOCK_SHARE * sum(part.batches for part in seen)


def _hopeless(rows: int, elapsed_s: float, cut_below_samples_per_s: float | None) -> bool:
    if cut_below_samples_per_s is None or elapsed_s < _CUT_AFTER_S:
        return False
    return rows < cut_below_samples_per_s * elapsed_s


def _chunks(seen: list[Taken], spans_s: list[float]) -> list[Chunk]:
    if len(spans_s) == len(seen):
        return [Chunk(part.rows, span, part.waited_s) for part, span in zip(seen, spans_s, strict=True)]
    rows, waited_s = sum(part.rows for part in seen), math.fsum(part.waited_s for part in seen)
    return [Chunk(rows, math.fsum(spans_s), waited_s)]


def _split(chunks: list[Chunk], ends: list[int]) -> tuple[tuple[Chunk, ...], tuple[Chunk, ...]]:
    if len(chunks) != len(ends):  # one span for the whole window
        return tuple(chunks), tuple(chunks) if sum(ends) else ()
    inside = tuple(chunk for chunk, crossed in zip(chunks, ends, strict=True) if not crossed)
    return inside, tuple(chunk for chunk, crossed in zip(chunks, ends, strict=True) if crossed)
