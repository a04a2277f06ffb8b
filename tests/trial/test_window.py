"""Windows on a fake clock: warm-up, whole chunks, cuts, epoch ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

from autotune.errors import TaskError
from autotune.measurement import Chunk
from autotune.trial.stream import BatchStream, chunk_batches
from autotune.trial.timer import WindowTimer
from autotune.trial.window import Window, epoch_turn_s, measure, warm_up

_CPU = torch.device("cpu")


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeLoader:
    """Yields ``batches`` batches of ``rows`` rows per pass, each after ``wait_s`` (plus ``turn_s`` for the first)."""

    def __init__(self, clock: FakeClock, *, batches: int, rows: int, wait_s: float = 0.0, turn_s: float = 0.0) -> None:
        self.clock, self.batches, self.rows, self.wait_s, self.turn_s = clock, batches, rows, wait_s, turn_s

    def __iter__(self) -> Iterator[int]:
        self.clock.sleep(self.turn_s)
        for _ in range(self.batches):
            self.clock.sleep(self.wait_s)
            yield self.rows


def _stream(loader: FakeLoader, ends: list[int] | None = None) -> BatchStream:
    ends = ends if ends is not None else []
    return BatchStream(loader, on_epoch_end=lambda: ends.append(1), clock=loader.clock)


def _step(clock: FakeClock, seconds: float):
    def step(batch: int) -> torch.Tensor:
        clock.sleep(seconds)
        return torch.tensor(1.0)

    return step


def _measure(stream: BatchStream, clock: FakeClock, step_s: float, **arguments: object) -> Window:
    arguments = {"batches_per_chunk": 1, "window_s": 1.0, **arguments}
    return measure(stream, _step(clock, step_s), lambda rows: rows, WindowTimer(_CPU, clock), **arguments)  # type: ignore[arg-type]


def test_a_window_holds_whole_chunks_for_at_least_its_time() -> None:
    """0.3 s steps in chunks of two fill a 1 s window with two chunks of 0.6 s."""
    clock = FakeClock()
    stream = _stream(FakeLoader(clock, batches=100, rows=4, wait_s=0.1))
    window = _measure(stream, clock, 0.2, batches_per_chunk=2)
    assert window.chunks == (Chunk(8, pytest.approx(0.6), pytest.approx(0.2)),) * 2
    assert not window.cut


def test_waiting_for_the_loader_is_counted_as_waiting() -> None:
    """0.1 s of each 0.5 s is waited."""
    clock = FakeClock()
    window = _measure(_stream(FakeLoader(clock, batches=100, rows=4, wait_s=0.1)), clock, 0.4)
    assert sum(chunk.waited_s for chunk in window.chunks) == pytest.approx(0.2 * sum(c.seconds for c in window.chunks))


def _steps(clock: FakeClock, seconds: Iterator[float]) -> Callable[[object], torch.Tensor]:
    def step(rows: object) -> torch.Tensor:
        clock.sleep(next(seconds))
        return torch.zeros(())

    return step


@pytest.mark.parametrize(("slow", "cut"), [(10, False), (200, True)])
def test_no_rate_is_cut_by_its_first_steps_of_milliseconds(slow: int, cut: bool) -> None:
    """Ten slow steps of 10 ms are no reason to give up on fast ones; half a second of slow ones is."""
    clock = FakeClock()
    step = _steps(clock, itertools.chain([0.01] * slow, itertools.repeat(0.002)))
    window = measure(
        _stream(FakeLoader(clock, batches=10_000, rows=1)),
        step,
        lambda r: r,
        WindowTimer(_CPU, clock),
        batches_per_chunk=1,
        window_s=1.0,
        cut_below_samples_per_s=200,
    )
    assert window.cut is cut
    assert (sum(chunk.seconds for chunk in window.chunks) < 0.6) is cut


@pytest.mark.parametrize(("slow_s", "wait_s", "hopeless"), [(0.05, 0.0, False), (0.05, 0.2, False), (0.5, 0.0, True)])
def test_one_slow_step_says_something_only_where_it_is_long(slow_s: float, wait_s: float, hopeless: bool) -> None:
    """A hiccup of 50 ms in the second step is not taken for the speed of the setting, whatever it waited for data."""
    clock = FakeClock()
    step = _steps(clock, itertools.chain([0.002, slow_s], itertools.repeat(0.002)))
    stream = _stream(FakeLoader(clock, batches=100, rows=1, wait_s=wait_s))
    seen = warm_up(stream, step, lambda r: r, stock=0, least=3, clock=clock, cut_below_samples_per_s=400)
    assert (seen.hopeless is not None) is hopeless
    assert seen.batches == (2 if hopeless else 3)


def test_a_hopeless_rate_is_cut_after_one_chunk_that_is_long() -> None:
    """4 rows in 1 s is far below 100/s: one chunk is enough to see it."""
    clock = FakeClock()
    window = _measure(
        _stream(FakeLoader(clock, batches=100, rows=4)), clock, 1.0, window_s=50.0, cut_below_samples_per_s=100
    )
    assert window.cut
    assert len(window.chunks) == 1


def test_a_fast_rate_is_not_cut() -> None:
    """The same threshold lets a rate above it run its whole window."""
    clock = FakeClock()
    window = _measure(_stream(FakeLoader(clock, batches=1000, rows=4)), clock, 0.02, cut_below_samples_per_s=100)
    assert not window.cut
    assert sum(chunk.seconds for chunk in window.chunks) >= 1.0 - 1e-9


def test_chunks_across_an_epoch_end_are_kept_apart_and_priced() -> None:
    """Epochs of 5 batches with a 2 s turn: the rate is the inner one, the turn comes out as 2 s."""
    clock = FakeClock()
    ends: list[int] = []
    stream = _stream(FakeLoader(clock, batches=5, rows=4, turn_s=2.0), ends)
    stream.take()  # as warm-up does: the pipeline has started before the window begins
    window = _measure(stream, clock, 0.1, window_s=6.0)
    assert all(chunk.seconds == pytest.approx(0.1) for chunk in window.chunks)
    assert window.epoch_ends == len(ends) == len(window.crossed) > 0
    assert epoch_turn_s(window, latency_s=99.0) == pytest.approx(2.0)


def test_epochs_shorter_than_a_chunk_are_counted_as_they_come() -> None:
    """With one batch per epoch every chunk holds its turns, so nothing is priced on top."""
    clock = FakeClock()
    stream = _stream(FakeLoader(clock, batches=1, rows=4, turn_s=0.5))
    stream.take()
    window = _measure(stream, clock, 0.1, window_s=6.0)
    assert window.chunks == window.crossed
    assert epoch_turn_s(window, latency_s=99.0) == 0.0


def test_an_epoch_longer_than_the_window_is_priced_by_its_seen_start() -> None:
    """No epoch end was crossed: the pipeline's start stands in."""
    clock = FakeClock()
    window = _measure(_stream(FakeLoader(clock, batches=1000, rows=4)), clock, 0.1)
    assert epoch_turn_s(window, latency_s=1.25) == 1.25


