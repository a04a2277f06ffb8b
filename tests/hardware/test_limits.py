from __future__ import annotations

import dataclasses
import json

import pytest

from autotune.errors import ConfigError
from autotune.hardware import Hardware, Limits


@pytest.fixture(scope="module")
def here() -> Hardware:
    return dataclasses.replace(Hardware.detect(device="cpu"), ram_available_bytes=1000, shm_bytes=7, open_files=None)


def test_a_tenth_of_the_available_ram_is_left_alone(here: Hardware) -> None:
    """A child may use 90 % of what was available, and shared memory and files as they are."""
    assert Limits.of(here) == Limits(ram_bytes=900, shm_bytes=7, open_files=None)


def test_limits_survive_json(here: Hardware) -> None:
    """What is written is what is read."""
    limits = Limits.of(here)
    assert Limits.from_json(json.loads(json.dumps(limits.to_json()))) == limits


@pytest.mark.parametrize("data", [{}, None, {"ram_bytes": "1", "shm_bytes": None, "open_files": None}])
def test_damaged_limits_raise_our_error(data: object) -> None:
    """Missing fields and wrong types are a ``ConfigError``."""
    with pytest.raises(ConfigError, match="Limits"):
        Limits.from_json(data)  # type: ignore[arg-type]
