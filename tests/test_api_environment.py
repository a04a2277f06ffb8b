"""``AUTOTUNE`` in the environment."""

from __future__ import annotations

import pytest

from autotune.api.environment import mode
from autotune.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "expected"), [("", "tune"), (" Off ", "off"), ("CACHED", "cached"), ("force", "force")]
)
def test_the_environment_is_read_leniently(text: str, expected: str) -> None:
    """Case and blanks do not matter; unset and empty are the same."""
    assert mode({"AUTOTUNE": text}) == expected
    assert mode({}) == "tune"


@pytest.mark.parametrize("text", ["0", "tune", "never"])
def test_other_values_are_refused(text: str) -> None:
    """A typing error must not tune on a cluster."""
    with pytest.raises(SettingsError, match=r"AUTOTUNE='.*' is not possible.*off, cached or force"):
        mode({"AUTOTUNE": text})
