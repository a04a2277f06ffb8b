"""The error tree: cause, remedy, exit codes."""

from __future__ import annotations

import pickle

import pytest

from autotune import errors


def test_every_error_has_its_own_exit_code() -> None:
    """A script can tell the kinds apart."""
    codes = [getattr(errors, name).exit_code for name in errors.__all__]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes


@pytest.mark.parametrize("name", errors.__all__)
def test_the_message_is_cause_and_remedy(name: str) -> None:
    """Both are shown, in one paragraph, also after a pickle."""
    error = getattr(errors, name)("It broke.", "Mend it.")
    assert str(pickle.loads(pickle.dumps(error))) == "It broke. Mend it."


def test_a_settings_error_is_a_value_error() -> None:
    """Callers who expect the builtin catch it."""
    assert issubclass(errors.SettingsError, ValueError)
