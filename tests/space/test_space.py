"""What may be tried, and why the rest is dropped."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.errors import SettingsError
from autotune.hardware import Hardware, Limits
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space, largest_divisor
from autotune.space.batch_rules import baseline_of
from autotune.space.knobs import _stream_reason
from autotune.task import Task
from autotune.trial import Bench
from tests.planner.fake_machine import CARD, candidates

LIMITS = Limits(ram_bytes=2**33, shm_bytes=None, open_files=None)


def test_a_space_allows_only_the_listed_values_of_a_knob() -> None:
    """Knobs left out are free; 1 is not True."""
    space = Space(num_workers=[0, 2], channels_last=[False])
    assert space.allows("num_workers", 2)
    assert not space.allows("num_workers", 1)
    assert not space.allows("channels_last", True)
    assert space.allows("batch_size", 7)


def test_grouping_by_length_is_off_unless_it_is_allowed() -> None:
    """Alone among the knobs, since it changes the order of samples; True stands for both values."""
    assert not Space().allows("length_grouped", True)
    assert Space().allows("length_grouped", False)
    for allowed in (Space(length_grouped=True), Space(length_grouped=[False, True])):
        assert allowed.allows("length_grouped", True)
        assert allowed.allows("length_grouped", False)
    assert not Space(length_grouped=False).allows("length_grouped", True)


@pytest.mark.parametrize(
    "knobs", [{"workers": [1]}, {"num_workers": []}, {"num_workers": 2}, {"num_workers": ["2"]}, {"precision": "fp32"}]
)
def test_a_space_that_cannot_be_is_refused(knobs: dict[str, object]) -> None:
    """Unknown knobs, empty lists and values outside the domain are named."""
    with pytest.raises(SettingsError):
        Space(**knobs)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "8"])
@pytest.mark.parametrize("name", ["base_batch_size", "effective_batch_size", "max_batch_size"])
def test_batch_rules_are_whole_positive_numbers(name: str, value: object) -> None:
    """Anything else is refused with its name."""
    with pytest.raises(SettingsError, match=name):
        BatchRules(**{name: value})  # type: ignore[arg-type]


def test_a_locked_effective_batch_admits_only_its_factors() -> None:
    """64 as 16 x 4 is fine, 128 is not."""
    locked = candidates(Settings(batch_size=64), locked=True, max_effective_batch_size=64)
    assert locked.refusal(Settings(batch_size=16, gradient_accumulation_steps=4)) is None
    assert "locked" in str(locked.refusal(Settings(batch_size=128)))


def test_batches_under_way_must_fit_shared_memory() -> None:
    """Workers times prefetch times batch times sample is bounded.

    Report: bytedance/Protenix#2.
    """
    space = candidates()
    assert space.refusal(Settings(batch_size=32).replace(num_workers=2, num_threads=2)) is None
    roomy = Settings(batch_size=256, num_threads=2).replace(num_workers=1000, prefetch_factor=1000)
    assert "/dev/shm" in str(space.refusal(roomy))


def test_the_baseline_may_always_be_run() -> None:
    """It is what the caller has, whatever the rules say."""
    odd = candidates(Settings(batch_size=4096), max_batch_size=8)
    assert odd.refusal(odd.baseline) is None


def test_a_dropped_knob_is_refused_with_its_reason() -> None:
    """The reason text is what the user reads."""
    dropped = candidates(dropped={"num_workers": "the lambda does not pickle"})
    assert "lambda" in str(dropped.refusal(dropped.baseline.replace(num_workers=1)))


def test_grouping_is_dropped_with_the_reason_that_counts() -> None:
    """What makes it pointless or impossible, before that it was not allowed."""
    allowed = Space(length_grouped=True)
    for ragged, order_kept, space, reason in (
        (True, None, allowed, None),
        (True, None, Space(), "off unless space=Space(length_grouped=True)"),
        (False, None, Space(), "all batches are of one size"),
        (True, "a stream", allowed, "a stream"),
        (True, None, Space(length_grouped=False), "only the baseline's value"),
    ):
        task = Task(nn.Linear(4, 2), TensorDataset(torch.rand(50, 4), torch.zeros(50, dtype=torch.long)), device="cpu")
        bench = Bench(task, Hardware.detect(), LIMITS)
        facts = dataclasses.replace(bench.describe(), ragged=ragged, order_kept=order_kept)
        bench.close()
        found = Candidates.of(facts, Hardware.detect(), LIMITS, BatchRules(), space).dropped.get("length_grouped")
        assert (found is None) if reason is None else reason in str(found)


@pytest.mark.parametrize(("number", "most", "divisor"), [(70, 16, 14), (64, 64, 64), (7, 6, 1), (5, 0, 1)])
def test_the_largest_divisor_is_at_most_the_cap(number: int, most: int, divisor: int) -> None:
    """Micro-batches divide the effective batch."""
    assert largest_divisor(number, most) == divisor


def _of_a_loader_of_64(samples: int | None) -> SimpleNamespace:
    loader = {"batch_size": 64, "num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
    loader |= {"pin_memory": False, "multiprocessing_context": None}
    return SimpleNamespace(loader=loader, caller={}, batches_kept=None, samples=samples)


def test_a_locked_batch_that_cannot_be_split_evenly_is_refused_with_good_neighbours() -> None:
    """1009 is prime: batches of one would be no baseline of anybody's."""
    facts = _of_a_loader_of_64(samples=None)
    with pytest.raises(SettingsError, match="960 or 1024"):
        baseline_of(facts, BatchRules(effective_batch_size=1009), 64)  # type: ignore[arg-type]
    assert baseline_of(facts, BatchRules(effective_batch_size=96), 64).batch_size == 48  # type: ignore[arg-type]


