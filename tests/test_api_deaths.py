"""A whole call while the user's code crashes, hangs and is killed: it ends, answers honestly, the next one works."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import optuna
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune import Space, TunedConfig, autotune
from autotune.errors import SandboxError, TaskError
from autotune.hardware import Hardware
from autotune.planner import CPU
from tests.api_world import (
    FEATURES,
    Mortal,
    Rows,
    check_proven,
    exit_with_3,
    fail,
    hang,
    kill,
    nothing_left_behind,
    segfault,
    sgd,
    trials_of,
)

pytestmark = pytest.mark.slow

SLACK_S = 60  # beyond 1.1 times the budget; a call that waits for what never comes takes an hour


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing may be left of any call here."""
    with nothing_left_behind():
        yield


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short looks, little patience, one thread: what is tested is who survives, not who is fast."""
    pace = dataclasses.replace(CPU, window_s=0.2, baseline_window_s=0.4, trial_cap_s=4.0, race_lap_s=0.3, idle_moves=2)
    monkeypatch.setattr("autotune.api.story.CPU", pace)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tuned_with(model: nn.Module, data: Any, **options: Any) -> tuple[TunedConfig, list[Any]]:
    """The result of a call, checked to be proven and in time, and all its trials."""
    storage, began = optuna.storages.InMemoryStorage(), time.monotonic()
    arguments: dict[str, Any] = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": sgd, "device": "cpu", "progress": False}
    arguments |= options
    tuned = autotune(model, data, storage=storage, **arguments)
    assert time.monotonic() - began < 1.1 * arguments["time_budget_s"] + SLACK_S
    trials = trials_of(storage)
    check_proven(tuned, trials)
    return tuned, trials


def fates(trials: list[Any]) -> dict[tuple[int, bool], set[str]]:
    """(batch size, with workers) -> what became of such trials."""
    found: dict[tuple[int, bool], set[str]] = {}
    for trial in trials:
        key = trial.params["batch_size"], trial.params["num_workers"] > 0
        found.setdefault(key, set()).add(f"{trial.user_attrs['fate']} {trial.user_attrs.get('message', '')}".strip())
    return found


def two_dangers() -> Space:
    """Workers or none, and the batch: the search ends as soon as each was tried, long before its budget."""
    workers = [0, Hardware.detect().cores]
    return Space(num_workers=workers, num_threads=[1], optimizer_implementation=[None], precision=["fp32"])


@pytest.mark.timeout(180)
def test_workers_that_never_answer_and_batches_that_crash_or_hang(hasty: None) -> None:
    """Hanging workers, a segmentation fault and a hanging step cost their trials and nothing else.

    Report: pytorch/pytorch#51344.
    """
    model = Mortal({32: hang, 64: segfault})
    tuned, trials = tuned_with(model, Rows(in_worker=hang), space=two_dangers(), time_budget_s=60)
    seen = fates(trials)
    assert seen[32, True] == {"timed out timed out"}
    assert "there was no answer within" in tuned.evidence.dropped_knobs["num_workers"]
    assert seen[128, False] == {"crashed ended with exit code -11"}
    assert seen[64, False] == {"timed out timed out"}
    assert tuned.settings.batch_size == 32
    assert tuned.settings.num_workers == 0


@pytest.mark.timeout(180)
def test_killed_workers_and_batches_that_end_the_process(hasty: None) -> None:
    """SIGKILL of a worker, SIGKILL of the whole process and os._exit cost their trials; the next call tunes.

    Report: pytorch/pytorch#8976.
    """
    model = Mortal({32: exit_with_3, 64: kill})
    tuned, trials = tuned_with(model, Rows(in_worker=kill), space=two_dangers(), time_budget_s=60)
    seen = fates(trials)
    assert seen[64, False] == {"crashed ended with exit code 3"}
    assert len(seen[128, False]) == 1
    assert not any(fate.startswith("measured") for fate in seen[32, True] | seen[128, False])
    # torch looks after its workers every five seconds, the trials here end after four: either may be first.
    assert tuned.evidence.dropped_knobs["num_workers"].startswith("workers do not run here: ")
    assert tuned.settings.batch_size == 32
    assert tuned.settings.num_workers == 0
    healthy, trials = tuned_with(nn.Linear(FEATURES, 2), Rows(), time_budget_s=5)
    assert all(trial.user_attrs["fate"] == "measured" for trial in trials)
    assert not healthy.evidence.reason.startswith("not tuned") or not trials


@pytest.mark.timeout(180)
def test_search_goes_on_after_failures(hasty: None) -> None:
    """An exception that no pickle can carry rejects its batch sizes; other settings are measured after it."""
    tuned, trials = tuned_with(
        Mortal({32: fail}),
        DataLoader(Rows(), batch_size=32, shuffle=True),
        time_budget_s=40,
        space=Space(num_workers=[0]),
    )
    seen = fates(trials)
    assert seen[128, False] == {"rejected step: UnpicklableError: too many rows"}
    assert seen[64, False] == {"rejected step: UnpicklableError: too many rows"}
    assert any(trial.params["optimizer_implementation"] == "fused" for trial in trials)
    assert tuned.settings.batch_size == 32


@pytest.mark.timeout(180)
def test_baseline_that_hangs_is_returned_untuned() -> None:
    """Where not even the baseline gets through, it is returned within the budget, with that reason."""
    tuned, trials = tuned_with(Mortal({8: hang}), Rows(), time_budget_s=6)
    assert tuned.evidence.reason.startswith("not tuned")
    assert tuned.evidence.samples_per_s is None
    assert [trial.user_attrs["fate"] for trial in trials] in (["timed out"], [])


@pytest.mark.parametrize(
    ("end", "said"),
    [(exit_with_3, "ended with exit code 3 while describing"), (segfault, "SIGSEGV"), (kill, "SIGKILL")],
)
def test_model_that_ends_every_process_is_an_error(end: Callable[[], object], said: str) -> None:
    """A model that cannot run at all is one error that says how the process ended."""
    with pytest.raises(SandboxError, match=said):
        tuned_with(Mortal({0: end}), Rows(), time_budget_s=5)


def test_model_that_hangs_from_its_first_step_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up after the time for a start, which a small budget makes short."""
    monkeypatch.setattr("autotune.api.story._LEAST_START_S", 8.0)
    with pytest.raises(SandboxError, match=r"did not finish .* within 8 s"):
        tuned_with(Mortal({0: hang}), Rows(), time_budget_s=5)


def test_exception_that_cannot_be_pickled_keeps_its_message() -> None:
    """The user's own exception in the very first step arrives as text, with its traceback."""
    with pytest.raises(TaskError, match="UnpicklableError: too many rows") as raised:
        tuned_with(Mortal({0: fail}), Rows(), time_budget_s=5)
    assert "in fail" in str(raised.value.__cause__)
