"""The search for the largest batch, on fakes whose true limit is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from autotune.batch_size import LargestBatch, find_largest
from autotune.batch_size.line import Line
from autotune.batch_size.tried import SizeTried
from autotune.errors import DoesNotFitError, TaskError
from autotune.measurement import Chunk, Crashed, Measured, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.settings import Settings

LIMIT = 10**9


class Fake:
    """A machine on which ``fate`` decides what a size comes to, and ``memory`` what it takes."""

    def __init__(
        self,
        fate: Callable[[Probe, int], Outcome | None] = lambda probe, rows: None,
        *,
        memory: Callable[[int], int | None] = lambda rows: None,
        samples: int = 10**9,
        s_per_row: Callable[[int], float] = lambda rows: 1e-3,
        cost_s: float = 1.0,
        **measured: Any,
    ) -> None:
        self.fate, self.memory, self.samples, self.s_per_row = fate, memory, samples, s_per_row
        self.cost_s, self.measured = cost_s, measured
        self.probes: list[Probe] = []
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def run(self, probe: Probe) -> Outcome:
        self.probes.append(probe)
        self.now += min(self.cost_s, probe.deadline_s)
        rows = min(probe.settings.batch_size or 0, self.samples)
        failed = self.fate(probe, rows)
        if failed is not None:
            return failed
        peak = self.memory(rows)
        seconds = self.s_per_row(rows) * rows
        return Measured(
            kind="compute",
            settings=probe.settings,
            chunks=(Chunk(rows, seconds),) * ((probe.steps or 2) - 1),
            largest_batch_rows=rows,
            cost_s=self.cost_s,
            **{"peak_ram_bytes": peak, "ram_limit_bytes": None if peak is None else LIMIT, **self.measured},
        )

    @property
    def sizes(self) -> list[int]:
        """Asked for, in order."""
        return [probe.settings.batch_size or 0 for probe in self.probes]


def no_memory(probe: Probe, message: str = "CUDA out of memory.") -> Outcome:
    return OutOfMemory(kind="compute", settings=probe.settings, where="allocator", message=message)


def rejected(probe: Probe, reason: str, **more: Any) -> Outcome:
    trace = f"Traceback (most recent call last):\n{reason}"
    return Rejected(kind="compute", settings=probe.settings, phase="step", reason=reason, traceback=trace, **more)


def full_above(limit: int) -> Callable[[Probe, int], Outcome | None]:
    return lambda probe, rows: no_memory(probe) if rows > limit else None


def found(fake: Fake, *, cap: int = 8192, margin: float = 0.0, **more: Any) -> LargestBatch:
    """Searches, and checks what must hold whatever comes out."""
    result = find_largest(
        fake.run, Settings(), cap=cap, cap_reason="the cap", memory_margin=margin, clock=fake.clock, **more
    )
    assert type(result.batch_size) is int
    assert result.probes == len(result.evidence) == len(fake.probes)
    last, final = fake.probes[-1], result.evidence[-1]
    assert (last.steps, last.fresh) == (5, True)
    assert final.fits
    assert final.size == result.batch_size <= cap
    assert result.batch_size not in {one.size for one in result.evidence if not one.fits}
    assert len(set(fake.sizes)) <= 2 * math.log2(cap) + 2
    return result


@pytest.mark.parametrize("limit", [1, 2, 3, 32, 37, 90, 777, 5000])
def test_the_very_largest_size_is_found_where_memory_cannot_be_read(limit: int) -> None:
    """Without readings, failures alone lead to the last size that works.

    Report: deepspeedai/DeepSpeed#2160.
    """
    assert found(Fake(full_above(limit))).batch_size == limit


@pytest.mark.parametrize("limit", [1, 2, 3, 32, 37, 90, 777, 5000])
@pytest.mark.parametrize("memory", [lambda rows: 10**7, lambda rows: 10**7 + 10**6 * (rows * 7919 % 13)])
def test_readings_that_say_nothing_do_not_mislead(limit: int, memory: Callable[[int], int]) -> None:
    """Constant readings, and readings that rise and fall, give the size that failures give.

    Reports: ultralytics/yolov5#9156, ultralytics/yolov5#9287.
    """
    assert found(Fake(full_above(limit), memory=memory)).batch_size == limit


def test_falling_readings_do_not_mislead() -> None:
    """Memory that shrinks as the batch grows is no reason for an absurd size.

    Report: ultralytics/yolov5#9287.
    """
    fake = Fake(full_above(40), memory=lambda rows: 4 * 10**8 - 10**6 * min(rows, 300))
    assert found(fake).batch_size == 40


@pytest.mark.parametrize("limit", [1, 2, 3, 32, 37, 90, 777, 5000])
def test_a_line_leads_to_the_edge_in_few_runs(limit: int) -> None:
    """Honest readings: at least 92 % of the limit within eight runs, at most two of them out of memory."""
    per_row = LIMIT * 9 // 10 // limit
    fake = Fake(full_above(limit), memory=lambda rows: LIMIT // 10 + per_row * rows)
    result = found(fake, cap=65536)
    assert result.batch_size >= 0.92 * limit
    assert result.probes <= 8
    assert result.out_of_memory_probes <= 2


def ripple_curve(draw: random.Random) -> tuple[Callable[[int], int], int]:
    """Memory with up to 3 % allocator ripple and up to two workspace jumps of up to 6 %; and its true limit."""
    limit = round(math.exp(draw.uniform(math.log(8), math.log(4096))))
    base = draw.uniform(0.05, 0.5)
    ripple, phase = draw.uniform(0, 0.03), draw.uniform(0, 7)
    jumps = [(draw.uniform(1, limit), draw.uniform(0, 0.06)) for _ in range(draw.randint(0, 2))]

    def memory(rows: int) -> int:
        wave = math.modf(math.sin(rows * 12.9898 + phase) * 43758.5453)[0]
        share = base + (1 - base) * rows / limit * (1 + ripple * wave) + sum(up for at, up in jumps if rows > at)
        return int(LIMIT * share)

    true = max(rows for rows in range(2 * limit + 2) if memory(rows) <= LIMIT)
    return memory, true


def test_ripples_and_jumps_cost_little() -> None:
    """400 memory curves as seen in practice: few runs, few out of memory, close to the limit."""
    draw = random.Random(0)
    reached, probes, failures = [], [], []
    for _ in range(400):
        memory, true = ripple_curve(draw)
        fake = Fake(lambda probe, rows, memory=memory: no_memory(probe) if memory(rows) > LIMIT else None)
        fake.memory = memory
        result = found(fake)
        reached.append(result.batch_size / true)
        probes.append(result.probes)
        failures.append(result.out_of_memory_probes)
    assert statistics.median(reached) >= 0.95
    assert sorted(reached)[40] >= 0.92
    assert min(reached) >= 0.85
    assert statistics.median(probes) <= 6
    assert sorted(probes)[360] <= 7
    assert max(probes) <= 10
    assert statistics.fmean(failures) <= 0.5


def test_a_start_that_is_too_large_leads_downwards() -> None:
    """Start at 512 where 20 is the most: no error, and exactly 20.

    Report: Lightning-AI/pytorch-lightning#3103.
    """
    result = found(Fake(full_above(20)), start=512)
    assert result.batch_size == 20
    assert result.out_of_memory_probes >= 1


def test_a_failure_below_the_first_success_is_no_ceiling() -> None:
    """Statistics over a lone row fail, which says nothing about larger batches."""
    lone = "Expected more than 1 value per channel when training"
    fake = Fake(lambda probe, rows: rejected(probe, lone) if rows == 1 else None)
    assert found(fake, cap=100, start=4).batch_size == 100
    assert fake.sizes[0] == 1


@pytest.mark.parametrize("cap", [2, 3, 8])
def test_one_row_that_fails_leaves_what_little_more_is_left(cap: int) -> None:
    """The first size fails for another reason and memory is short: the sizes between are still found."""
    fake = Fake(lambda probe, rows: rejected(probe, "a lone row") if rows == 1 else None)
    assert found(fake, cap=cap, start=2).batch_size == cap
    short = Fake(lambda probe, rows: rejected(probe, "a lone row") if rows == 1 else full_above(2)(probe, rows))
    assert found(short, cap=cap, start=cap).batch_size == 2


@pytest.mark.parametrize("fail", [no_memory, lambda probe: rejected(probe, "no kernel for this size")])
@pytest.mark.parametrize("memory", [lambda rows: None, lambda rows: 10**6 * rows])
def test_a_size_that_fails_between_sizes_that_work_is_no_ceiling(
    fail: Callable[[Probe], Outcome], memory: Callable[[int], int | None]
) -> None:
    """32 alone fails: larger sizes are found, and 32 is not returned.

    Report: mlcommons/algorithmic-efficiency#185.
    """
    fake = Fake(lambda probe, rows: fail(probe) if rows == 32 else None, memory=memory)
    assert found(fake, cap=512).batch_size > 48


def test_the_odd_size_is_not_returned_when_the_margin_leads_to_it() -> None:
    """floor(0.8 * 40) is the one size that fails: a smaller one is returned."""
    fake = Fake(lambda probe, rows: no_memory(probe) if rows == 32 or rows > 40 else None)
    assert found(fake, margin=0.2).batch_size < 32


def test_a_backends_limit_caps_the_batch_and_is_not_called_memory() -> None:
    """cuDNN refuses more than 24 rows: 24, and the reason quotes it as not memory.

    Report: pytorch/pytorch#1059.
    """
    refusal = "RuntimeError: CUDNN_STATUS_NOT_SUPPORTED"
    fake = Fake(lambda probe, rows: rejected(probe, refusal, size_limit=True) if rows > 24 else None)
    result = found(fake)
    assert result.batch_size == 24
    assert result.out_of_memory_probes == 0
    assert result.reason.startswith("not memory: batch 25 fails: RuntimeError: CUDNN_STATUS_NOT_SUPPORTED")


def test_other_failures_above_come_through_with_message_and_traceback() -> None:
    """An error in the user's code at larger sizes bounds the result and can be read in the evidence."""
    fake = Fake(lambda probe, rows: rejected(probe, "IndexError: 60") if rows > 60 else None)
    result = found(fake)
    assert result.batch_size == 60
    failed = next(one for one in result.evidence if not one.fits)
    assert (failed.fate, failed.message, failed.memory) == ("rejected", "IndexError: 60", False)
    assert "Traceback" in (failed.traceback or "")


