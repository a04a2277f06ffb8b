"""The numerics gate: a setting that computes other numbers than fp32 eager does not ship.

Compiled settings are compared with the same ones eager, which are compared with fp32 themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.measurement import COMPARED_ROWS, Measured, Outcome, Probe
from autotune.settings import Settings

__all__ = ["CHANGES_NUMBERS", "MOST_DRIFT", "TOLERANCES", "compared_as", "numerics_refusal"]

TOLERANCES = {"fp32": 1e-3, "tf32": 2e-3, "bf16-mixed": 3e-2, "fp16-mixed": 3e-2}
"""Largest relative difference of the loss on one batch from equal weights. bf16 keeps 8 bits of mantissa (relative
rounding 4e-3), tf32 and fp16 11 (5e-4); a loss averages many rounded terms, so a few units are left as room."""

MOST_DRIFT = 0.1
"""Largest relative excess of the mean loss after some real steps over fp32's: beyond what rounding alone does."""

CHANGES_NUMBERS = ("precision", "channels_last", "compile_mode", "compile_scope")
"""Knobs by which a setting may compute other numbers than another."""
_WINDOW_S = 2.0


def compared_as(settings: Settings, baseline: Settings) -> Settings:
    """The settings that stand for all which compute the same numbers as ``settings``.

    Args:
        settings: About to be compared.
        baseline: Gives the knobs that do not change numbers.
    """
    numbers = {name: getattr(settings, name) for name in CHANGES_NUMBERS}
    rows = settings.batch_size
    if rows is not None and settings.compile_mode is None:  # the baseline's batch is known to fit in fp32
        rows = min(baseline.batch_size or rows, COMPARED_ROWS)
    alone = baseline.replace(num_workers=0, pin_memory=False, length_grouped=False, batch_size=rows, **numbers)
    return alone.replace(gradient_accumulation_steps=1, activation_checkpointing=settings.activation_checkpointing)


def numerics_refusal(
    settings: Settings, baseline: Settings, *, run: Callable[[Probe], Outcome], deadline_s: float
) -> str | None:
    """Why ``settings`` may not ship, or None; asks nothing if no knob that changes numbers differs."""
    if not set(CHANGES_NUMBERS) & set(baseline.differences(settings)):
        return None
    outcome = run(Probe(kind="numerics", settings=settings, window_s=_WINDOW_S, deadline_s=deadline_s))
    compiled = settings.compile_mode is not None
    what = (
        f"{settings.precision}{', channels_last' if settings.channels_last else ''}{', compiled' if compiled else ''}"
    )
    against = "the same settings eager" if compiled else "fp32"
    if not isinstance(outcome, Measured):
        return f"{what}: the comparison with {against} did not end ({outcome.fate}), so it is not used."
    if outcome.loss_error is None:
        return f"{what}: loss or gradients are not finite, so it is not used."
    tolerance = TOLERANCES[settings.precision]
    if outcome.loss_error > tolerance:
        return f"{what}: the loss differs from {against} by {outcome.loss_error:.2%} (allowed {tolerance:.2%})."
    if outcome.loss_drift is not None and outcome.loss_drift > MOST_DRIFT:
        return (
            f"{what}: after {outcome.drift_steps} steps the loss is {outcome.loss_drift:.0%} above that of {against}."
        )
    return None
