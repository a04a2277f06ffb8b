"""Arguments of the call, checked before anything starts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy
import pytest

from autotune.api.options import Options
from autotune.errors import SettingsError
from autotune.settings import Settings
from autotune.space import Space


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time_budget_s", 0),
        ("time_budget_s", -1.0),
        ("time_budget_s", math.nan),
        ("time_budget_s", "60"),
        ("memory_margin", 1.0),
        ("memory_margin", -0.1),
        ("lr_scaling", "cubic"),
        ("seed", -1),
        ("seed", 2**32),
        ("seed", True),
        ("space", {"num_workers": [1]}),
        ("hardware", "x"),
        ("study_name", 7),
        ("isolate", "no"),
        ("progress", "x"),
    ],
)
def test_an_argument_that_cannot_be_is_named(name: str, value: object) -> None:
    """One clear error with the argument's name, before any process starts."""
    with pytest.raises(SettingsError, match=name):
        Options(**{name: value})  # type: ignore[arg-type]


def test_integers_of_numpy_are_integers() -> None:
    """A computed batch size is as good as a written one."""
    options = Options(max_batch_size=numpy.int64(64), seed=numpy.int64(3), time_budget_s=numpy.float32(5))  # type: ignore[arg-type]
    assert type(options.max_batch_size) is int
    assert (options.max_batch_size, options.seed) == (64, 3)


def test_sensible_arguments_pass() -> None:
    """The defaults and a space are fine."""
    assert Options(space=Space(num_workers=[0])).time_budget_s == 120.0


def test_an_earlier_answers_batch_is_known_to_the_rules() -> None:
    """It may be what a locked effective batch is made up of."""
    task = SimpleNamespace(base_batch_size=None)
    assert Options(earlier=Settings(batch_size=7)).batch_rules(task).earlier_batch_size == 7  # type: ignore[arg-type]
    assert Options().batch_rules(task).earlier_batch_size is None  # type: ignore[arg-type]
