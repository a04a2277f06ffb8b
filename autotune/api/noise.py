"""``max_effective_batch_size="noise-scale"``: how large a batch still pays bounds how large a batch is tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from autotune.api.options import Options
from autotune.config.measuring import noise_probe, noise_scale_of
from autotune.learning_rate import NoiseScale
from autotune.measurement import Measured, Outcome, Probe, Rejected
from autotune.space import Candidates

__all__ = ["NoiseBound", "bounded_by_noise"]

_WINDOW_SHARE, _DEADLINE_SHARE = 0.1, 0.2  # of the budget: it is no search


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBound:
    """What the noise scale says about the search."""

    candidates: Candidates
    noise_scale: NoiseScale | None = None
    said: tuple[str, ...] = ()
    spent_s: float = 0.0


def bounded_by_noise(call: Options, candidates: Candidates, run: Callable[[Probe], Outcome]) -> NoiseBound:
    """Where that is asked for, bounds the effective batch by the noise scale at the weights as handed over.

    It never goes below the baseline's own batch, nor above the bound there would be without it; a batch that the
    caller locked stays.

    Args:
        call: Whether it is asked for, the time budget, the seed.
        candidates: What may be tried otherwise.
        run: Answers the probe.
    """
    if not call.bounded_by_noise:
        return NoiseBound(candidates=candidates)
    probe = noise_probe(
        candidates.baseline,
        candidates.facts,
        window_s=_WINDOW_SHARE * call.time_budget_s,
        deadline_s=_DEADLINE_SHARE * call.time_budget_s,
    )
    outcome = run(dataclasses.replace(probe, seed=call.seed))
    most = candidates.max_effective_batch_size
    if not isinstance(outcome, Measured):
        why = f" ({outcome.reason})" if isinstance(outcome, Rejected) else ""
        said = f"The noise scale could not be measured: {outcome.fate}{why}. The effective batch may grow to {most:,}."
        return NoiseBound(candidates=candidates, said=(said,), spent_s=outcome.cost_s)
    noise = noise_scale_of(outcome)
    base = candidates.baseline.effective_batch_size or candidates.base_batch_size
    useful = noise.useful_batch(base)
    bound = most if useful is None else max(base, min(most, useful))
    said = f"The effective batch was bounded at {bound:,} by the noise scale. {noise}"
    return NoiseBound(
        candidates=dataclasses.replace(candidates, max_effective_batch_size=bound),
        noise_scale=noise,
        said=(said,),
        spent_s=outcome.cost_s,
    )
