"""The interleaved race of candidates against the baseline, and its one rule of decision.

A machine drifts: other processes, clock speeds, page cache. So rates taken minutes apart say little, and the two
settings are run in turns instead, the order reversed every round (A B B A ...), so that a steady drift cancels.
Each round gives one log ratio per candidate; a candidate wins only if the one-sided 95 % bound on their mean lies
above the margin. Rounds and lap length are fixed before the first timed lap, never by what the laps showed.

At a true gain of exactly the margin one race in twenty is won (simulated: 4–5 %); noise that remembers about one lap
makes it up to 7 %, slower wandering cancels. At no gain at all it is below 1 %, for a margin of 5 % and noise of 10 %.
"""

from autotune.race.contest import race
from autotune.race.result import RaceResult

__all__ = ["RaceResult", "race"]
