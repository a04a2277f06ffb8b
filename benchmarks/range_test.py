"""Range-test suggestions on noisy synthetic loss curves whose knee is known: slope against log lr, and against lr.

    python benchmarks/range_test.py [--curves 200] [--seed 0] [--json]

A curve is flat, falls as a sigmoid in log10(lr), and blows up; its knee is the middle of the fall, the steepest place.
Knee, width of the fall, place of the blow-up, level and noise are drawn at random: noise is 2 to 15 % of the fall, on
each of 100 points from 1e-7 to 10. A suggestion is right within a factor 3 of the knee, either way. "three sweeps" is
what ``find_lr`` gives: the median of three noisy sweeps of the same curve.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.learning_rate import LrCurve, suggest
from autotune.learning_rate.range_test import linear_slope_suggestion, steepest_rate

POINTS, LOW, HIGH = 100, 1e-7, 10.0
RIGHT_WITHIN = 3.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A noiseless loss curve."""

    knee: float
    width_decades: float
    blow_up: float
    """Learning rate at which the loss has risen by one fall again."""
    start: float
    fall: float
    noise: float

    def loss(self, rate: float, draw: random.Random) -> float:
        """One noisy loss."""
        fallen = self.fall / (1 + math.exp(-(math.log10(rate) - math.log10(self.knee)) / (self.width_decades / 4)))
        risen = self.fall * (rate / self.blow_up) ** 2
        return self.start - fallen + risen + draw.gauss(0.0, self.noise * self.fall)


def shape(draw: random.Random) -> Shape:
    """A curve such as trainings show, drawn at random."""
    knee = 10 ** draw.uniform(-4.0, -1.5)
    start = draw.uniform(1.0, 7.0)
    return Shape(
        knee=knee,
        width_decades=draw.uniform(0.8, 2.0),
        blow_up=knee * 10 ** draw.uniform(1.0, 2.0),
        start=start,
        fall=start * draw.uniform(0.2, 0.8),
        noise=draw.uniform(0.02, 0.15),
    )


def sweep(of: Shape, draw: random.Random) -> LrCurve:
    """A sweep that ends where the loss is four times its start."""
    rates, losses = [], []
    for index in range(POINTS):
        rates.append(LOW * (HIGH / LOW) ** (index / (POINTS - 1)))
        losses.append(of.loss(rates[-1], draw))
        if losses[-1] > 4 * of.start:
            break
    return LrCurve(tuple(rates), tuple(losses))


def ratios(curves: int, seed: int) -> dict[str, list[float | None]]:
    """Suggestion over knee for each rule and curve; None where a rule suggests nothing."""
    draw = random.Random(seed)
    found: dict[str, list[float | None]] = {
        "log slope, one sweep": [],
        "log slope, three sweeps": [],
        "linear slope": [],
    }
    for _ in range(curves):
        of = shape(draw)
        sweeps = [sweep(of, draw) for _ in range(3)]
        suggested = {
            "log slope, one sweep": steepest_rate(sweeps[0]),
            "log slope, three sweeps": suggest(sweeps).suggestion,
            "linear slope": linear_slope_suggestion(sweeps[0]),
        }
        for rule, rate in suggested.items():
            found[rule].append(None if rate is None else rate / of.knee)
    return found


def right(found: Sequence[float | None]) -> int:
    """How many suggestions are within the factor."""
    return sum(one is not None and 1 / RIGHT_WITHIN <= one <= RIGHT_WITHIN for one in found)


def main() -> None:
    """Prints, for each rule, how many suggestions are right and how far off they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    found = ratios(arguments.curves, arguments.seed)
    if arguments.json:
        print(json.dumps({"within": RIGHT_WITHIN, "suggestion over knee": found}))
        return
    for rule, off in found.items():
        some = sorted(one for one in off if one is not None)
        middle = (
            f"median {statistics.median(some):.3g}, {some[len(some) // 20]:.2g} to {some[-1 - len(some) // 20]:.2g}"
        )
        print(f"{rule:24} {right(off):4} of {len(off)} within a factor {RIGHT_WITHIN:g} of the knee; over it: {middle}")


if __name__ == "__main__":
    main()