def test_warm_up_ends_when_the_stock_is_used_up() -> None:
    """Without any waiting, all workers x prefetch batches are consumed first."""
    clock = FakeClock()
    stream = _stream(FakeLoader(clock, batches=100, rows=4))
    warm_up(stream, _step(clock, 0.1), lambda rows: rows, stock=8, least=2, clock=clock)
    assert stream.batches == 8


def test_warm_up_ends_early_once_a_step_waited() -> None:
    """A batch that was not ready shows that no stock is left."""
    clock = FakeClock()
    stream = _stream(FakeLoader(clock, batches=100, rows=4, wait_s=1.0))
    warm_up(stream, _step(clock, 0.1), lambda rows: rows, stock=8, least=2, clock=clock)
    assert stream.batches == 3


def test_a_slow_first_step_stays_outside_the_window() -> None:
    """Two steps of warm-up swallow the cost of the first ones."""
    clock = FakeClock()
    stream = _stream(FakeLoader(clock, batches=100, rows=4))
    costs = iter([5.0, 5.0] + [0.1] * 1000)

    def step(batch: int) -> torch.Tensor:
        clock.sleep(next(costs))
        return torch.tensor(1.0)

    warm_up(stream, step, lambda rows: rows, stock=0, least=2, clock=clock)
    window = measure(stream, step, lambda rows: rows, WindowTimer(_CPU, clock), batches_per_chunk=1, window_s=1.0)
    assert all(chunk.seconds == pytest.approx(0.1) for chunk in window.chunks)


def test_a_long_first_step_is_warm_up_enough_where_that_is_allowed() -> None:
    """Steps of 2 s are not repeated to warm up, and one of them is a window; short ones are repeated."""
    for step_s, taken in ((2.0, 1), (0.1, 2)):
        clock = FakeClock()
        stream = _stream(FakeLoader(clock, batches=100, rows=4))
        warm_up(stream, _step(clock, step_s), lambda r: r, stock=0, least=2, clock=clock, one_if_long=True)
        assert stream.batches == taken
    clock = FakeClock()
    assert len(_measure(_stream(FakeLoader(clock, batches=9, rows=4)), clock, 2.0).chunks) == 1


class StockedStream(BatchStream):
    """Whose workers load a batch in ``load_s`` each, beside the training, and had some ready."""

    def __init__(self, clock: FakeClock, *, stock: int, load_s: float) -> None:
        super().__init__(FakeLoader(clock, batches=10_000, rows=4), on_epoch_end=lambda: None, clock=clock)
        self._now, self._stock, self._load_s, self._began = clock, stock, load_s, clock()

    def ready(self) -> int:
        loaded = self._stock + int((self._now() - self._began) / self._load_s)
        return min(self._stock, max(0, loaded - self.batches))

    def take(self) -> tuple[object, float]:
        waited_s = 0.0
        while not self.ready():
            self._now.sleep(self._load_s / 10)
            waited_s += self._load_s / 10
        return super().take()[0], waited_s


@pytest.mark.parametrize(("load_s", "rate"), [(0.5, 8.0), (0.05, 40.0)])
def test_batches_that_lay_ready_do_not_flatter_the_rate(load_s: float, rate: float) -> None:
    """Steps of 0.1 s beside workers that need 0.5 s a batch go on until the stock is at most half of what was seen,
    and what was taken from it is no rate to last; workers that keep up lose nothing.
    """
    clock = FakeClock()
    window = _measure(StockedStream(clock, stock=8, load_s=load_s), clock, 0.1)
    rows = sum(chunk.rows for chunk in window.chunks) - window.stock_rows
    assert rows / sum(chunk.seconds for chunk in window.chunks) == pytest.approx(rate, rel=0.15)


def test_data_without_a_batch_is_an_error_not_an_endless_loop() -> None:
    """An empty pass raises, first and later passes alike."""
    clock = FakeClock()
    with pytest.raises(TaskError, match="no batch"):
        _stream(FakeLoader(clock, batches=0, rows=4)).take()


@pytest.mark.parametrize(("workers", "accumulation", "batches"), [(0, 1, 1), (3, 1, 3), (2, 4, 4), (3, 2, 6)])
def test_a_chunk_is_whole_worker_rounds_and_whole_groups(workers: int, accumulation: int, batches: int) -> None:
    """Bursts of workers and of optimizer steps average out inside a chunk."""
    assert chunk_batches(workers, accumulation) == batches
