"""Ctrl-C noticed without being swallowed."""

from __future__ import annotations

import signal
import threading

import pytest

from autotune.measurement import Outcome, Probe, Rejected
from autotune.report.interrupt import heeding, noticing_interrupt
from autotune.settings import Settings


def test_it_is_noticed_and_raises_as_before():
    """Both the question and the exception tell of it; the old handler is back afterwards."""
    before = signal.getsignal(signal.SIGINT)
    with noticing_interrupt() as pressed:
        assert not pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert pressed()
    assert signal.getsignal(signal.SIGINT) is before


def test_without_ctrl_c_the_answer_is_no():
    """Nothing happened, nothing is told."""
    with noticing_interrupt() as pressed:
        pass
    assert not pressed()


def test_other_threads_get_no_handler():
    """Python allows handlers in the main thread only; elsewhere it is quietly left out."""
    answers: list[bool] = []

    def ask() -> None:
        with noticing_interrupt() as pressed:
            answers.append(pressed())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]


def test_a_press_that_nobody_saw_ends_the_work_at_the_next_probe() -> None:
    """Python drops a KeyboardInterrupt that strikes in a destructor; the search must not go on for all that."""
    asked: list[Probe] = []
    pressed = [False]

    def run(probe: Probe) -> Outcome:
        asked.append(probe)
        return Rejected(kind=probe.kind, settings=probe.settings, phase="step", reason="no")

    answer = heeding(lambda: pressed[0], run)
    probe = Probe(kind="joint", settings=Settings())
    answer(probe)
    pressed[0] = True
    with pytest.raises(KeyboardInterrupt):
        answer(probe)
    assert len(asked) == 1
