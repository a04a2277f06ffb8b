"""What differs between two machines, and which difference is only a patch release."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autotune.hardware import Accelerator, Hardware
from autotune.hardware.nearness import is_patch_release, speed_differences

CARD = {"type": "cuda", "name": "A", "index": 0, "count": 2, "memory_bytes": 80 * 2**30, "driver": "550.1"}
HERE: dict[str, Any] = {
    "cores": 8,
    "cpu_model": "X",
    "torch": "2.14.1+cu130",
    "cuda": "13.0",
    "cudnn": 91002,
    "accelerator": CARD,
}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"ram_bytes": 3, "python": "3.12"}, []),
        ({"cores": 4, "cuda": "12.8"}, ["cores", "cuda"]),
        ({"accelerator": {**CARD, "driver": "550.9", "free_bytes": 5}}, []),
        ({"accelerator": {**CARD, "driver": "570.1", "count": 1}}, ["accelerator.count", "accelerator.driver_major"]),
        ({"accelerator": {**CARD, "name": "unknown", "memory_bytes": None}}, []),
        ({"accelerator": None}, ["accelerator"]),
    ],
)
def test_the_fields_that_change_speed_are_compared(changes: dict[str, Any], fields: list[str]) -> None:
    """Others do not count, and what is not known yet is no difference."""
    assert [one.field for one in speed_differences({**HERE, **changes}, HERE)] == fields


def test_the_facts_compared_are_those_of_the_fingerprint() -> None:
    """Each field of ``Hardware.speed_facts`` shows when it differs, and only then does the fingerprint."""
    hardware = dataclasses.replace(Hardware.detect(), accelerator=Accelerator(**CARD))
    changes: dict[str, Any] = {"cores": 99, "cpu_model": "other", "torch": "1.0.0", "cuda": "1", "cudnn": 1}
    changes["accelerator"] = Accelerator(**{**CARD, "name": "B"})
    assert set(changes) == set(hardware.speed_facts())
    for name, value in changes.items():
        other = dataclasses.replace(hardware, **{name: value})
        (found,) = speed_differences(other.to_json(), hardware.to_json())
        assert found.field.startswith(name)
        assert other.fingerprint != hardware.fingerprint


def test_a_record_of_a_fingerprint_alone_differs_by_it() -> None:
    """Nothing more is known of it."""
    (found,) = speed_differences({"fingerprint": "sha256:a"}, {**HERE, "fingerprint": "sha256:b"})
    assert str(found) == "fingerprint: sha256:a there, sha256:b here"


@pytest.mark.parametrize(
    ("changes", "near"),
    [
        ({"torch": "2.14.0+cu130"}, True),
        ({"torch": "2.14.0+cu130", "cudnn": 91001}, True),
        ({"torch": "2.13.1+cu130"}, False),
        ({"torch": "2.14.0+cpu"}, False),
        ({"torch": "2.14.0+cu130", "cores": 4}, False),
        ({"cudnn": 91001}, False),
        ({"torch": "2.14.0+cu130", "cudnn": 81001}, False),
        ({"torch": "nightly"}, False),
    ],
)
def test_a_patch_release_of_torch_is_near(changes: dict[str, Any], near: bool) -> None:
    """With the cuDNN it brings; nothing else may differ."""
    assert is_patch_release(speed_differences({**HERE, **changes}, HERE)) is near
