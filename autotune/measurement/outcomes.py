"""What is asked of a trial and what comes back: plain frozen data that crosses the process border as JSON.

``Probe`` goes in; one ``Outcome`` comes out, an expected failure being a value like any other:
``Measured | OutOfMemory | Rejected | Crashed | TimedOut``. Raw samples are kept; statistics are derived.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from autotune.measurement.intervals import Interval, mean_interval
from autotune.settings import Settings

__all__ = [
    "COMPARED_ROWS",
    "STARVED_SHARE",
    "Chunk",
    "Crashed",
    "DataCosts",
    "Measured",
    "OutOfMemory",
    "Outcome",
    "Probe",
    "ProbeKind",
    "Rejected",
    "TimedOut",
    "outcome_from_json",
]

COMPARED_ROWS = 64
"""Most rows of a batch on which numbers are compared: a loss is a mean, and more rows only take longer."""

STARVED_SHARE = 0.05
"""Of a window spent waiting for the loader: from there on it is what limits."""

ProbeKind = Literal["joint", "compute", "loader", "lap", "numerics", "lr_range", "noise_scale"]
"""joint: loader and step together; compute: the step alone on one cached real batch; loader: the loader alone; lap: a
joint window whose live objects stay resident for the next lap; numerics: the loss against fp32 eager on the same batch
and weights; of compiled settings, against the same settings eager, on a batch of their own size; lr_range: losses along
a sweep of the learning rate; noise_scale: gradients of single batches and of whole accumulation groups, at the weights
as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question to a trial."""

    kind: ProbeKind
    settings: Settings
    window_s: float = 2.0
    """Measured time aimed at, warm-up excluded."""
    deadline_s: float = 60.0
    """Wall time after which the trial is killed, everything included."""
    give_up_s: float | None = None
    """joint: end at the next step once the trial took this long, cut unless most of the window was seen by then."""
    cut_below_samples_per_s: float | None = None
    """Stop early once the rate is clearly below this."""
    seed: int = 0
    """Seeds the sampler, so that every trial reads other samples of the data."""
    steps: int | None = None
    """compute only: exactly so many optimizer steps in place of a window, with an exact reading of peak memory, on the
    worst batches that the data can make (at least one step on each of them). lr_range: learning rates of the sweep;
    noise_scale: accumulation groups. Of these fewer where ``window_s`` is short."""
    rates: tuple[float, float] | None = None
    """lr_range only: lowest and highest learning rate."""
    fresh: bool = False
    """In a child that has run no probe before."""

    def to_json(self) -> dict[str, Any]:
        """JSON scalars only."""
        return {**_shallow(self), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Probe:
        """The probe ``to_json`` wrote."""
        rates = data.get("rates")
        settings = Settings.from_json(data["settings"])
        return cls(**{**data, "settings": settings, "rates": None if rates is None else tuple(rates)})


@dataclass(frozen=True, slots=True)
class Chunk:
    """One raw sample: a whole worker round (or accumulation group) of training steps."""

    rows: int
    seconds: float
    waited_s: float = 0.0
    """Part of ``seconds`` in which the step waited for the loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCosts:
    """What the samples of a dataset cost, where they differ."""

    seen: int
    """Samples that were read for it."""
    samples: int | None
    """Samples there are; None for a stream that was not read to its end."""
    whole: bool
    """All of them were read."""
    mean_length: float
    """Elements of the part that varies most: tokens, where it is text."""
    longest: int
    """The most of them in one sample."""
    padding_share: float | None = None
    """Of the elements in batches of this size drawn at random; None where batches are not padded to their longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A trial that ran to its end."""

    fate: ClassVar[str] = "measured"

    kind: ProbeKind
    settings: Settings
    chunks: tuple[Chunk, ...]
    stock_rows: int = 0
    """Rows of the chunks that lay ready before the window and were not loaded anew meanwhile: no rate to last. Negative
    where more was loaded than used."""
    epoch_rows: int | None = None
    """Samples per epoch, None for streams of unknown length."""
    epoch_turn_s: float = 0.0
    """Extra seconds each new epoch costs (worker start or first batch latency) that the chunks do not hold."""
    start_s: float = 0.0
    """Building the objects and getting the first batch."""
    warmup_s: float = 0.0
    cost_s: float = 0.0
    """Wall time of the whole trial, as the parent saw it."""
    steps: int = 0
    """Optimizer steps taken, warm-up included."""
    largest_batch_rows: int = 0
    """Rows of the largest micro-batch that a step was really taken on."""
    others_cores: float | None = None
    """CPU cores' worth of time used on our cores by other processes; None where it cannot be read."""
    redone: int = 0
    """Windows thrown away because other processes used the CPU."""
    resident: bool = False
    """lap only: its live objects stay for its next lap."""
    cut: bool = False
    """Stopped early: clearly below ``Probe.cut_below_samples_per_s``."""
    peak_ram_bytes: int | None = None
    peak_accelerator_bytes: int | None = None
    ram_limit_bytes: int | None = None
    """What ``peak_ram_bytes`` could have reached before an allocation failed; None: no such limit was in force."""
    accelerator_limit_bytes: int | None = None
    """The same for ``peak_accelerator_bytes``; None where the device does not say."""
    allocation_retries: int | None = None
    """Times the device's allocator gave back its cache to find room, after the first step; None: not counted."""
    first_loss: float | None = None
    last_loss: float | None = None
    read_bytes: int | None = None
    """Asked of the file system during the window, workers included; None where the system does not say."""
    fetched_bytes: int | None = None
    """Part of ``read_bytes`` that came from storage and not from the page cache."""
    loss_error: float | None = None
    """numerics only: |loss - fp32 loss| / |fp32 loss|."""
    loss_drift: float | None = None
    """numerics only: how much higher the mean loss after some real steps is than fp32's, relative to it."""
    drift_steps: int = 0
    """Steps that ``loss_drift`` rests on."""
    data: DataCosts | None = None
    """compute with steps only: None where all samples are alike."""
    sweep: tuple[tuple[float, float | None], ...] = ()
    """lr_range only: learning rate and loss of each optimizer step; a loss of None is not finite."""
    square_norms: tuple[tuple[float, float], ...] = ()
    """noise_scale only: of each group, the mean of |gradient|^2 over its batches, and that of its mean gradient."""
    warnings: tuple[str, ...] = ()

    @property
    def window_samples_per_s(self) -> float:
        """Rows over seconds of the window, without those out of the loader's stock; epoch ends not priced in."""
        seconds = math.fsum(chunk.seconds for chunk in self.chunks)
        rows = sum(chunk.rows for chunk in self.chunks) - self.stock_rows
        return max(0, rows) / seconds if seconds > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """The rate over whole epochs: the window's, plus what each epoch's turn costs."""
        rate = self.window_samples_per_s
        if not rate or not self.epoch_rows:
            return rate
        return self.epoch_rows / (self.epoch_rows / rate + self.epoch_turn_s)

    @property
    def median_samples_per_s(self) -> float:
        """Median of the chunks' own rates."""
        rates = [chunk.rows / chunk.seconds for chunk in self.chunks if chunk.seconds > 0]
        return statistics.median(rates) if rates else 0.0

    @property
    def interval(self) -> Interval | None:
        """95 % interval of ``window_samples_per_s``; None with fewer than two chunks."""
        spans = [chunk.seconds / chunk.rows for chunk in self.chunks if chunk.rows]
        found = mean_interval(spans)
        if found is None or found.high <= 0:
            return None
        return Interval(1 / found.high, 1 / found.low if found.low > 0 else math.inf)

    @property
    def step_s(self) -> float:
        """Seconds of one micro-batch, of the slowest chunk; 0 without chunks."""
        longest = max(self.chunks, key=lambda chunk: chunk.seconds, default=None)
        if longest is None:
            return 0.0
        return longest.seconds / max(1, round(longest.rows / (self.settings.batch_size or longest.rows or 1)))

    @property
    def turn_s(self) -> float:
        """Seconds of the shortest fair window: a turn of the workers where they are waited for, else one update."""
        if self.starved:
            return max((chunk.seconds for chunk in self.chunks), default=0.0)
        return self.step_s * self.settings.gradient_accumulation_steps

    @property
    def starved(self) -> bool:
        """Whether the step waited for workers: the loader is what limits."""
        return self.settings.num_workers > 0 and (self.data_wait_share or 0.0) >= STARVED_SHARE

    @property
    def data_wait_share(self) -> float | None:
        """Share of the window in which the step waited for the loader; None where there was no step or no loader."""
        if self.kind not in ("joint", "lap"):
            return None
        seconds = math.fsum(chunk.seconds for chunk in self.chunks)
        return math.fsum(chunk.waited_s for chunk in self.chunks) / seconds if seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        """JSON scalars, lists and the fate."""
        chunks = [[chunk.rows, chunk.seconds, chunk.waited_s] for chunk in self.chunks]
        return {
            "fate": self.fate,
            **_shallow(self),
            "settings": self.settings.to_json(),
            "chunks": chunks,
            "data": None if self.data is None else dataclasses.asdict(self.data),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The setting needs more memory than there is."""

    fate: ClassVar[str] = "out of memory"

    kind: ProbeKind
    settings: Settings
    where: Literal["allocator", "accelerator", "watchdog", "killed", "shared memory"]
    """Who noticed: the CPU allocator, the device's, our watchdog, the kernel, or a full /dev/shm."""
    message: str
    cost_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON scalars and the fate."""
        return {"fate": self.fate, **_shallow(self), "settings": self.settings.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The setting cannot be used here: an exception that is not about memory, or numbers that went wrong."""

    fate: ClassVar[str] = "rejected"

    kind: ProbeKind
    settings: Settings
    phase: Literal["build", "loader", "step", "compile", "numerics"]
    reason: str
    """One sentence for people."""
    error_type: str | None = None
    """Qualified class name of the exception, if there was one."""
    traceback: str | None = None
    size_limit: bool = False
    """A backend refused the size of its operands: not memory, yet a smaller batch may run."""
    cost_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON scalars and the fate."""
        return {"fate": self.fate, **_shallow(self), "settings": self.settings.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The child process ended by itself: signal or exit."""

    fate: ClassVar[str] = "crashed"

    kind: ProbeKind
    settings: Settings
    exit_code: int | None
    """As ``subprocess``: negative for a signal."""
    output_tail: str = ""
    """Last lines of what the child printed."""
    cost_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON scalars and the fate."""
        return {"fate": self.fate, **_shallow(self), "settings": self.settings.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The trial did not answer within its deadline and was killed."""

    fate: ClassVar[str] = "timed out"

    kind: ProbeKind
    settings: Settings
    deadline_s: float
    output_tail: str = ""
    cost_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON scalars and the fate."""
        return {"fate": self.fate, **_shallow(self), "settings": self.settings.to_json()}


Outcome = Measured | OutOfMemory | Rejected | Crashed | TimedOut

_FATES: Mapping[str, type[Outcome]] = {cls.fate: cls for cls in (Measured, OutOfMemory, Rejected, Crashed, TimedOut)}


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """The outcome whose ``to_json`` gave ``data``."""
    fields = {key: value for key, value in data.items() if key != "fate"}
    fields["settings"] = Settings.from_json(fields["settings"])
    if data["fate"] == Measured.fate:
        fields["chunks"] = tuple(Chunk(*chunk) for chunk in fields["chunks"])
        fields["data"] = DataCosts(**fields["data"]) if fields.get("data") else None
        for name in ("sweep", "square_norms"):
            fields[name] = tuple(tuple(pair) for pair in fields.get(name, ()))
        fields["warnings"] = tuple(fields["warnings"])
    return _FATES[data["fate"]](**fields)


def _shallow(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
