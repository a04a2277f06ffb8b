"""Is a stored config still true: each verdict, by what the machine does."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from autotune.config import Speedup
from autotune.nightly.check import EXIT_CODES, Check, check
from autotune.race import RaceResult


def checked(world: Any, **changes: Any) -> Check:
    """The check of the stored settings."""
    config = world.config(next(one for one in world.rates if one.channels_last))
    return check(dataclasses.replace(config, **changes), world.here, clock=lambda: world.seconds)


def test_what_is_as_fast_as_stored_is_valid(world: Any) -> None:
    """The interval is around the stored ratio."""
    found = checked(world)
    assert (found.verdict, found.exit_code) == ("valid", 0)
    assert found.low < 1.5 < found.high
    assert found.stored == pytest.approx(1.5)
    assert "It holds" in found.reason


def test_what_gains_less_than_stored_has_drifted_by_so_much(world: Any) -> None:
    """By how much, with its interval."""
    config = world.config(_stored(world))
    world.rates[_stored(world)] = 120.0
    found = check(config, world.here, clock=lambda: world.seconds)
    assert (found.verdict, found.exit_code) == ("drifted", 10)
    assert found.low < 1.2 < found.high < 1.47
    assert found.to_json()["drift"] == pytest.approx(0.8, abs=0.03)
    assert re.search(r"1\.1\dx the baseline .* now, 1\.50x stored, 2\d% less", found.reason)


def test_what_is_slower_than_the_baseline_has_drifted(world: Any) -> None:
    """Even where no race is stored."""
    config = world.config(_stored(world), speedup=None)
    world.rates[_stored(world)] = 80.0
    assert check(config, world.here, clock=lambda: world.seconds).verdict == "drifted"


def test_noise_is_undecided_not_drift(world: Any) -> None:
    """An interval that holds both says so."""
    world.noise = 0.4
    found = checked(world)
    assert (found.verdict, found.exit_code) == ("undecided", 13)


def test_a_much_smaller_gain_within_a_wide_interval_is_undecided(world: Any) -> None:
    """It does not hold only because noise reaches up to what is stored."""
    config = world.config(_stored(world), speedup=Speedup(median=16.0, low=14.0, high=18.0, rounds=6))
    world.rates[_stored(world)] = 300.0
    race = _race_of((1.5, 2.0, 3.0, 30.0, 40.0))
    assert check(config, world.here, race=race).verdict == "undecided"


def _race_of(ratios: tuple[float, ...]) -> Any:
    """A race that showed these ratios."""

    def raced(baseline: Any, candidates: Any, *, margin: float, **_: Any) -> list[RaceResult]:
        rates = {"baseline_samples_per_s": (100.0,) * len(ratios)}
        rates["candidate_samples_per_s"] = tuple(100.0 * ratio for ratio in ratios)
        return [RaceResult(baseline=baseline, candidate=candidates[0], margin=margin, **rates)]

    return raced


def test_too_little_time_is_undecided(world: Any) -> None:
    """A race that was not run proves nothing."""
    config = world.config(_stored(world))
    found = check(config, world.here, clock=lambda: world.seconds, budget_s=0.5)
    assert found.verdict == "undecided"
    assert found.median is None


def test_another_machine_is_foreign_field_by_field(world: Any, other_machine: Any) -> None:
    """Nothing is run there."""
    config = world.config(_stored(world))
    there = other_machine(world)
    looks = there.looks
    found = check(config, there.here)
    assert (found.verdict, found.exit_code) == ("foreign", 11)
    assert [one.field for one in found.differences] == ["cores"]
    assert there.looks == looks


def test_another_task_is_foreign(world: Any) -> None:
    """Whatever the machine."""
    here = dataclasses.replace(world.here, fingerprint="sha256:other")
    found = check(world.config(_stored(world)), here)
    assert found.verdict == "foreign"
    assert "which part of it cannot be told" in found.reason


def test_another_task_is_foreign_part_by_part(world: Any) -> None:
    """In the sentence and in the JSON; what an older file does not tell is not guessed at."""
    parts = {"dataset": "Rows [0123456789abcdef]", "batch": "list(float32[*,9])", "optimizer": "torch.optim.SGD"}
    here = dataclasses.replace(world.here, fingerprint="sha256:other", parts=parts)
    found = check(world.config(_stored(world)), here)
    said = "batch: list(float32[*,3,8,8], int64[*]) there, list(float32[*,9]) here"
    assert found.reason == f"It was tuned for another task ({said})."
    (difference,) = found.to_json()["task_differences"]
    assert (difference["part"], difference["here"]) == ("batch", "list(float32[*,9])")


def test_code_of_another_python_is_foreign_and_said(world: Any) -> None:
    """Compiled code differs between minor versions, whatever the source."""
    config = world.config(_stored(world))
    facts = dataclasses.replace(config.facts, fingerprint_parts={"dataset": "Rows [0123456789abcdef]"})
    config = dataclasses.replace(config, facts=facts, hardware=dataclasses.replace(world.hardware, python="3.1.4"))
    parts = {"dataset": "Rows [ffffffffffffffff]"}
    found = check(config, dataclasses.replace(world.here, fingerprint="sha256:other", parts=parts))
    assert "dataset: Rows, with other code or options; code counts as compiled, by Python 3.1 there" in found.reason


def test_a_figure_taken_among_others_is_no_measure_of_drift(world: Any) -> None:
    """What gains less now, and still something, holds; the stored figure is named with its doubt."""
    speedup = Speedup(median=3.0, low=2.9, high=3.1, rounds=6, others_cores=2.0)
    found = check(world.config(_stored(world), speedup=speedup), world.here, clock=lambda: world.seconds)
    assert found.verdict == "valid"
    assert "3.00x stored (measured while other processes used up to 2.0 cores)" in found.reason
    assert found.to_json()["stored_among"] == "other processes used up to 2.0 cores"
    quiet = dataclasses.replace(speedup, others_cores=0.1)
    found = check(world.config(_stored(world), speedup=quiet), world.here, clock=lambda: world.seconds)
    assert (found.verdict, found.stored_among) == ("drifted", None)


def test_a_patch_release_of_torch_is_checked(world: Any) -> None:
    """Near, not foreign: the race decides, and the difference is named."""
    major, minor, _ = world.hardware.torch.split("+")[0].split(".")
    local = world.hardware.torch.partition("+")[1:]
    config = world.config(_stored(world))
    old = dataclasses.replace(world.hardware, torch=f"{major}.{minor}.99{''.join(local)}")
    found = check(dataclasses.replace(config, hardware=old), world.here, clock=lambda: world.seconds)
    assert found.verdict == "valid"
    assert found.near


def test_what_does_not_run_is_unsafe(world: Any) -> None:
    """The safe step runs out of memory, and nothing is raced (IBM/triton-dejavu#1)."""
    world.out_of_memory.add(("compute", _stored(world)))
    found = checked(world)
    assert (found.verdict, found.exit_code) == ("unsafe", 12)
    assert world.looks == 1
    assert "runs out of memory (no room)" in found.reason


def test_what_fails_in_the_race_is_unsafe(world: Any) -> None:
    """A step alone is not all that can fail."""
    world.out_of_memory.add(("lap", _stored(world)))
    found = checked(world)
    assert found.verdict == "unsafe"
    assert world.looks > 1


def test_a_stored_baseline_needs_no_race(world: Any) -> None:
    """It runs, so it is valid."""
    found = check(world.config(world.config(_stored(world)).baseline), world.here)
    assert found.verdict == "valid"
    assert world.looks == 1


def test_each_verdict_has_its_own_exit_code_and_json(world: Any) -> None:
    """Scripts tell them apart, and from the errors'."""
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert set(EXIT_CODES.values()) - {0} <= set(range(10, 20))
    json.dumps(checked(world).to_json(), allow_nan=False)


def _stored(world: Any) -> Any:
    return next(one for one in world.rates if one.channels_last)
