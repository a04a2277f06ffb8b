"""Reports about the Optuna study; the others are covered in tests/test_study.py."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from autotune.measurement import Chunk, Measured
from autotune.settings import CompileMode, Precision, Settings
from autotune.study import Study


def test_settings_that_stand_for_torch_objects_are_stored_as_text(tmp_path: Path) -> None:
    """Every precision and compile mode goes into SQLite and comes back.

    Reports: optuna/optuna#2341, DLR-RM/rl-baselines3-zoo#2.
    """
    url = f"sqlite:///{tmp_path / 'study.db'}"
    settings = [Settings(precision=precision) for precision in get_args(Precision)]
    settings += [Settings(compile_mode=mode) for mode in get_args(CompileMode)]
    with Study(url, "one") as study:
        for one in settings:
            study.record(Measured(kind="joint", settings=one, chunks=(Chunk(10, 1.0),)))
        assert study.warnings == []
    with Study(url, "one") as again:
        trials = again.optuna_study.trials
        assert len(trials) == len(settings)
        for trial in trials:
            assert all(isinstance(value, str | int | float | bool) for value in trial.params.values())