def test_a_task_that_fails_at_every_size_is_not_about_memory() -> None:
    """The first failure is raised, with its traceback as the cause, after few runs."""
    fake = Fake(lambda probe, rows: rejected(probe, "ValueError: shapes do not match"))
    with pytest.raises(TaskError, match="ValueError: shapes do not match") as raised:
        found(fake)
    assert "Traceback" in str(raised.value.__cause__)
    assert len(fake.probes) <= 5


def test_nothing_fits_is_an_error_that_quotes_the_last_failure() -> None:
    """Not even one row: no default, no number, and the size that was tried last.

    Reports: huggingface/accelerate#332, ultralytics/ultralytics#25739.
    """
    fake = Fake(lambda probe, rows: no_memory(probe, f"cannot hold {rows} rows"))
    with pytest.raises(DoesNotFitError, match="Not even a batch of 1 fits in memory: cannot hold 1 rows"):
        found(fake)


@pytest.mark.parametrize("cap", [1, 2, 3, 100, 4096])
@pytest.mark.parametrize("memory", [lambda rows: None, lambda rows: 10**7 + 100 * rows])
def test_what_bounds_the_size_is_the_cap_where_memory_does_not(cap: int, memory: Callable[[int], int | None]) -> None:
    """All rows fit: the cap, with its reason, and no run beyond it.

    Report: Lightning-AI/pytorch-lightning#19850.
    """
    fake = Fake(memory=memory)
    result = found(fake, cap=cap)
    assert result.batch_size == cap == max(fake.sizes)
    assert result.reason == "the cap"
    assert result.probes <= 6


