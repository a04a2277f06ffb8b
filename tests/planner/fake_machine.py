"""A machine whose speed is a formula and whose clock passes only while it works."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from autotune.hardware import Accelerator, Limits
from autotune.measurement import Chunk, Measured, Outcome, Probe
from autotune.settings import Settings
from autotune.space import Candidates, Space

CARD = Accelerator(
    type="cuda",
    name="a card",
    index=0,
    count=1,
    memory_bytes=2**36,
    free_bytes=2**36,
    capability=(8, 0),
    driver=None,
    uuid=None,
    bf16_native=True,
    other_processes=0,
    exclusive_process=False,
)
"""A card that has everything."""


class FakeMachine:
    """Answers probes from ``rate``; an outcome function for a setting takes precedence."""

    def __init__(
        self,
        rate: Callable[[Settings], float],
        *,
        fate: Callable[[Probe], Outcome | None] = lambda probe: None,
        trial_s: float = 2.0,
        compute: Callable[[Settings], float] | None = None,
        loader: Callable[[Settings], float] = lambda settings: 1000.0,
        wait_share: float = 0.5,
    ) -> None:
        self.now = 0.0
        self.rate, self.fate, self.trial_s = rate, fate, trial_s
        self.wait_share = wait_share
        self.compute, self.loader = compute or rate, loader
        self.probes: list[Probe] = []

    def clock(self) -> float:
        return self.now

    def run(self, probe: Probe) -> Outcome:
        self.probes.append(probe)
        self.now += min(self.trial_s, probe.deadline_s)
        failed = self.fate(probe)
        if failed is not None:
            return failed
        if probe.kind == "numerics":
            return Measured(kind="numerics", settings=probe.settings, chunks=(), first_loss=1.0, loss_error=0.0)
        rows = probe.settings.batch_size or 1
        rates = {"compute": self.compute, "loader": self.loader}
        rate = rates.get(probe.kind, self.rate)(probe.settings)
        cut = probe.cut_below_samples_per_s is not None and rate < probe.cut_below_samples_per_s
        return Measured(
            kind=probe.kind,
            settings=probe.settings,
            chunks=(Chunk(rows, rows / rate, self.wait_share * rows / rate),) * 2,
            cost_s=self.trial_s,
            start_s=0.2,
            warmup_s=0.2,
            largest_batch_rows=rows,
            cut=cut,
        )


def candidates(baseline: Settings | None = None, **more: Any) -> Candidates:
    """Candidates of an image task on a CPU unless ``more`` says otherwise."""
    baseline = baseline or Settings(batch_size=32, num_threads=2)
    arguments: dict[str, Any] = {
        "baseline": baseline,
        "baseline_given": False,
        "base_batch_size": 32,
        "max_batch_size": 10_000,
        "max_effective_batch_size": 256,
        "locked": False,
        "dropped": {},
        "values": {"channels_last": (True,), "optimizer_implementation": ("fused",), "precision": ("bf16-mixed",)},
        "space": Space(),
        "facts": SimpleNamespace(
            sample_bytes=100,
            samples=10_000,
            ragged=False,
            batch_tensors=2,
            worker_copy_bytes=0,
            sample_tensors=0,
            one_worker_only=None,
            caller={"sharing_strategy": "file_descriptor"},
        ),
        "limits": Limits(ram_bytes=2**33, shm_bytes=2**32, open_files=None),
    }
    return Candidates(**{**arguments, **more})


def hardware(cores: int = 2, accelerator: Any = None) -> Any:
    """As much of a Hardware as the planner looks at."""
    return SimpleNamespace(cores=cores, accelerator=accelerator)
