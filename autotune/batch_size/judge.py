"""What the run of one size says: that the size fits, or why it does not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from autotune.batch_size.tried import SizeTried
from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Rejected

__all__ = ["Judge", "cliff"]

_CLIFF = 8.0  # times slower per row than a smaller size: memory is being swapped
_CLIFF_STEP_S = 1.0  # steps shorter than this are slow for other reasons
_CLIFF_FILLED = 0.5  # so are those that leave more than this share of the memory free
_FEWER = 0.9  # of the rows asked for; a collate function that leaves out a few samples gives more than that


class Judge:
    """Judges runs.

    Args:
        ram_bytes: Host memory there is, where a reading does not bring its own limit; None: not known.
        accelerator_bytes: The same for device memory.
    """

    def __init__(self, *, ram_bytes: int | None, accelerator_bytes: int | None) -> None:
        self._ram_bytes, self._accelerator_bytes = ram_bytes, accelerator_bytes
        self._rows_per_sample: float | None = None
        self.on_accelerator = False
        """Readings are of device memory."""
        self.rows_end: int | None = None
        """The data gave no more rows than this when asked for more; None: it always gave what was asked for."""

    def judge(self, size: int, outcome: Outcome, *, steps: int) -> SizeTried:
        """The record of one run.

        Args:
            size: As asked.
            outcome: Of the run.
            steps: Optimizer steps asked for.
        """
        if not isinstance(outcome, Measured):
            return _failure(size, outcome, steps)
        peak, limit = self._reading(outcome)
        seconds = [chunk.seconds / chunk.rows for chunk in outcome.chunks if chunk.rows]
        tried = SizeTried(
            size=self._real_size(size, outcome.largest_batch_rows),
            fits=True,
            fate=outcome.fate,
            steps=steps,
            peak_bytes=peak,
            limit_bytes=limit,
            s_per_row=min(seconds, default=None),
            cost_s=outcome.cost_s,
        )
        if outcome.allocation_retries:
            return tried.failed(f"the allocator gave back its cache {outcome.allocation_retries} times to find room")
        if tried.leaves(0.0) is False:
            return tried.failed(f"{peak:,} bytes in use, {limit:,} allowed")
        return tried

    def _reading(self, outcome: Measured) -> tuple[int | None, int | None]:
        if outcome.peak_accelerator_bytes is not None:
            self.on_accelerator = True
            return outcome.peak_accelerator_bytes, outcome.accelerator_limit_bytes or self._accelerator_bytes
        return outcome.peak_ram_bytes, outcome.ram_limit_bytes or self._ram_bytes

    def _real_size(self, size: int, rows: int) -> int:
        """What was asked, or less where the data gave fewer rows than in proportion before.

        In proportion, since a collate function may make several rows of a sample.
        """
        if not rows:
            return size
        per_sample = self._rows_per_sample = self._rows_per_sample or rows / size
        real = min(size, max(1, math.floor(rows / per_sample + 1e-9)))
        if real < _FEWER * size:
            self.rows_end = min(real, self.rows_end or real)
        return real


def cliff(tried: SizeTried, others: Sequence[SizeTried]) -> str | None:
    """Why ``tried`` is too slow to be in memory, compared with smaller sizes; None where it is not."""
    smaller = _speeds(one for one in others if one.size < tried.size)
    if not smaller or tried.s_per_row is None or tried.s_per_row <= _CLIFF * min(smaller):
        return None
    if tried.s_per_row * tried.size < _CLIFF_STEP_S or tried.leaves(_CLIFF_FILLED):
        return None
    times = tried.s_per_row / min(smaller)
    return f"{times:.0f} times slower per row than a smaller batch, twice: memory is being swapped"


def _speeds(tried: Iterable[SizeTried]) -> list[float]:
    return [one.s_per_row for one in tried if one.fits and one.s_per_row]


def _failure(size: int, outcome: Outcome, steps: int) -> SizeTried:
    return SizeTried(
        size=size,
        fits=False,
        fate=outcome.fate,
        steps=steps,
        message=_message(outcome),
        traceback=outcome.traceback if isinstance(outcome, Rejected) else None,
        memory=isinstance(outcome, OutOfMemory),
        cost_s=outcome.cost_s,
    )


def _message(outcome: Outcome) -> str:
    match outcome:
        case OutOfMemory():
            return outcome.message
        case Rejected():
            return f"{outcome.reason} (a limit of the backend's)" if outcome.size_limit else outcome.reason
        case Crashed():
            return f"the process ended with exit code {outcome.exit_code}. {outcome.output_tail}".strip()
        case _:
            return f"no answer within {getattr(outcome, 'deadline_s', 0.0):.0f} s"
