"""What is printed: one table, what is to be said of each peer, and ours against the best of the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune import Settings
from benchmarks.probing import described
from benchmarks.side_by_side.answers import PEERS, Answer
from benchmarks.side_by_side.laps import Driven, Laps, Standing, paired

__all__ = ["IDENTITY", "Field", "best_other", "field_of", "in_race", "lines"]

IDENTITY = "1 by identity: the same settings"

_HEAD = (
    "| peer | samples/s | ratio to the defaults: median (min–max), rounds | tuning: seconds, steps | claimed → raced "
    "| answer |",
    "|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Who races with what: answers that are the same settings share an entry."""

    defaults: Settings
    answers: Mapping[str, Answer]
    settings: Mapping[str, Settings]
    """Of each peer that answered."""
    entries: Mapping[str, Settings]
    """Distinct settings other than the defaults, by the first peer that has them."""

    def entry_of(self, peer: str) -> str | None:
        """The entry that stands for a peer; None: the defaults do."""
        wanted = self.settings[peer]
        return next((name for name, settings in self.entries.items() if settings == wanted), None)

    def sharing(self, peer: str) -> list[str]:
        """Labels of the others with the same settings."""
        same = [one for one, settings in self.settings.items() if settings == self.settings[peer] and one != peer]
        return [PEERS[one].label for one in same]


def field_of(defaults: Settings, answers: Mapping[str, Answer], settings: Mapping[str, Settings]) -> Field:
    """The field of a race."""
    entries: dict[str, Settings] = {}
    for peer, one in settings.items():
        if one != defaults and one not in entries.values():
            entries[peer] = one
    return Field(defaults=defaults, answers=answers, settings=settings, entries=entries)


def best_other(field: Field, standings: Mapping[str, Standing]) -> str | None:
    """The peer with the highest median ratio, ours left out; the defaults count as 1."""

    def ratio(peer: str) -> float:
        entry = field.entry_of(peer)
        return 1.0 if entry is None else (standings[entry].median or 0.0)

    return max((peer for peer in field.settings if peer != "ours"), key=ratio, default=None)


def lines(field: Field, laps: Laps) -> Iterator[str]:
    """The table, then what is to be said of each peer."""
    yield from _HEAD
    for peer in PEERS:
        if peer in field.answers:
            yield _row(peer, field, laps)
    yield ""
    for peer, answer in field.answers.items():
        yield from _said(peer, answer, field)
    others = [lap.others_cores for lap in laps.laps if lap.others_cores is not None]
    if others:
        yield f"Others used {statistics.median(others):.2f} cores in the median lap, {max(others):.2f} at most."


def in_race(field: Field, laps: Laps, other: str) -> str:
    """Ours over ``other`` by the rounds of the race of all."""
    ours, theirs = field.entry_of("ours"), field.entry_of(other)
    if field.settings["ours"] == field.settings[other]:
        return IDENTITY
    found = paired(_standing(laps, ours), _standing(laps, theirs))
    return found.text("round") if found else "no round that both drove"


def _standing(laps: Laps, entry: str | None) -> Standing:
    """The defaults stand at 1 in every round."""
    if entry is not None:
        return laps.standings[entry]
    rate = statistics.median(laps.default_rates)
    return Standing(driven=[Driven(number, 1.0, rate) for number in sorted({lap.round for lap in laps.laps})])


def _row(peer: str, field: Field, laps: Laps) -> str:
    answer = field.answers[peer]
    if peer not in field.settings:
        return f"| {PEERS[peer].label} | – | **{answer.fate}** | {_cost(answer)} | – | {answer.error} |"
    entry = field.entry_of(peer)
    standing = _standing(laps, entry)
    rate = f"{standing.samples_per_s:.0f}" if standing.samples_per_s else "–"
    ratio = "1 by identity"
    if entry is not None:
        ratio = f"{_spread(standing)}{f'; left: {standing.left}' if standing.left else ''}"
    answered = described(field.settings[peer], field.defaults)
    return f"| {PEERS[peer].label} | {rate} | {ratio} | {_cost(answer)} | {_claim(answer, standing)} | {answered} |"


def _spread(standing: Standing) -> str:
    ratios = standing.ratios
    if not ratios:
        return "–"
    left_out = len(standing.driven) - len(ratios)
    disturbed = f" (and {left_out} disturbed)" if left_out else ""
    return f"{standing.median:.2f} ({min(ratios):.2f}–{max(ratios):.2f}), {len(ratios)}{disturbed}"


def _cost(answer: Answer) -> str:
    if answer.tuning_s is None:
        spent = "–" if answer.process_s is None else f"{answer.process_s:.0f} s, in vain"
        return "none" if answer.fate == "answered" else spent
    steps = "steps not known" if answer.steps is None else f"{answer.steps} steps"
    return f"{answer.tuning_s:.0f} s, {steps}"


def _claim(answer: Answer, standing: Standing) -> str:
    if answer.claimed_ratio is not None and standing.median is not None:
        return f"{answer.claimed_ratio:.2f} → {standing.median:.2f}"
    if answer.claimed_samples_per_s is not None and standing.samples_per_s is not None:
        return f"{answer.claimed_samples_per_s:.0f} → {standing.samples_per_s:.0f} samples/s"
    return "no claim"


def _said(peer: str, answer: Answer, field: Field) -> Iterator[str]:
    called = f"`{answer.call}`" + (f" ({answer.version})" if answer.version else "")
    said = [called] if answer.call else []
    said += [f"trials: {answer.trials}"] if answer.trials is not None else []
    said += [note.rstrip(".") for note in answer.notes]
    if peer in field.settings and field.entry_of(peer) and field.sharing(peer):
        said.append(f"same settings as {', '.join(field.sharing(peer))}")
    if said:
        yield f"- {PEERS[peer].label}: {'; '.join(said)}."
