"""Which size to run next, and when to stop.

What ran decides; readings of memory only choose what to run next:

1. Two small sizes, eight times apart; if the first fails, smaller ones. A failure below the first success is no
   ceiling.
2. The line through the readings says which size fills 95 % of the memory; it is run, and the line corrected by what it
   really took. Where readings are flat or missing, sizes grow by a factor instead. On a CPU each of these runs has a
   fresh process: in a used one the same size took up to a tenth more.
3. Between a size that fits and one that does not: by the line where it explains the failure, else by bisection. A
   single failing size with nothing else against it may be an odd one out, so one above it is run too.
4. The result, with the margin taken off, is run for five steps in a fresh process; if that fails, a smaller one is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from autotune.batch_size.judge import Judge, cliff
from autotune.batch_size.line import Line, filled
from autotune.batch_size.tried import LargestBatch, SizeTried
from autotune.errors import DoesNotFitError, TaskError
from autotune.measurement import Outcome, OutOfMemory, Probe
from autotune.sandbox.deaths import RemoteTraceback
from autotune.settings import Settings

__all__ = ["find_largest"]

_BRACKET_STEPS = 2  # the optimizer's state is allocated by the first
_FINAL_STEPS = 5  # on a CPU the peak still grew after the second step: 1680 rows passed two, only 1536 four
_FIRST_SHARE = 8  # the first size is this fraction of the start, which is the second
_AIM = 0.95  # of the memory: guesses at 95 % fail in 4 to 26 % of cases, at 100 % in 56 to 81 %
_CLOSE = 0.98  # looked at once the aim was reached
_FEW_ROWS = 16  # up to here one more row is worth a run although the line says that it just fits
_BRIM = 1.02  # of the memory: what the line says then, being on the safe side
_SAME = 1.03  # a size must be larger by more than this factor to be worth a run of its own
_RETREAT = 0.1  # each failure that the line explains lowers the aim by this share of the memory
_EXPLAINED = 0.8  # the line puts a size above this share of the memory: no surprise that it failed
_MOST_EXPLAINED = 2  # failures, after which the line is not believed any more
_TOLERANCE = 0.04  # between what fits and what does not, where memory was really filled
_MOST_VERIFICATIONS = 4  # so that a search takes eight runs: two small sizes, these, and two final ones
_FINAL_FACTORS = (0.95, 0.95, 0.9, 0.75, 0.5, 0.5, 0.5, 0.25)  # from a final size that failed to the next
_MOST_SURPRISES = 2  # final runs that fail; then the bracket is looked for again, with as many steps as they take
_SAFETY = 0.01  # of the memory, aimed below the margin
_FINAL_COST = 4  # a final run costs as much as about so many of the last: five steps, and a new process
_LEAST_DEADLINE_S = 10.0
_MOST_DEADLINE_S = 3600.0


def find_largest(
    run: Callable[[Probe], Outcome],
    settings: Settings,
    *,
    cap: int,
    cap_reason: str,
    start: int = 32,
    memory_margin: float = 0.05,
    ram_bytes: int | None = None,
    accelerator_bytes: int | None = None,
    most_growth: int = 16,
    time_budget_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    seed: int = 0,
    say: Callable[[SizeTried], object] = lambda _: None,
) -> LargestBatch:
    """Finds the largest batch size at which ``settings`` train.

    Args:
        run: Answers a probe.
        settings: Everything but the batch size.
        cap: Largest size allowed.
        cap_reason: Where that comes from, for people.
        start: A size that probably fits.
        memory_margin: The size returned is ``floor((1 - margin) * largest)``, and its peak at most that share of the
            memory where it can be read. A size that something else than memory bounds is not reduced where its peak
            leaves the margin anyway.
        ram_bytes: Host memory there is, where a reading does not bring its own limit.
        accelerator_bytes: The same for device memory.
        most_growth: Largest factor from a size that fits to the next.
        time_budget_s: Afterwards only the best so far is verified and returned.
        clock: Seconds, monotonic.
        seed: Of the probes.
        say: Told of every run.

    Raises:
        DoesNotFitError: No size fits in memory; its cause quotes the last failure.
        TaskError: No size trains, for another reason; the traceback is its ``__cause__``.
    """
    runs = _Runs(run, settings, seed, Judge(ram_bytes=ram_bytes, accelerator_bytes=accelerator_bytes), say)
    runs.clock, runs.ends_s = clock, clock() + time_budget_s
    search = _Search(runs, cap, cap_reason, min(start, cap), most_growth)
    final = search.settled(memory_margin)
    return LargestBatch(
        batch_size=final.size,
        probes=len(runs.tried),
        out_of_memory_probes=sum(one.fate == OutOfMemory.fate for one in runs.tried),
        reason=search.reason,
        evidence=tuple(runs.tried),
    )


class _Runs:
    """Runs sizes and keeps what came of them."""

    def __init__(
        self,
        run: Callable[[Probe], Outcome],
        settings: Settings,
        seed: int,
        judge: Judge,
        say: Callable[[SizeTried], object],
    ) -> None:
        self._run, self._settings, self._seed, self._say = run, settings, seed, say
        self.judge = judge
        self.clock: Callable[[], float] = time.monotonic
        self.ends_s = math.inf
        self.asked: set[int] = set()
        self.tried: list[SizeTried] = []
        self.least_steps = 0

    def distrust(self, *, fewer_steps_than: int) -> None:
        """From now on shorter runs do not show that a size fits, and each size may be run again."""
        self.least_steps = fewer_steps_than
        self.asked.clear()

    def take(self, size: int, *, steps: int, fresh: bool = False, least_deadline_s: float = 0.0) -> SizeTried:
        """Runs ``size``; once more where it is suspiciously slow, since others may have used the machine."""
        tried = self._once(size, steps, fresh, least_deadline_s)
        if tried.fits and cliff(tried, self.tried):
            self._keep(tried)
            tried = self._once(size, steps, fresh, least_deadline_s)
            slow = cliff(tried, self.tried)
            tried = tried.failed(slow) if tried.fits and slow else tried
        self._keep(tried)
        return tried

    @property
    def largest(self) -> SizeTried | None:
        """The largest that fits; of a size that ran twice, a failure counts."""
        failed = {one.size for one in self.tried if not one.fits}
        fitting = [one for one in self.tried if one.fits and one.size not in failed and one.steps >= self.least_steps]
        return max(fitting, key=lambda one: one.size, default=None)

    def ceiling(self, above: int) -> SizeTried | None:
        """The smallest failure above a size."""
        failed = [one for one in self.tried if not one.fits and one.size > above]
        return min(failed, key=lambda one: one.size, default=None)

    def _once(self, size: int, steps: int, fresh: bool, least_deadline_s: float) -> SizeTried:
        self.asked.add(size)
        half_s = min((self.ends_s - self.clock()) / 2, _MOST_DEADLINE_S)
        probe = Probe(
            kind="compute",
            settings=self._settings.replace(batch_size=size),
            deadline_s=max(half_s, least_deadline_s, _LEAST_DEADLINE_S),
            seed=self._seed,
            steps=steps,
            fresh=fresh,
        )
        return self.judge.judge(size, self._run(probe), steps=steps)

    def _keep(self, tried: SizeTried) -> None:
        self.tried.append(tried)
        self._say(tried)


class _Search:
    """Chooses sizes."""

    def __init__(self, runs: _Runs, cap: int, cap_reason: str, start: int, most_growth: int) -> None:
        self._runs = runs
        self._most, self._cap_reason, self._start, self._growth = cap, cap_reason, start, most_growth
        self._most_sizes = 2 * math.floor(math.log2(cap)) + 2
        self._verifications = 0
        self.reason = ""

    def bracketed(self) -> SizeTried:
        """The largest size that ran, as close to the edge as it pays to look."""
        self.reason = ""
        while True:
            size, largest = self._next(), self._runs.largest
            if size is None or size in self._runs.asked or (largest is not None and self._enough(largest)):
                break
            line = self._line
            self._verifications += line is not None
            # Freed memory of earlier sizes lies about in pieces; an accelerator's allocator gives it back.
            fresh = line is not None and line.rises and not self._runs.judge.on_accelerator
            self._runs.take(size, steps=max(_BRACKET_STEPS, self._runs.least_steps), fresh=fresh)
        if largest is None:
            raise self._nothing(0.0)
        self.reason = self.reason or self._bound(largest)
        return largest

    def settled(self, margin: float) -> SizeTried:
        """The size to return, run in a fresh process."""
        largest = self.bracketed()
        size = self._reduced(largest, margin)
        for failures, factor in enumerate(_FINAL_FACTORS, start=1):
            final = self._runs.take(size, steps=_FINAL_STEPS, fresh=True, least_deadline_s=10 * largest.cost_s)
            if final.fits and final.leaves(margin) is not False:
                return final
            kind = "memory" if final.fits or final.memory else "not memory"
            self.reason = f"{kind}: batch {size}, {_FINAL_STEPS} steps: {final.message or 'the margin is not left'}"
            if failures == _MOST_SURPRISES and not final.fits:
                self._runs.distrust(fewer_steps_than=_FINAL_STEPS)
                largest = self.bracketed()
                size = self._reduced(largest, margin)
                continue
            if size == 1:
                break
            size = self._smaller(final, margin, factor)
        raise self._nothing(margin)

    def _smaller(self, final: SizeTried, margin: float, factor: float) -> int:
        """The next size for a final run that failed or did not leave the margin: 1 at least, below this one."""
        size = final.size
        if not final.fits:
            proven = [one.size for one in self._runs.tried if one.fits and one.size < size]
            return max(proven) if proven and not final.memory else max(1, math.floor(factor * size))
        slope = self._bytes_per_row(final)
        if slope is None or final.peak_bytes is None or not final.limit_bytes:
            return max(1, math.floor(factor * size))
        excess_bytes = final.peak_bytes - (1 - margin - _SAFETY) * final.limit_bytes
        return max(1, min(size - 1, size - math.ceil(excess_bytes / slope)))

    def _bytes_per_row(self, final: SizeTried) -> float | None:
        """From a run of as many steps, since later steps may take more; else from the smallest size of all."""
        read = [one for one in self._runs.tried if one.fits and one.peak_bytes is not None and one.size != final.size]
        alike = [one for one in read if one.steps == final.steps] or read
        other = min(alike, key=lambda one: one.size, default=None)
        if other is None or other.peak_bytes is None or final.peak_bytes is None:
            return None
        slope = (final.peak_bytes - other.peak_bytes) / (final.size - other.size)
        return slope if slope > 0 else None

    def _reduced(self, largest: SizeTried, margin: float) -> int:
        """With the margin taken off, unless it is left anyway because something else than memory is the bound."""
        ceiling = self._runs.ceiling(largest.size)
        by_memory = ceiling.memory if ceiling else largest.size < self._cap
        if not by_memory and largest.leaves(margin):
            return largest.size
        return max(1, math.floor((1 - margin) * largest.size))

    @property
    def _cap(self) -> int:
        return min(self._most, self._runs.judge.rows_end or self._most)

    @property
    def _line(self) -> Line | None:
        return Line.through(self._runs.tried)

    def _next(self) -> int | None:
        largest = self._runs.largest
        if largest is None:
            return self._first()
        ceiling = self._runs.ceiling(largest.size)
        return self._above(largest) if ceiling is None else self._between(largest, ceiling)

    def _first(self) -> int | None:
        """Down from the first size by large steps; other sizes where one fails for another reason than memory."""
        sizes = [max(1, self._start // _FIRST_SHARE)]
        while sizes[-1] > 1:
            sizes.append(sizes[-1] // _FIRST_SHARE or 1)
        too_large = min((one.size for one in self._runs.tried if one.memory), default=self._cap + 1)
        others = (size for size in (*sizes, 2, self._start) if size < too_large and size not in self._runs.asked)
        return next(others, None)

    def _above(self, largest: SizeTried) -> int | None:
        size, line = largest.size, self._line
        if size >= self._cap or (self._verifications >= _MOST_VERIFICATIONS and filled(largest, self._runs.tried)):
            return None
        if line is None:
            return min(self._cap, self._start if self._start > size else _FIRST_SHARE * size)
        wanted = _wanted(line, size)
        return None if wanted is None else min(self._cap, wanted, self._growth * size)

    def _between(self, largest: SizeTried, ceiling: SizeTried) -> int | None:
        low, high, line = largest.size, ceiling.size, self._line
        gap = high - low
        near = ceiling.memory and gap <= _TOLERANCE * low
        if (near or self._verifications >= _MOST_VERIFICATIONS) and filled(largest, self._runs.tried):
            return None
        explained = line is not None and ceiling.memory and line.share_at(high) >= _EXPLAINED
        if gap <= 1:
            return None if explained else self._odd_one_out(low, high)
        failures = sum(one.memory for one in self._runs.tried)
        if line is None or not explained or failures > _MOST_EXPLAINED:
            return math.isqrt(low * high) if high > 2 * low else (low + high) // 2
        wanted = _wanted(line, low)
        if wanted is None and filled(largest, self._runs.tried):
            return None
        aims = (wanted or high, line.size_at(_AIM - _RETREAT * failures))
        return next((aim for aim in aims if _SAME * low < aim <= high - max(1, gap // 8)), (low + high) // 2)

    def _odd_one_out(self, low: int, high: int) -> int | None:
        """A size above a lone failure: if that works, the failure was no ceiling."""
        failed = {one.size for one in self._runs.tried if not one.fits and one.size > low}
        above = min(self._cap, max(high + 1, high * 3 // 2))
        return above if len(failed) == 1 and above not in failed else None

    def _enough(self, largest: SizeTried) -> bool:
        if self._runs.clock() + _FINAL_COST * largest.cost_s > self._runs.ends_s:
            self.reason = "the time was over"
        elif len(self._runs.asked) >= self._most_sizes - 1:
            self.reason = f"{len(self._runs.asked)} sizes were tried"
        return bool(self.reason)

    def _bound(self, largest: SizeTried) -> str:
        ceiling = self._runs.ceiling(largest.size)
        if ceiling is not None:
            return f"{'memory' if ceiling.memory else 'not memory'}: batch {ceiling.size} fails: {ceiling.message}"
        if largest.size < self._cap:
            return f"memory: batch {largest.size} uses {largest.peak_bytes:,} of {largest.limit_bytes:,} bytes"
        return self._cap_reason if self._cap == self._most else f"the data gives no more than {self._cap} samples"

    def _nothing(self, margin: float) -> DoesNotFitError | TaskError:
        runs = [one for one in self._runs.tried if one.fits and one.steps >= _FINAL_STEPS]
        if runs and margin:
            least = min(runs, key=lambda one: one.size)
            return DoesNotFitError(
                f"A batch of {least.size} runs, but memory_margin={margin:g} is not left: {_reading(least)}.",
                "Lower memory_margin, or use a smaller model or a machine with more memory.",
            )
        for_memory = [one for one in self._runs.tried if one.memory]
        if for_memory:
            last = min(reversed(for_memory), key=lambda one: one.size)
            remedy = "Use a smaller model or smaller samples, or a machine with more memory."
            return DoesNotFitError(f"Not even a batch of {last.size} fits in memory: {last.message}", remedy)
        failed = [one for one in self._runs.tried if not one.fits]
        first = (failed or self._runs.tried)[0]
        error = TaskError(f"No batch size trains: {first.message}", "This is not about memory; mend it first.")
        error.__cause__ = RemoteTraceback(first.traceback) if first.traceback else None
        return error


def _reading(tried: SizeTried) -> str:
    if tried.peak_bytes is None or not tried.limit_bytes:
        return "its peak cannot be read"
    return f"{tried.peak_bytes:,} of {tried.limit_bytes:,} bytes in use"


def _wanted(line: Line, size: int) -> int | None:
    """The size that fills the memory as far as is prudent; None where that is hardly more than ``size``."""
    aims = (line.size_at(_AIM), line.size_at(_CLOSE))
    wanted = next((aim for aim in aims if aim > _SAME * size), None)
    one_more = size <= _FEW_ROWS and line.share_at(size + 1) <= _BRIM
    return size + 1 if wanted is None and one_more else wanted
