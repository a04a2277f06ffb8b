"""The numerics gate: a setting that computes other numbers than fp32 eager does not ship."""

from __future__ import annotations

from collections.abc import Callable

from autotune.measurement import Measured, Outcome, Probe
from autotune.settings import Settings

__all__ = ["CHANGES_NUMBERS", "MOST_DRIFT", "TOLERANCES", "numerics_refusal"]

TOLERANCES = {"fp32": 1e-3, "tf32": 2e-3, "bf16-mixed": 3e-2, "fp16-mixed": 3e-2}
"""Largest relative difference of the loss on one batch from equal weights. bf16 keeps 8 bits of mantissa (relative
rounding 4e-3), tf32 and fp16 11 (5e-4); a loss averages many rounded terms, so a few units are left as room."""

MOST_DRIFT = 0.1
"""Largest relative excess of the mean loss after some real steps over fp32's: beyond what rounding alone does."""

CHANGES_NUMBERS = ("precision", "channels_last", "compile_mode", "compile_scope")
"""Knobs by which a setting may compute other numbers than another."""
_WINDOW_S = 2.0


def numerics_refusal(
    settings: Settings, baseline: Settings, *, run: Callable[[Probe], Outcome], deadline_s: float
) -> str | None:
    """Why ``settings`` may not ship, or None; asks nothing if no knob that changes numbers differs."""
    if not set(CHANGES_NUMBERS) & set(baseline.differences(settings)):
        return None
    outcome = run(Probe(kind="numerics", settings=settings, window_s=_WINDOW_S, deadline_s=deadline_s))
    what = f"{settings.precision}{', channels_last' if settings.channels_last else ''}"
    if not isinstance(outcome, Measured):
        return f"{what}: the comparison with fp32 did not end ({outcome.fate}), so it is not used."
    if outcome.loss_error is None:
        return f"{what}: loss or gradients are not finite, so it is not used."
    tolerance = TOLERANCES[settings.precision]
    if outcome.loss_error > tolerance:
        return f"{what}: the loss differs from fp32 by {outcome.loss_error:.2%} (allowed {tolerance:.2%})."
    if outcome.loss_drift is not None and outcome.loss_drift > MOST_DRIFT:
        return f"{what}: after {outcome.drift_steps} steps the loss is {outcome.loss_drift:.0%} above fp32's."
    return None
