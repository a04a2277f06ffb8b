"""Live progress: one line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io
import time

import pytest

from autotune.report import LiveProgress, Progress


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def event(elapsed_s: float = 12.0, message: str = "32 x 1", best: float | None = None) -> Progress:
    """Somewhere in a search of two minutes."""
    return Progress(elapsed_s=elapsed_s, budget_s=120.0, phase="search", message=message, best_samples_per_s=best)


@pytest.fixture(autouse=True)
def _terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same terminal everywhere."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def test_plain_lines_tell_time_left_and_best_rate() -> None:
    """Without a terminal each event is one line, no control characters in it."""
    stream = io.StringIO()
    with LiveProgress(stream) as live:
        live(event())
        live(event(30.0, "64 x 1", best=1234.5))
    assert stream.getvalue().splitlines() == [
        "[  12 s, 108 s left] search: 32 x 1",
        "[  30 s, 90 s left] search: 64 x 1 | best 1,234.5 samples/s",
    ]


def test_repeated_event_gives_no_second_plain_line() -> None:
    """A log is not flooded by ticks that say nothing new."""
    stream = io.StringIO()
    with LiveProgress(stream) as live:
        for elapsed_s in (1.0, 2.0, 3.0):
            live(event(elapsed_s))
    assert len(stream.getvalue().splitlines()) == 1


def test_terminal_shows_a_line_that_is_gone_afterwards() -> None:
    """The live line appears, and the cursor and the line are put back at the end."""
    stream = Terminal()
    with LiveProgress(stream) as live:
        live(event())
    text = stream.getvalue()
    assert "108 s left" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert text.rindex("\x1b[2K") > text.rindex("108 s left")


def test_time_left_runs_down_between_events() -> None:
    """The line lives by the clock, not only by events."""
    now = [0.0]
    stream = Terminal()
    with LiveProgress(stream, clock=lambda: now[0]) as live:
        live(event())
        now[0] = 8.0
        deadline = time.monotonic() + 30
        while "100 s left" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "[  20 s, 100 s left] search: 32 x 1" in stream.getvalue()


def test_time_left_never_turns_negative() -> None:
    """A run that is late has nothing left."""
    stream = io.StringIO()
    with LiveProgress(stream) as live:
        live(event(130.0))
    assert "0 s left" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet_writes_nothing(stream: io.StringIO) -> None:
    """Not even control characters."""
    with LiveProgress(stream, quiet=True) as live:
        live(event())
    assert stream.getvalue() == ""


def test_interruption_puts_the_terminal_back() -> None:
    """Ctrl-C in the middle passes through and leaves the cursor visible."""
    stream = Terminal()

    def interrupted() -> None:
        with LiveProgress(stream) as live:
            live(event())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_event_after_the_end_is_ignored() -> None:
    """A late event does not write over what follows."""
    stream = io.StringIO()
    with LiveProgress(stream) as live:
        pass
    live(event())
    assert stream.getvalue() == ""


def test_an_event_can_be_printed_as_it_is() -> None:
    """``progress=print`` shows a line for people."""
    event = Progress(elapsed_s=12.34, budget_s=60.0, phase="search", message="batch 32: 100 samples/s")
    assert str(event) == " 12.3 s  search: batch 32: 100 samples/s"