def test_data_that_gives_fewer_rows_than_asked_for_is_noticed() -> None:
    """A stream of 150 samples: 150 is reported, since no larger batch was really run."""
    result = found(Fake(samples=150))
    assert result.batch_size == 150
    assert max(one.size for one in result.evidence) == 150
    assert "150" in result.reason


def test_rows_that_the_collate_function_multiplies_are_no_samples() -> None:
    """Two views of each sample: the size is the loader's batch size."""
    fake = Fake(full_above(100))
    run = fake.run
    fake.run = lambda probe: doubled(run(probe))  # type: ignore[method-assign]
    assert found(fake).batch_size == 100


def doubled(outcome: Outcome) -> Outcome:
    if not isinstance(outcome, Measured):
        return outcome
    rows = 2 * outcome.largest_batch_rows
    return Measured(kind="compute", settings=outcome.settings, chunks=outcome.chunks, largest_batch_rows=rows)


def test_the_margin_is_taken_off_the_largest_size() -> None:
    """100 rows fit: 80 with a margin of 20 %, and 80 itself was run.

    Report: ludwig-ai/ludwig#3958.
    """
    assert found(Fake(full_above(100)), margin=0.2).batch_size == 80
    assert found(Fake(full_above(100)), margin=0.0).batch_size == 100


