"""Who is told of progress, and what happens when the listener fails."""

from __future__ import annotations

import io
import sys

import pytest

from autotune.measurement import Chunk, Measured, TimedOut
from autotune.report.narrator import Narrator, sentence
from autotune.report.progress import Progress
from autotune.settings import Settings


def _measured(**more: object) -> Measured:
    return Measured(kind="joint", settings=Settings(), chunks=(Chunk(50, 0.5),), **more)  # type: ignore[arg-type]


def test_a_callable_gets_each_event_with_the_best_rate_so_far() -> None:
    """A cut trial is told of, but is no best."""
    events: list[Progress] = []
    with Narrator(events.append, 60.0, clock=lambda: 3.0) as narrator:
        narrator.trial(_measured())
        narrator.trial(_measured(cut=True))
    assert [event.best_samples_per_s for event in events] == [100.0, 100.0]
    assert "cut short" in events[1].message


def test_a_listener_that_raises_loses_nothing_but_itself() -> None:
    """The run goes on, and the result says what happened."""

    def broken(_: Progress) -> None:
        raise RuntimeError("no display")

    with Narrator(broken, 60.0) as narrator:
        narrator.say("start", "one")
        narrator.say("start", "two")
    assert narrator.warnings == ["progress raised RuntimeError: no display; it was told nothing more."]


def test_a_closed_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """isatty() of a closed stream raises; silence is what is wanted."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with Narrator(None, 60.0) as narrator:
        narrator.say("start", "nobody listens")


def test_failures_are_told_by_their_fate() -> None:
    """One line says the setting and what became of it."""
    text = sentence(TimedOut(kind="joint", settings=Settings().replace(num_workers=2), deadline_s=1.0))
    assert "2 workers" in text
    assert text.endswith("timed out")
