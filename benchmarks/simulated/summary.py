"""What many runs say together: the tables that ``replay.py`` prints."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from benchmarks.simulated.trace import Score

__all__ = ["HORIZON_S", "SEARCH_ROWS", "check_table", "loss_tables", "restricted_mean_s", "score_table", "spent_table"]

HORIZON_S = 300.0
_SLOWER = 0.98
_FAR = 0.9
_KNOB_MATTERS = 0.05

Group = tuple[str, Callable[[Score], bool]]
GROUPS: tuple[Group, ...] = (("GPU", lambda one: one.has_gpu), ("CPU", lambda one: not one.has_gpu))

SEARCH_ROWS = {
    "random": {"GPU": (".26/.05", ".45/.08", ".67/.26"), "CPU": (".63/.05", ".51/.04", ".62/.22")},
    "tpe": {"GPU": (".26/.05", ".45/.08", ".67/.26"), "CPU": (".63/.05", ".51/.04", ".62/.22")},
}
"""The study that this model is to repeat: score median/p10 at 60, 120, 300 s over 20 seeds of set 0, without a race."""


def score_table(scores: Sequence[Score]) -> Iterator[str]:
    """Score by budget, runs slower than the baseline, time to 90 and 97 %, failures and probes."""
    budgets = sorted({one.budget_s for one in scores})
    heads = [f"{group} {budget:.0f} s" for group, _ in GROUPS for budget in budgets]
    yield "| strategy | " + " | ".join(heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    for strategy, some in _by(scores, lambda one: one.strategy):
        cells = [
            _median_p10([one.score for one in some if belongs(one) and one.budget_s == budget])
            for _, belongs in GROUPS
            for budget in budgets
        ]
        yield f"| {strategy} | " + " | ".join(cells) + " |"
    yield ""
    yield from _speed_table(scores)


def _speed_table(scores: Sequence[Score]) -> Iterator[str]:
    longest = max(one.budget_s for one in scores)
    heads = ["runs", "> 2 % slower than baseline", f"to 90 % in {longest:.0f} s", "to 97 %", "picks >= 90 %"]
    yield "| strategy | " + " | ".join((*heads, "OOMs a run", "probes a run", "process starts")) + " |"
    yield "|---" * 9 + "|"
    for strategy, some in _by(scores, lambda one: one.strategy):
        for group, belongs in GROUPS:
            found = [one for one in some if belongs(one)]
            long = [one for one in found if one.budget_s == longest]
            if found:
                slower = sum(one.against_baseline < _SLOWER for one in found)
                cells = [
                    f"{len(found)}",
                    f"{slower} ({slower / len(found):.1%})",
                    _reaching(long, 0.9),
                    _reaching(long, 0.97),
                    f"{statistics.fmean(one.score >= _FAR for one in long):.0%}",
                    f"{statistics.fmean(one.out_of_memory for one in found):.2f}",
                    f"{statistics.fmean(sum(one.probes.values()) for one in found):.1f}",
                    f"{statistics.fmean(one.process_starts for one in found):.1f}",
                ]
                yield f"| {strategy}, {group} | " + " | ".join(cells) + " |"


def restricted_mean_s(scores: Sequence[Score], share: float) -> float:
    """Mean time until what is held for the best truly reaches a share of the optimum; never counts as the horizon."""
    reached = [one.seconds_to(share) for one in scores]
    return statistics.fmean(HORIZON_S if at_s is None else min(at_s, HORIZON_S) for at_s in reached)


def spent_table(scores: Sequence[Score]) -> Iterator[str]:
    """Where the simulated budget went, in per cent of it."""
    names = sorted({name for one in scores for name in one.spent_s})
    names = sorted(names, key=lambda name: -sum(one.spent_s.get(name, 0.0) for one in scores))
    yield "| strategy, budget | " + " | ".join((*names, "not used")) + " |"
    yield "|---" * (len(names) + 2) + "|"
    for strategy, some in _by(scores, lambda one: one.strategy):
        for group, belongs in GROUPS:
            for budget in sorted({one.budget_s for one in some}):
                found = [one for one in some if belongs(one) and one.budget_s == budget]
                if found:
                    shares = [statistics.fmean(one.spent_s.get(name, 0.0) / budget for one in found) for name in names]
                    cells = [f"{share:.0%}" for share in (*shares, 1 - sum(shares))]
                    yield f"| {strategy}, {group} {budget:.0f} s | " + " | ".join(cells) + " |"


def loss_tables(scores: Sequence[Score]) -> Iterator[str]:
    """Where one strategy loses: by kind of task, by what became of the answer, and by knob."""
    budgets = sorted({one.budget_s for one in scores})
    heads = [f"{budget:.0f} s: picked, believed" for budget in budgets]
    yield "| task | " + " | ".join(heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    for kind, some in _by(scores, lambda one: one.kind):
        cells = []
        for budget in budgets:
            found = [one for one in some if one.budget_s == budget]
            picked, believed = (statistics.median(values) for values in _pairs(found))
            cells.append(f"{picked:.2f}, {believed:.2f}")
        yield f"| {kind} | " + " | ".join(cells) + " |"
    yield ""
    yield from _reason_table(scores, budgets)
    yield ""
    yield from _knob_table(scores, budgets)


def _pairs(scores: Sequence[Score]) -> tuple[list[float], list[float]]:
    return [one.score for one in scores], [one.believed for one in scores]


def _reason_table(scores: Sequence[Score], budgets: Sequence[float]) -> Iterator[str]:
    """What became of the best that was seen."""
    heads = [f"{group} {budget:.0f} s" for group, _ in GROUPS for budget in budgets]
    yield "| the answer: share of runs, mean score lost by it | " + " | ".join(heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    for reason, _ in Counter(_reason(one) for one in scores).most_common():
        cells = []
        for _, belongs in GROUPS:
            for budget in budgets:
                found = [one for one in scores if belongs(one) and one.budget_s == budget]
                some = [one for one in found if _reason(one) == reason]
                lost = sum(one.believed - one.score for one in some) / max(1, len(found))
                cells.append(f"{len(some) / max(1, len(found)):.0%}, {round(lost, 2) + 0.0:.2f}")
        yield f"| {reason} | " + " | ".join(cells) + " |"


def _reason(one: Score) -> str:
    starts = {
        "won the race": "won its race",
        "baseline kept: nothing else could": "baseline: nothing else was tried",
        "baseline kept: none of the": "baseline: nothing else was found faster (or let through)",
        "baseline kept: not raced": "baseline: no time for five rounds",
        "baseline kept: the candidate failed": "baseline: the candidate failed in its race",
        "baseline kept: the baseline failed": "baseline: the baseline failed in its race",
        "baseline kept: the fastest other": "baseline: the gain was not certain",
        "not tuned": "baseline: not even that was measured",
    }
    return next((text for start, text in starts.items() if one.why.startswith(start)), "baseline: " + one.why[:40])


def _knob_table(scores: Sequence[Score], budgets: Sequence[float]) -> Iterator[str]:
    """Of runs whose best seen is far from the optimum: which knob alone would gain more than 5 %, and how much."""
    longest = budgets[-1]
    yield f"| knob (best seen below 90 % at {longest:.0f} s) | GPU: runs, median gain | CPU: runs, median gain |"
    yield "|---|---|---|"
    far = [one for one in scores if one.believed < _FAR and one.budget_s == longest]
    names = sorted({name for one in far for name in one.differs})
    rows: list[tuple[int, str]] = []
    for name in names:
        cells, count = [], 0
        for _, belongs in GROUPS:
            some = [one for one in far if belongs(one)]
            gains = [one.differs.get(name, 0.0) for one in some]
            gains = [gain for gain in gains if gain > _KNOB_MATTERS]
            count += len(gains)
            cells.append(f"{len(gains)} of {len(some)}, {statistics.median(gains):.0%}" if gains else "–")
        rows.append((count, f"| {name} | " + " | ".join(cells) + " |"))
    yield from (text for count, text in sorted(rows, reverse=True) if count)


def check_table(scores: Sequence[Score]) -> Iterator[str]:
    """The rows to be repeated beside those found, and the largest difference of each."""
    yield "| strategy | | 60 s | 120 s | 300 s | largest difference |"
    yield "|---" * 6 + "|"
    for strategy, rows in SEARCH_ROWS.items():
        for group, belongs in GROUPS:
            found, apart = [], 0.0
            for budget, text in zip((60.0, 120.0, 300.0), rows[group], strict=True):
                some = [
                    one.score for one in scores if one.strategy == strategy and belongs(one) and one.budget_s == budget
                ]
                found.append(_median_p10(some))
                own = (statistics.median(some), float(np.quantile(some, 0.1)))
                apart = max(apart, *(abs(one - float(other)) for one, other in zip(own, text.split("/"), strict=True)))
            yield f"| {strategy}, {group} | to repeat | " + " | ".join(rows[group]) + " | |"
            yield "| | found | " + " | ".join(found) + f" | {apart:.2f} |"


def _by(scores: Iterable[Score], key: Callable[[Score], str]) -> list[tuple[str, list[Score]]]:
    groups: dict[str, list[Score]] = defaultdict(list)
    for one in scores:
        groups[key(one)].append(one)
    return list(groups.items())


def _median_p10(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):.2f}/{float(np.quantile(values, 0.1)):.2f}".replace("0.", ".")


def _reaching(scores: Sequence[Score], share: float) -> str:
    reached = [one for one in scores if one.seconds_to(share) is not None]
    return f"{restricted_mean_s(scores, share):.0f} s ({len(reached) / len(scores):.0%})"
