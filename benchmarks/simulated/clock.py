"""A clock that passes only while something is done, and knows what for."""

from __future__ import annotations

import math

__all__ = ["Clock", "Overdue"]


class Overdue(Exception):
    """The deadline of a trial came before its end."""


class Clock:
    """Seconds since the run began.

    Attributes:
        now_s: What the clock shows.
        spent_s: Seconds by what they were spent on; a race lap's windows and starts all count as its ``race``.
        deadline_s: Clock time that must not be passed.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.spent_s: dict[str, float] = {}
        self.deadline_s = math.inf
        self.racing = False

    def __call__(self) -> float:
        """What the clock shows."""
        return self.now_s

    def spend(self, seconds: float, on: str) -> None:
        """Lets time pass.

        Raises:
            Overdue: The deadline came first; the clock shows it.
        """
        left_s = self.deadline_s - self.now_s
        taken_s = min(float(seconds), left_s)
        on = "race" if self.racing else on
        self.spent_s[on] = self.spent_s.get(on, 0.0) + taken_s
        self.now_s += taken_s
        if seconds > left_s:
            raise Overdue
