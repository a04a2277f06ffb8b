"""The costliest batches and the padding of the data, in plans on machines with a known optimum."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.measurement import Chunk, DataCosts, Measured, Outcome, OutOfMemory, Probe, Rejected
from autotune.planner import CPU, GPU, Plan
from autotune.settings import Settings
from autotune.space import Candidates, Space
from autotune.study import Study
from tests.planner.fake_machine import FakeMachine, candidates, hardware

GROUPED = Space(length_grouped=True)
COSTS = DataCosts(seen=10_000, samples=10_000, whole=True, mean_length=25.0, longest=800, padding_share=0.6)


def ragged(**more: Any) -> Candidates:
    facts = SimpleNamespace(**{**vars(candidates().facts), "ragged": True})
    return candidates(**{"facts": facts, "space": GROUPED, **more})


class Texts(FakeMachine):
    """Steps on the costliest batches run out of memory above ``most`` rows; the data costs ``costs``."""

    def __init__(self, rate: Any, *, most: int = 10**6, costs: DataCosts | None = COSTS) -> None:
        super().__init__(rate, fate=self._worst)
        self.most, self.costs = most, costs

    def _worst(self, probe: Probe) -> Outcome | None:
        if probe.steps is None:
            return None
        rows = probe.settings.batch_size or 1
        if rows > self.most:
            return OutOfMemory(kind="compute", settings=probe.settings, where="allocator", message=f"{rows} long rows")
        chunks = (Chunk(rows, 100.0),)  # as slow as the longest samples are: no measure of speed
        return Measured(kind="compute", settings=probe.settings, chunks=chunks, data=self.costs)

    @property
    def looks(self) -> list[Settings]:
        return [probe.settings for probe in self.probes if probe.steps is not None]


def plan(machine: FakeMachine, *, of: Candidates | None = None, **more: Any) -> Plan:
    arguments: dict[str, Any] = {
        "candidates": of or ragged(),
        "hardware": hardware(),
        "pace": CPU,
        "study": Study(),
        "run": machine.run,
        "clock": machine.clock,
        "budget_s": 240.0,
        "started_s": machine.clock(),
    }
    return Plan(**{**arguments, **more})


def larger_is_faster(settings: Settings) -> float:
    return 10.0 * (settings.batch_size or 1)


def padded(settings: Settings) -> float:
    """Padding is half of the work, larger batches are no better."""
    return 100.0 * (2 if settings.length_grouped else 1)


@pytest.mark.parametrize("accelerator", [None, type("Accelerator", (), {"memory_bytes": None})()])
def test_no_batch_is_raced_that_the_largest_samples_do_not_survive(accelerator: Any) -> None:
    """256 is fastest in its window, 64 is the most that an epoch survives: the search goes on from what does."""
    machine = Texts(larger_is_faster, most=64)
    pace = CPU if accelerator is None else GPU
    found = plan(machine, hardware=hardware(2, accelerator), pace=pace).search()
    sizes = [one.settings.batch_size or 0 for one in found.finalists]
    assert 45 <= max(sizes) <= 64
    assert any("two steps on the largest samples of the data run out of memory (128 long" in t for t in found.warnings)
    assert any(settings.batch_size == max(sizes) for settings in machine.looks)


def test_what_survives_is_raced_as_before() -> None:
    """The fastest is looked at once and kept."""
    machine = Texts(larger_is_faster)
    found = plan(machine).search()
    assert found.finalists[0].settings.batch_size == 256
    assert len(machine.looks) == len(set(machine.looks))


def test_a_batch_that_leaves_too_little_memory_on_the_largest_samples_is_not_raced() -> None:
    """It ran, but beyond the margin."""

    class Full(Texts):
        def _worst(self, probe: Probe) -> Outcome | None:
            outcome = super()._worst(probe)
            if outcome is None or probe.settings.batch_size == 32:
                return outcome
            return Measured(kind="compute", settings=probe.settings, chunks=(), peak_ram_bytes=2**33 - 1)

    found = plan(Full(larger_is_faster)).search()
    assert all(one.settings.batch_size == 32 for one in found.finalists)
    assert any("memory_margin" in text for text in found.warnings)


def test_a_setting_of_the_callers_that_does_not_survive_is_kept_with_a_warning() -> None:
    """Their own batch runs out of memory on the largest samples: they should know."""
    found = plan(Texts(lambda settings: 100.0, most=16)).search()
    assert found.baseline is not None
    assert any(text.startswith("Your own setting may not get through an epoch: batch 32") for text in found.warnings)


def test_a_batch_that_there_was_no_time_to_look_at_is_not_raced() -> None:
    """Its window was fine, but whether an epoch survives is not known; the budget holds."""
    machine = Texts(larger_is_faster)
    of = plan(machine, budget_s=1.5)
    assert of.worst.refusal(Settings(batch_size=512)) == (
        "batch 512: two steps on the largest samples of the data were not run: no time was left."
    )
    assert machine.looks == []


def test_what_ran_out_of_memory_is_not_asked_again_in_a_larger_batch() -> None:
    """Neither its window nor its worst case."""
    machine = Texts(larger_is_faster, most=64)
    plan(machine).search()
    asked: dict[Settings, list[int]] = {}
    for probe in machine.probes:
        size = probe.settings.batch_size or 0
        if size > 64:
            alike = probe.settings.replace(batch_size=1, num_workers=0, num_threads=None)
            asked.setdefault(alike, []).append(size + (probe.steps is None))  # the window comes before the worst case
    assert asked
    assert all(sizes == sorted(sizes, reverse=True) for sizes in asked.values())


@pytest.mark.parametrize("size_limit", [False, True])
def test_an_error_on_the_largest_samples_that_is_not_about_size_bans_nothing(size_limit: bool) -> None:
    """It is said once; a backend that refuses the size of its operands is about size."""

    class Odd(Texts):
        def _worst(self, probe: Probe) -> Outcome | None:
            if super()._worst(probe) is None or probe.settings.batch_size == 32:
                return super()._worst(probe)
            return Rejected(
                kind="compute", settings=probe.settings, phase="step", reason="ValueError: odd.", size_limit=size_limit
            )

    found = plan(Odd(larger_is_faster)).search()
    assert max((one.settings.batch_size or 0 for one in found.finalists), default=32) == (32 if size_limit else 256)
    said = [text for text in found.warnings if "raised an error (ValueError: odd)" in text]
    assert len(said) == len(set(said))
    assert bool(said) is not size_limit


def test_data_whose_batches_are_alike_costs_no_look() -> None:
    """Images: not one probe more than before."""
    machine = Texts(larger_is_faster, most=1)
    found = plan(machine, of=candidates()).search()
    assert machine.looks == []
    assert found.finalists[0].settings.batch_size == 256


def test_the_rate_on_the_largest_samples_is_no_measure_of_speed() -> None:
    """Neither the fastest step nor the next guess comes from it."""
    accelerator = type("Accelerator", (), {"memory_bytes": None})()
    machine = Texts(larger_is_faster)
    found = plan(machine, hardware=hardware(8, accelerator), pace=GPU).search()
    assert found.compute is not None
    assert found.compute.samples_per_s > 1.0
    assert any(probe.kind == "compute" and probe.steps is None for probe in machine.probes)


@pytest.mark.parametrize("accelerator", [None, type("Accelerator", (), {"memory_bytes": None})()])
def test_grouping_is_found_where_it_pays_and_is_allowed(accelerator: Any) -> None:
    """Twice as fast without padding: on a CPU and on an accelerator."""
    found = plan(Texts(padded), hardware=hardware(2, accelerator), pace=CPU if accelerator is None else GPU).search()
    assert all(one.settings.length_grouped for one in found.finalists)
    assert found.finalists
    assert found.data == COSTS


def test_grouping_is_not_kept_where_it_loses() -> None:
    """Sorting costs, nothing is gained."""
    found = plan(Texts(lambda settings: 50.0 if settings.length_grouped else 100.0)).search()
    assert not any(one.settings.length_grouped for one in found.finalists)


@pytest.mark.parametrize(
    ("costs", "reason"),
    [
        (None, "not padded"),
        (DataCosts(seen=9, samples=9, whole=True, mean_length=5.0, longest=6), "not padded"),
        (DataCosts(seen=9, samples=9, whole=True, mean_length=5.0, longest=6, padding_share=0.02), "2.0%"),
        (DataCosts(seen=9, samples=99, whole=False, mean_length=5.0, longest=6, padding_share=0.6), "only 9 samples"),
    ],
    ids=["alike", "no padding", "little", "not all read"],
)
def test_grouping_is_left_alone_where_it_cannot_gain(costs: DataCosts | None, reason: str) -> None:
    """No trial is spent on it, and the reason is kept."""
    machine = Texts(padded, costs=costs)
    found = plan(machine).search()
    assert not any(probe.settings.length_grouped for probe in machine.probes)
    assert reason in found.skipped["length_grouped"]


def test_grouping_is_never_tried_unless_it_is_allowed() -> None:
    """The default space: no probe has it, and the padding that it would save is told with the way to it."""
    dropped = {"length_grouped": "off unless space=Space(length_grouped=True)"}
    machine = Texts(padded)
    found = plan(machine, of=ragged(space=Space(), dropped=dropped)).search()
    assert not any(probe.settings.length_grouped for probe in machine.probes)
    (said,) = [text for text in found.warnings if "padding" in text]
    assert "About 60% of a batch of 32 is padding" in said
    assert "Space(length_grouped=True)" in said
