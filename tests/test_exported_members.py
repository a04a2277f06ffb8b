"""The public names are fixed: adding or losing one is a visible decision."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version

import pytest

import autotune

PUBLIC = ["Settings", "Space", "Task", "TrainStep", "TunedConfig", "autotune", "largest_batch"]


def test_the_public_names_are_pinned() -> None:
    """``__all__`` is this list, sorted as written."""
    assert autotune.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_can_be_had(name: str) -> None:
    """Every name loads on first use, is callable, and is documented."""
    value = getattr(autotune, name)
    assert callable(value)
    assert value.__doc__


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """A typing error does not import anything or give None."""
    with pytest.raises(AttributeError, match="no attribute 'autotunes'"):
        autotune.autotunes  # noqa: B018


def test_dir_shows_the_public_names() -> None:
    """Completion in a shell finds them before their first use."""
    assert set(PUBLIC) <= set(dir(autotune))


def test_the_version_is_the_distributions() -> None:
    """``__version__`` comes from the installed metadata, so the two cannot differ."""
    try:
        installed = version("torch-autotune")
    except PackageNotFoundError:
        pytest.skip("the distribution is not installed here")
    assert autotune.__version__ == installed


@pytest.mark.parametrize("module", ["errors", "settings", "measurement", "batch_size", "study", "race"])
def test_what_a_module_exports_exists(module: str) -> None:
    """A name in a module's ``__all__`` is defined there."""
    loaded = importlib.import_module(f"autotune.{module}")
    assert all(hasattr(loaded, name) for name in loaded.__all__)
