"""Workloads made of sleeps: the best settings are known on paper, whatever the machine's speed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from autotune.measurement import Measured
from autotune.space import BatchRules, Space
from autotune.trial import residents
from tests.known_answer.machine import Sleeper, answer

_LOADER_ONLY = Space(
    batch_size=[32], optimizer_implementation=[None], num_threads=[1, 2], gradient_accumulation_steps=[1]
)


class Slow(Dataset[Any]):
    """Every item sleeps ``seconds``."""

    def __init__(self, seconds: float, samples: int = 100_000) -> None:
        self.seconds, self.samples = seconds, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.zeros(4), index % 2


class Locked(Slow):
    """Every item is read under a lock that all processes share."""

    def __init__(self, seconds: float, path: Path) -> None:
        super().__init__(seconds)
        self.path = str(path)

    def __getitem__(self, index: int) -> Any:
        with FileLock(self.path):
            return super().__getitem__(index)


class ColdStore(Slow):
    """An item is slow the first time anyone reads it, and free ever after."""

    def __init__(self, seconds: float, folder: Path) -> None:
        super().__init__(seconds)
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        seen = self.folder / str(index)
        if not seen.exists():
            seen.touch()
            time.sleep(self.seconds)
        return torch.zeros(4), index % 2


def _tensors(samples: int = 20_000) -> TensorDataset:
    return TensorDataset(torch.zeros(samples, 4), torch.zeros(samples, dtype=torch.long))


def test_items_that_take_time_get_a_worker_per_core() -> None:
    """10 ms of sleep an item and a free step: loading is all there is, and it divides by the workers."""
    best, _, found = answer(Sleeper, Slow(0.01), space=_LOADER_ONLY)
    assert best.num_workers == 2
    assert found.finalists


def test_data_in_memory_gets_no_workers() -> None:
    """Handing a batch of 32 between processes costs more than indexing it (Lightning-AI/pytorch-lightning#17410)."""
    best, _, _ = answer(Sleeper, _tensors(), rules=BatchRules(effective_batch_size="keep"))
    assert best.num_workers == 0


def test_data_behind_a_lock_is_no_faster_than_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 ms under a lock an item: however many workers wait for it and are held still with it, no window shows more.

    Reports: discuss.pytorch.org/t/speed-up-cnn-pytorch/79268/4.
    """
    monkeypatch.setattr(residents, "_PATIENCE_S", 1.0)
    _, outcomes, _ = answer(Sleeper, Locked(0.005, tmp_path / "lock"), space=_LOADER_ONLY, race_s=20.0)
    whole = [one for one in outcomes if isinstance(one, Measured) and one.kind in ("joint", "lap") and not one.cut]
    assert any(one.settings.num_workers == 2 for one in whole)
    assert all(one.samples_per_s < 1.25 / 0.005 for one in whole)


def test_a_cliff_is_not_climbed() -> None:
    """4 ms a step, 200 ms more above 32 rows: 32 rows at most.

    Reports: huggingface/transformers#14615, microsoft/WSL#11050,
    derrian-distro/LoRA_Easy_Training_Scripts#267.
    """
    best, _, _ = answer(lambda: Sleeper(lambda rows: 0.004 + 0.2 * (rows > 32)), _tensors())
    assert best.batch_size is not None
    assert best.batch_size <= 32


def test_a_step_of_constant_time_gets_the_largest_batch_allowed() -> None:
    """20 ms a step whatever its size: samples/s grow with the batch up to the cap (facebookresearch/spdl PR #1457)."""
    best, _, _ = answer(lambda: Sleeper(lambda rows: 0.02), _tensors(), rules=BatchRules(max_effective_batch_size=200))
    assert best.batch_size == 200


class SlowStart(Sleeper):
    """The first two passes of each model take half a second more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.passes < 2:
            time.sleep(0.5)
        return super().forward(x)


def test_slow_first_steps_do_not_change_the_ranking() -> None:
    """Warm-up swallows them: the larger batch still wins by its steady rate (pytorch/pytorch#93634)."""
    best, _, _ = answer(
        lambda: SlowStart(lambda rows: 0.02), _tensors(), rules=BatchRules(max_effective_batch_size=128)
    )
    assert best.batch_size == 128


class SlowUnderAutocast(Sleeper):
    """40 times slower in reduced precision, as emulated bfloat16 is."""

    slow_passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu"):
            type(self).slow_passes += 1
            time.sleep(1.95)
        return super().forward(x)


def test_a_precision_that_is_emulated_costs_two_steps_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s in place of 50 ms are seen in the second step, and not looked at again."""
    monkeypatch.setattr(SlowUnderAutocast, "slow_passes", 0)
    best, _, _ = answer(lambda: SlowUnderAutocast(lambda rows: 0.05), _tensors(), cpu_bf16_native=True)
    assert 1 <= SlowUnderAutocast.slow_passes <= 2
    assert best.precision == "fp32"


def test_a_compiler_that_slows_every_call_is_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code that takes 20 ms more a call loses (pytorch/pytorch#111182)."""

    def compile_in_place(module: nn.Module, **_: Any) -> None:
        original = module.forward

        def slower(x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.02)
            return original(x)

        module._compiled_call_impl = slower

    monkeypatch.setattr(nn.Module, "compile", compile_in_place)
    best, outcomes, _ = answer(lambda: Sleeper(lambda rows: 0.01), _tensors(), budget_s=110.0, has_compiler=True)
    assert any(one.settings.compile_mode for one in outcomes)
    assert best.compile_mode is None


def test_a_store_that_is_slow_only_once_is_not_taken_for_fast(tmp_path: Path) -> None:
    """Each trial reads other items: no measured rate exceeds what cold reads allow."""
    seconds = 0.004
    _, outcomes, _ = answer(Sleeper, ColdStore(seconds, tmp_path), space=_LOADER_ONLY)
    trials = [one for one in outcomes if isinstance(one, Measured) and one.kind in ("joint", "loader")]
    assert len(trials) >= 3
    for trial in trials:
        assert trial.window_samples_per_s <= 1.1 * max(1, trial.settings.num_workers) / seconds
