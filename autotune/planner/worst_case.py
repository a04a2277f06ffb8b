"""What the costliest batches of the data do to a setting: a batch that a whole epoch does not survive is not raced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from autotune.measurement import DataCosts, Measured, Outcome, OutOfMemory, Probe, Rejected
from autotune.planner.ledger import Ledger
from autotune.planner.pace import Pace
from autotune.settings import Settings
from autotune.space import Candidates

__all__ = ["WorstCases"]

_STEPS = 2  # the first allocates the optimizer's state
_LEAST_S = 1.0  # a probe that is given less says nothing
_WORTH_SAYING = 0.2  # of the elements of a batch are padding


class _Search(Protocol):
    candidates: Candidates
    pace: Pace
    ledger: Ledger
    warnings: list[str]

    @property
    def best(self) -> Measured: ...
    def until_end_s(self) -> float: ...


class WorstCases:
    """Two steps on the costliest batches of a setting, asked once for all settings that compute the same.

    Loading plays no part, and nothing is compiled for it: compiled code needs no more memory, and each shape would be
    compiled anew. Where all batches are alike, nothing is asked.

    Args:
        search: What is looked at, and where refusals are written down.
        run: Answers a probe, and notes it as no measure of speed.
        fits: Whether a measured setting leaves the memory margin free.
        seed: Of the probes.
    """

    def __init__(
        self, search: _Search, run: Callable[[Probe], Outcome], fits: Callable[[Measured], bool], *, seed: int = 0
    ) -> None:
        self._search, self._run, self._fits, self._seed = search, run, fits, seed
        self._known: dict[Settings, Outcome] = {}
        self.data: DataCosts | None = None
        """What the samples cost, once a setting was looked at; None before, and where all are alike."""

    def look_at_baseline(self) -> None:
        """Reads the samples, and says what people should know of their data and batches."""
        candidates = self._search.candidates
        refusal = self.refusal(candidates.baseline)
        if refusal is not None:
            self._search.warnings.append(f"Your own setting may not get through an epoch: {refusal}")
        data = self.data
        if data is None or data.padding_share is None or data.padding_share < _WORTH_SAYING:
            return
        share = f"About {data.padding_share:.0%} of a batch of {candidates.baseline.batch_size} is padding"
        lengths = f"samples are {data.mean_length:,.0f} long on average, the longest {data.longest:,}"
        dropped = candidates.dropped.get("length_grouped")
        then = f" Batches of samples of similar length were not tried: {dropped}." if dropped else ""
        self._search.warnings.append(f"{share}: {lengths}.{then}")

    def breaks(self, outcome: Outcome) -> bool:
        """Whether a grown batch that the search is about to build on does not survive; it is banned then."""
        settings, search = outcome.settings, self._search
        grown = (settings.batch_size or 0) > (search.candidates.baseline.batch_size or 0)
        if not grown or not isinstance(outcome, Measured) or outcome.kind not in ("joint", "compute"):
            return False
        if outcome.kind == "joint" and settings != search.best.settings:
            return False
        refusal = self.refusal(settings)
        if refusal is None:
            return False
        search.ledger.ban(settings, refusal)
        if refusal not in search.warnings:
            search.warnings.append(refusal)
        return True

    def too_large(self, settings: Settings) -> bool:
        """Whether a batch of at most this size ran out of memory under settings that need no more of it."""
        bare, size = _bare(settings), settings.batch_size or 0
        return any(
            isinstance(outcome, OutOfMemory)
            and (known.batch_size or 0) <= size
            and known.replace(batch_size=bare.batch_size) == bare
            for known, outcome in self._known.items()
        )

    def refusal(self, settings: Settings) -> str | None:
        """Why ``settings`` may not ship, or None."""
        search = self._search
        if not search.candidates.facts.ragged or settings.batch_size is None:
            return None
        what = f"batch {settings.batch_size}: two steps on the largest samples of the data"
        # Half of what is left at most: however many of these hang, the budget holds.
        outcome = self._outcome(settings, min(search.pace.trial_cap_s, search.until_end_s() / 2))
        if outcome is None:
            return f"{what} were not run: no time was left."
        if isinstance(outcome, OutOfMemory):
            return f"{what} run out of memory ({next(iter(outcome.message.splitlines()), outcome.where)})."
        if isinstance(outcome, Rejected) and not outcome.size_limit:  # the batch is odd, which is not the size's fault
            said = f"{what} raised an error ({outcome.reason.rstrip('.')}): whether they fit in memory is not known."
            if said not in search.warnings:
                search.warnings.append(said)
            return None
        if not isinstance(outcome, Measured):
            return f"{what} did not end ({outcome.fate})."
        return None if self._fits(outcome) else f"{what} leave less memory free than memory_margin asks for."

    def _outcome(self, settings: Settings, deadline_s: float) -> Outcome | None:
        bare = _bare(settings)
        if bare in self._known:
            return self._known[bare]
        if deadline_s < _LEAST_S:
            return None
        probe = Probe(kind="compute", settings=bare, deadline_s=deadline_s, seed=self._seed, steps=_STEPS)
        outcome = self._known[bare] = self._run(probe)
        if isinstance(outcome, Measured) and self.data is None:
            self.data = outcome.data
        return outcome


def _bare(settings: Settings) -> Settings:
    """As far as it decides about the memory of a step."""
    return settings.replace(num_workers=0, pin_memory=False, compile_mode=None, length_grouped=False, num_threads=None)
