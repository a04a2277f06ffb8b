"""One optimizer step on the costliest batches: do settings that were found earlier still run here?"""

from __future__ import annotations

from collections.abc import Callable

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, OutOfMemory, Probe, Rejected
from autotune.settings import Settings

__all__ = ["safe_step", "unsafe_because"]


def safe_step(run: Callable[[Probe], Outcome], settings: Settings, *, deadline_s: float, seed: int = 0) -> Outcome:
    """One optimizer step, workers and compilation left out: neither needs more memory for it.

    Args:
        run: Answers a probe.
        settings: What is to be trusted.
        deadline_s: Seconds after which the step counts as hanging.
        seed: Of the probe.
    """
    bare = settings.replace(num_workers=0, pin_memory=False, compile_mode=None, length_grouped=False)
    return run(Probe(kind="compute", settings=bare, deadline_s=deadline_s, seed=seed, steps=1))


def unsafe_because(outcome: Outcome, hardware: Hardware, limits: Limits, memory_margin: float) -> str | None:
    """Why settings whose step ended so may not be used; None: they may.

    Args:
        outcome: Of ``safe_step``.
        hardware: Of this machine.
        limits: What trials may use of it.
        memory_margin: Share of the memory to leave free.
    """
    if isinstance(outcome, OutOfMemory):
        return f"a step runs out of memory ({next(iter(outcome.message.splitlines()), outcome.where)})"
    if isinstance(outcome, Rejected):
        return f"a step fails: {' '.join(outcome.reason.split()).rstrip('.')}"
    if not isinstance(outcome, Measured):
        return f"a step did not end ({outcome.fate})"
    accelerator = hardware.accelerator
    total = accelerator.memory_bytes if accelerator else None
    peak = outcome.peak_accelerator_bytes if total is not None else None
    peak, total = (outcome.peak_ram_bytes, limits.ram_bytes) if peak is None else (peak, total)
    if peak is not None and total is not None and peak > (1 - memory_margin) * total:
        return f"a step leaves less memory free than memory_margin={memory_margin:g} asks for"
    return None