def test_a_batch_that_ran_before_stands_in_where_the_callers_cannot_be_split() -> None:
    """A stored answer may have any batch: held for the next study, it is made up as it was; but within the cap."""
    facts = _of_a_loader_of_64(samples=None)
    rules = BatchRules(effective_batch_size=1009, earlier_batch_size=1009)
    assert baseline_of(facts, rules, 64).batch_size == 1009  # type: ignore[arg-type]
    for other in ({"earlier_batch_size": 64}, {"earlier_batch_size": 1009, "max_batch_size": 512}):
        with pytest.raises(SettingsError, match="does not split"):
            baseline_of(facts, BatchRules(effective_batch_size=1009, **other), 64)  # type: ignore[arg-type]
    even = BatchRules(effective_batch_size=128, earlier_batch_size=128)
    assert baseline_of(facts, even, 64).batch_size == 64  # type: ignore[arg-type]


@pytest.mark.parametrize(("samples", "effective"), [(1000, 1001), (None, 2**40)])
def test_a_locked_batch_beyond_reason_is_refused_by_its_own_name(samples: int | None, effective: int) -> None:
    """More than an epoch's samples, or more accumulation steps than there may be, is no accumulation knob's fault."""
    facts = _of_a_loader_of_64(samples)
    with pytest.raises(SettingsError, match=f"effective_batch_size={effective}"):
        baseline_of(facts, BatchRules(effective_batch_size=effective), 64)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wanted", "taken"), [(4, 6), (2, 1), (0, 0), (64, 6), (3, 6)])
def test_numbers_are_moved_to_the_nearest_the_caller_allows(wanted: int, taken: int) -> None:
    """By ratio, since twice the workers are as far as half of them."""
    assert Space(num_workers=[0, 1, 6]).nearest("num_workers", wanted) == taken
    assert Space().nearest("num_workers", wanted) == wanted


