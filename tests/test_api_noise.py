"""The bound that the noise scale sets on the search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.api.noise import bounded_by_noise
from autotune.api.options import Options
from autotune.errors import SettingsError
from autotune.measurement import Measured, Outcome, Probe, TimedOut
from autotune.settings import Settings


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What of the candidates is looked at."""

    max_effective_batch_size: int = 256
    base_batch_size: int = 32
    baseline: Settings = dataclasses.field(default_factory=lambda: Settings(batch_size=32))
    facts: Any = dataclasses.field(default_factory=lambda: SimpleNamespace(samples=10_000))


def bounded(answer: Callable[[Probe], Outcome], **options: Any) -> Any:
    """The bound with an answer of the machine's."""
    call = Options(**{"max_effective_batch_size": "noise-scale", "time_budget_s": 100.0, **options})
    return bounded_by_noise(call, Allowed(), answer)  # type: ignore[arg-type]


def measured(noise_scale: float) -> Callable[[Probe], Measured]:
    """An answer with exactly this noise scale."""

    def answer(probe: Probe) -> Measured:
        rows = probe.settings.batch_size or 0
        large = rows * probe.settings.gradient_accumulation_steps
        norms = ((1 + noise_scale / rows, 1 + noise_scale / large),) * 5
        return Measured(
            kind=probe.kind, settings=probe.settings, chunks=(), largest_batch_rows=rows, square_norms=norms, cost_s=9.0
        )

    return answer


@pytest.mark.parametrize(("noise", "bound"), [(100.0, 100), (5.0, 32), (5000.0, 256)])
def test_the_bound_is_the_noise_scale_between_the_base_and_the_usual_bound(noise: float, bound: int) -> None:
    """Never below the base, never above what there would be without it; said with the figure."""
    found = bounded(measured(noise))
    assert found.candidates.max_effective_batch_size == bound
    assert found.noise_scale.b_simple == pytest.approx(noise)
    assert f"bounded at {bound}" in found.said[0]
    assert found.spent_s == 9.0


def test_a_tenth_of_the_budget_goes_into_it() -> None:
    """And a fifth is the most."""
    asked: list[Probe] = []
    bounded(lambda probe: (asked.append(probe), measured(50.0)(probe))[1])
    assert (asked[0].window_s, asked[0].deadline_s) == (10.0, 20.0)


def test_a_measurement_that_fails_leaves_the_bound_and_says_so() -> None:
    """The search goes on as it would have."""
    found = bounded(lambda probe: TimedOut(kind=probe.kind, settings=probe.settings, deadline_s=1.0, cost_s=1.0))
    assert found.candidates.max_effective_batch_size == 256
    assert found.noise_scale is None
    assert "could not be measured: timed out" in found.said[0]


def test_nothing_is_measured_unless_asked_for() -> None:
    """It costs time that the search can use."""

    def never(probe: Probe) -> Outcome:
        raise AssertionError(probe)

    assert bounded(never, max_effective_batch_size=64).noise_scale is None


def test_a_locked_batch_and_a_bound_by_noise_contradict_each_other() -> None:
    """One of the two would be ignored."""
    with pytest.raises(SettingsError, match="noise scale nothing to bound"):
        Options(max_effective_batch_size="noise-scale", effective_batch_size="keep")


def test_an_unknown_rule_for_weight_decay_is_refused() -> None:
    """Before anything starts."""
    with pytest.raises(SettingsError, match="weight_decay_scaling"):
        Options(weight_decay_scaling="linear")  # type: ignore[arg-type]