def test_the_peak_leaves_the_margin_where_it_can_be_read() -> None:
    """Memory that the rows hardly change: taking 10 % off the rows is not enough."""
    memory = {"base": 8 * 10**8, "row": 10**6}
    fake = Fake(full_above(200), memory=lambda rows: memory["base"] + memory["row"] * rows)
    result = found(fake, margin=0.1)
    assert result.evidence[-1].peak_bytes is not None
    assert result.evidence[-1].peak_bytes <= 0.9 * LIMIT
    assert 90 <= result.batch_size <= 100


def test_a_cap_is_not_reduced_where_its_peak_leaves_the_margin() -> None:
    """256 rows take a third of the memory: 256."""
    fake = Fake(memory=lambda rows: LIMIT // 3 * rows // 256)
    assert found(fake, cap=256, margin=0.2).batch_size == 256


def test_steps_after_the_second_count() -> None:
    """Memory that the third step needs: the size that passed two steps is not returned.

    Report: pytorch/pytorch#16655.
    """
    fake = Fake(lambda probe, rows: no_memory(probe) if rows > (90 if (probe.steps or 0) > 2 else 100) else None)
    assert 85 <= found(fake).batch_size <= 90


def test_two_steps_that_tell_nothing_are_not_believed_for_long() -> None:
    """Everything passes two steps, only 16 rows five: 16, by searching with five.

    Report: pytorch/pytorch#16655.
    """
    fake = Fake(lambda probe, rows: no_memory(probe) if rows > 16 and (probe.steps or 0) > 2 else None)
    result = find_largest(fake.run, Settings(), cap=8192, cap_reason="", memory_margin=0.0, clock=fake.clock)
    assert result.batch_size == 16


def test_an_allocator_that_has_to_make_room_counts_as_full() -> None:
    """Above 100 rows each step frees the cache first: 100, although nothing fails."""
    fake = Fake()
    run = fake.run

    def thrashing(probe: Probe) -> Outcome:
        fake.measured = {"allocation_retries": 3 if (probe.settings.batch_size or 0) > 100 else 0}
        return run(probe)

    fake.run = thrashing  # type: ignore[method-assign]
    result = found(fake)
    assert result.batch_size == 100
    assert result.reason.startswith("memory: batch 101 fails: the allocator gave back its cache 3 times")
    assert result.out_of_memory_probes == 0


def test_a_cliff_in_speed_counts_as_full() -> None:
    """Above 100 rows a row takes forty times as long, again and again: swapping.

    Reports: microsoft/WSL#11050, derrian-distro/LoRA_Easy_Training_Scripts#267.
    """
    fake = Fake(s_per_row=lambda rows: 0.04 if rows > 100 else 0.001)
    result = found(fake)
    assert result.batch_size == 100
    assert "40 times slower" in result.reason


def test_one_slow_run_is_no_cliff() -> None:
    """Another process took the machine during one run: the size is run again and counts."""
    fake = Fake()
    fake.s_per_row = lambda rows: 0.04 if len(fake.probes) == 3 else 0.001
    result = found(fake, cap=512)
    assert result.batch_size == 512
    assert len(fake.sizes) == len(set(fake.sizes)) + 2  # the slow one, and the last verification


def test_more_in_use_than_allowed_counts_as_full() -> None:
    """In the caller's own process nothing fails at the limit; the reading decides."""
    fake = Fake(memory=lambda rows: 10**7 * rows)
    assert 92 <= found(fake).batch_size <= 100


def test_an_accelerators_memory_is_what_counts_on_one() -> None:
    """Host memory is plentiful; device memory for 50 rows."""
    fake = Fake(full_above(50), memory=lambda rows: 10**6)
    run = fake.run

    def on_device(probe: Probe) -> Outcome:
        fake.measured = {"peak_accelerator_bytes": 2 * 10**7 * (probe.settings.batch_size or 0)}
        return run(probe)

    fake.run = on_device  # type: ignore[method-assign]
    result = found(fake, accelerator_bytes=LIMIT)
    assert 47 <= result.batch_size <= 50
    assert result.out_of_memory_probes <= 1
    assert result.evidence[-1].limit_bytes == LIMIT


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (lambda s: Crashed(kind="compute", settings=s, exit_code=-11, output_tail="bye"), "exit code -11"),
        (lambda s: TimedOut(kind="compute", settings=s, deadline_s=7.0), "no answer within 7 s"),
    ],
)
def test_deaths_bound_the_size_and_are_not_called_memory(outcome: Callable[[Settings], Outcome], said: str) -> None:
    """Above 70 rows the process crashes, or does not answer: 70."""
    result = found(Fake(lambda probe, rows: outcome(probe.settings) if rows > 70 else None))
    assert result.batch_size == 70
    assert result.reason.startswith("not memory")
    assert said in result.reason


