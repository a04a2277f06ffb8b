"""A task opened on this machine, the lock on its device, and whether others are at work there."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from autotune.config.shared_machine import OTHERS_CORES
from autotune.errors import BusyError
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, Probe
from autotune.profiles import user_folder
from autotune.sandbox import Sandbox
from autotune.settings import Settings
from autotune.task import Task

__all__ = ["Here", "device_lock", "opened", "others_at_work"]

_WAIT_S = 4 * 3600.0  # a night's worth of re-tunes before this one
_LOOK_S = 1.0
_LOOK_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A task, ready to be measured on this machine."""

    hardware: Hardware
    limits: Limits
    fingerprint: str
    """Of the task."""
    run: Callable[[Probe], Outcome]
    """Answers probes."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """What goes into the task's fingerprint, part by part; empty: not known."""

    @property
    def record(self) -> dict[str, Any]:
        """The machine as a config's document has it."""
        return {"fingerprint": self.hardware.fingerprint, **self.hardware.to_json()}


@contextmanager
def opened(task: Task) -> Iterator[Here]:
    """Opens a task in a process of its own.

    Args:
        task: What is trained.
    """
    hardware = Hardware.detect(device=task.device)
    limits = Limits.of(hardware)
    with Sandbox(task, hardware, limits) as sandbox:
        facts = sandbox.describe()
        yield Here(
            hardware=sandbox.hardware,
            limits=limits,
            fingerprint=facts.fingerprint,
            run=sandbox.run,
            parts=facts.fingerprint_parts,
        )


@contextmanager
def device_lock(task: Task, *, folder: Path | None = None, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Holds the device that a task trains on, so that two re-tunes of one user wait for each other.

    Args:
        task: What is trained.
        folder: Where locks lie; None: the user's folder.
        wait_s: Longest wait for another re-tune.

    Raises:
        BusyError: The other one did not end in that time.
    """
    folder = folder or user_folder() or Path(tempfile.gettempdir()) / "torch-autotune"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = _device_name(Hardware.detect(device=task.device))
    try:
        with FileLock(folder / f".device-{name}.lock", timeout=wait_s):
            yield
    except Timeout as error:
        raise BusyError(
            f"Another re-tune has held the device {name} for more than {wait_s:g} s.", "Look whether it hangs."
        ) from error


def others_at_work(here: Here, settings: Settings) -> str | None:
    """Who else uses the device or our cores, in one clause; None: nobody, as far as that can be seen.

    Args:
        here: The task on this machine.
        settings: What to step with while looking: others show by the time they take from us.
    """
    accelerator = here.hardware.accelerator
    if accelerator is not None and accelerator.other_processes:
        return f"{accelerator.other_processes} other processes are on the device"
    # On all cores: others on a core that we leave alone would be seen by nobody.
    bare = settings.replace(num_workers=0, pin_memory=False, compile_mode=None, num_threads=here.hardware.cores)
    outcome = here.run(Probe(kind="joint", settings=bare, window_s=_LOOK_S, deadline_s=_LOOK_DEADLINE_S))
    cores = outcome.others_cores if isinstance(outcome, Measured) else None
    if cores is not None and cores > OTHERS_CORES:
        return f"other processes use {cores:.1f} of the cores"
    return None


def _device_name(hardware: Hardware) -> str:
    found = hardware.accelerator
    name = "cpu" if found is None else found.uuid or f"{found.type}-{found.index}"
    return re.sub(r"[^A-Za-z0-9.-]", "_", name)
