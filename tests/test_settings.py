"""Settings: domains, consistency, JSON."""

from __future__ import annotations

import json

import pytest

from autotune.errors import SettingsError
from autotune.settings import DOMAINS, Settings


def test_every_field_has_a_domain_that_holds_its_default() -> None:
    """Each knob of Settings is described once, and its default is possible."""
    settings = Settings()
    assert set(settings.to_json()) == set(DOMAINS)
    assert all(domain.holds(getattr(settings, name)) for name, domain in DOMAINS.items())


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", 4.0),
        ("precision", "bf16"),
        ("channels_last", 1),
        ("num_workers", -1),
        ("compile_mode", "fast"),
        ("num_threads", 0),
    ],
)
def test_a_value_outside_its_domain_is_refused_with_the_value_named(knob: str, value: object) -> None:
    """A wrong value never becomes settings."""
    with pytest.raises(SettingsError, match=f"{knob}={value!r}"):
        Settings(**{knob: value})


def test_prefetch_without_workers_is_refused() -> None:
    """torch refuses prefetch_factor with zero workers, so these settings cannot exist."""
    with pytest.raises(SettingsError, match="num_workers > 0"):
        Settings(prefetch_factor=2)
    with pytest.raises(SettingsError, match="needs a prefetch_factor"):
        Settings(num_workers=1)


def test_replace_keeps_the_loader_knobs_consistent() -> None:
    """Going to workers and back sets and clears what depends on them."""
    some = Settings().replace(num_workers=3)
    assert (some.prefetch_factor, some.persistent_workers) == (2, True)
    none = some.replace(num_workers=0)
    assert (none.prefetch_factor, none.persistent_workers) == (None, False)
    assert some.replace(num_workers=2, prefetch_factor=8).prefetch_factor == 8


def test_replace_refuses_a_name_that_is_no_knob() -> None:
    """A typo is named together with the knobs there are."""
    with pytest.raises(SettingsError, match="Unknown knob 'workers'"):
        Settings().replace(workers=2)


def test_json_round_trip_is_exact() -> None:
    """What was written comes back equal."""
    settings = Settings(batch_size=None, precision="bf16-mixed").replace(num_workers=2, num_threads=1)
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize("data", [[], "x", {"batch_size": "4"}, {"speed": 1}])
def test_json_that_is_no_settings_is_refused(data: object) -> None:
    """Anything else is a SettingsError, not a TypeError."""
    with pytest.raises(SettingsError):
        Settings.from_json(data)  # type: ignore[arg-type]


def test_effective_batch_is_micro_batch_times_accumulation() -> None:
    """None where the batches are the user's own."""
    assert Settings(batch_size=8, gradient_accumulation_steps=4).effective_batch_size == 32
    assert Settings(batch_size=None).effective_batch_size is None


def test_differences_name_the_knobs_that_changed() -> None:
    """Own value first, the other's second."""
    assert Settings().differences(Settings(batch_size=64)) == {"batch_size": (32, 64)}