def test_time_that_is_over_ends_the_search_with_a_size_that_ran() -> None:
    """Each run takes 10 s of 60: what ran is verified and returned, within the time."""
    fake = Fake(full_above(5000), cost_s=10.0)
    result = found(fake, time_budget_s=60.0)
    assert result.reason == "the time was over"
    assert fake.now <= 60.0
    assert all(probe.deadline_s <= 100.0 for probe in fake.probes)


def test_bracket_runs_take_two_steps_on_a_batch_in_memory() -> None:
    """Only the size changes from run to run; the settings are the caller's.

    Report: pytorch/pytorch#35901.
    """
    settings = Settings(precision="bf16-mixed", gradient_accumulation_steps=2)
    fake = Fake(full_above(37))
    find_largest(fake.run, settings, cap=100, cap_reason="", clock=fake.clock, seed=5)
    assert {probe.steps for probe in fake.probes[:-1]} == {2}
    assert {(probe.kind, probe.fresh, probe.seed) for probe in fake.probes[:-1]} == {("compute", False, 5)}
    assert all(probe.settings == settings.replace(batch_size=probe.settings.batch_size) for probe in fake.probes)


def test_sizes_that_fill_host_memory_each_get_a_fresh_process() -> None:
    """From the first size that the line chose; what a device's allocator holds can be given back instead."""
    fake = Fake(full_above(777), memory=lambda rows: 10**8 + 10**6 * rows)
    found(fake)
    assert [probe.fresh for probe in fake.probes] == [False, False] + [True] * (len(fake.probes) - 2)
    device = Fake(
        full_above(777), memory=lambda rows: 10**8, peak_accelerator_bytes=10**8, accelerator_limit_bytes=LIMIT
    )
    found(device)
    assert not any(probe.fresh for probe in device.probes[:-1])


def test_every_run_is_told() -> None:
    """Progress sees what the evidence holds."""
    told: list[SizeTried] = []
    assert tuple(told) != found(Fake(full_above(37)), say=told.append).evidence == tuple(told)


def tried(size: int, peak_bytes: int | None, limit_bytes: int | None = 640) -> SizeTried:
    more = {"peak_bytes": peak_bytes, "limit_bytes": limit_bytes}
    return SizeTried(size=size, fits=True, fate="measured", steps=2, **more)  # type: ignore[arg-type]


def test_the_line_is_a_little_steeper_than_the_readings() -> None:
    """190 bytes for 20 rows, and a 64th of 640 for noise: 10 bytes a row."""
    line = Line.through([tried(10, 110), tried(30, 300)])
    assert line is not None
    assert line.share_at(30) == pytest.approx(300 / 640)
    assert line.share_at(50) == pytest.approx((300 + 20 * 10) / 640)
    assert line.size_at(0.95) == 30 + (608 - 300) // 10


def test_there_is_no_line_without_two_readings_and_a_limit() -> None:
    """One reading, or none that can be compared with anything, is no line."""
    assert Line.through([tried(10, 110), tried(30, None)]) is None
    assert Line.through([tried(10, 110, None), tried(30, 300, None)]) is None