def test_sharing_out_cores_keeps_to_what_is_dropped_and_allowed() -> None:
    """Workers stay between epochs where they may; a dropped count stays what it is."""
    baseline = Settings(batch_size=32, num_threads=2)
    assert candidates().shared(baseline, 2, 1) == baseline.replace(num_workers=2, num_threads=1)
    told = candidates(dropped={"persistent_workers": "set_epoch"})
    assert told.refusal(told.shared(baseline, 2, 1)) is None
    assert not told.shared(baseline, 2, 1).persistent_workers
    fixed = candidates(dropped={"num_workers": "a stream", "num_threads": "one core"})
    assert fixed.shared(baseline, 2, 1) == baseline
    own = candidates(space=Space(prefetch_factor=[5], persistent_workers=[False]))
    assert own.shared(baseline, 2).prefetch_factor == 5
    assert own.refusal(own.shared(baseline, 2)) is None


def test_a_stream_that_does_not_shard_itself_may_have_one_worker() -> None:
    """Two would repeat its samples; the reason says so."""
    facts = SimpleNamespace(**{**vars(candidates().facts), "one_worker_only": "it would repeat its samples"})
    stream = candidates(facts=facts)
    assert stream.refusal(stream.baseline.replace(num_workers=1)) is None
    assert "repeat" in str(stream.refusal(stream.baseline.replace(num_workers=2)))


def test_the_callers_own_workers_on_such_a_stream_are_kept() -> None:
    """Any other number of them would change what an epoch holds."""
    facts: Any = SimpleNamespace(one_worker_only="it would repeat its samples", loader={"num_workers": 2})
    assert "repeat" in str(_stream_reason(facts))
    facts.loader = {"num_workers": 1}
    assert _stream_reason(facts) is None


@pytest.mark.parametrize(
    ("wanted", "on_card", "tried"),
    [
        ({"precision": ["fp16-mixed"]}, True, ("fp16-mixed",)),
        ({"precision": ["fp32", "tf32", "bf16-mixed"]}, True, ("bf16-mixed", "tf32")),
        ({"precision": ["bf16-mixed"]}, False, ("bf16-mixed",)),
        ({"precision": ["fp16-mixed"]}, False, None),
        ({"compile_mode": ["max-autotune-no-cudagraphs"]}, False, ("max-autotune-no-cudagraphs",)),
        ({"optimizer_implementation": ["for-loop"]}, False, ("for-loop",)),
    ],
)
def test_what_the_caller_lists_is_tried_or_its_refusal_is_said(
    wanted: dict[str, Any], on_card: bool, tried: tuple[str, ...] | None
) -> None:
    """Also where it would not have been our guess: an emulated bfloat16, another mode of compilation."""
    task = Task(nn.Linear(4, 2), TensorDataset(torch.zeros(64, 4), torch.zeros(64, dtype=torch.long)), device="cpu")
    found = dataclasses.replace(
        Hardware.detect(device="cpu"), accelerator=CARD if on_card else None, cpu_bf16_native=False, has_compiler=True
    )
    facts = Bench(task, found, Limits.of(found)).describe()
    candidates = Candidates.of(facts, found, Limits.of(found), BatchRules(), Space(**wanted))
    (knob,) = wanted
    assert candidates.values.get(knob) == tried
    assert tried or "none of the values you allowed" in candidates.dropped[knob]


def test_numpys_integers_are_numbers() -> None:
    """Lists often come out of numpy."""
    assert Space(num_workers=[numpy.int64(2)]).allows("num_workers", 2)


def test_copies_of_the_dataset_must_fit_memory() -> None:
    """1 GB a worker of 8.6 GB: four workers may be tried, five would fill half of it."""
    facts = SimpleNamespace(**{**vars(candidates().facts), "worker_copy_bytes": 10**9})
    heavy = candidates(facts=facts)
    assert heavy.refusal(heavy.shared(heavy.baseline, 4)) is None
    assert "copies of the dataset (5,000,000,000 bytes)" in str(heavy.refusal(heavy.shared(heavy.baseline, 5)))
