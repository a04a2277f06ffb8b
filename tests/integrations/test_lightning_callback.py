"""Lightning's Trainer trains with what the callback was given."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.errors import TaskError
from autotune.integrations import AutotuneCallback
from autotune.settings import Settings

from .conftest import Tuner

_BETTER = Settings(batch_size=8, gradient_accumulation_steps=2, precision="bf16-mixed", num_threads=1)


def numbers() -> TensorDataset:
    """Seventy rows of noise and two classes."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(70, 6, generator=generator), torch.arange(70) % 2)


class Tiny(LightningModule):
    """One layer; notes what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.rows: list[int] = []
        self.dtypes: set[torch.dtype] = set()
        self.total_steps = 0.0

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """Cross-entropy."""
        inputs, target = batch
        output = self.layer(inputs)
        self.rows.append(len(target))
        self.dtypes.add(output.dtype)
        return nn.functional.cross_entropy(output, target)

    def on_train_start(self) -> None:
        """What was noted before is of other runs."""
        self.rows.clear()
        self.dtypes.clear()

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of four."""
        return DataLoader(numbers(), batch_size=4, shuffle=True)

    def configure_optimizers(self) -> Any:
        """Momentum, and a schedule that falls with every step."""
        if self._trainer is not None and hasattr(self.trainer, "estimated_stepping_batches"):
            self.total_steps = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Notes(Callback):
    """What the Trainer holds once training has begun."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note it."""
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.precision = trainer.precision
        self.accumulated = trainer.accumulate_grad_batches


def fit(module: LightningModule, *callbacks: Callback, data: Any = None, **options: Any) -> Trainer:
    """Trains for an epoch."""
    defaults = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False, "max_epochs": 1}
    defaults |= {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(**{**defaults, **options}, callbacks=list(callbacks))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # on workers, logging and this machine
        warnings.filterwarnings("ignore", message=".*(does not have many workers|log_every_n_steps).*")
        trainer.fit(module, data)
    return trainer


def test_loader_precision_accumulation_and_rate_are_the_tuned_ones() -> None:
    """Batches of 8 under bf16, an update every second one, at twice the rate, over every sample once."""
    module, notes, tuner = Tiny(), Notes(), Tuner(_BETTER)
    callback = AutotuneCallback(tune=tuner, time_budget_s=3)
    trainer = fit(module, callback, notes)
    assert module.rows == [8] * 8 + [6]
    assert module.dtypes == {torch.bfloat16}
    assert (notes.precision, notes.accumulated) == ("bf16-mixed", 2)
    assert notes.rate == pytest.approx(0.2)
    assert trainer.global_step == 5
    assert callback.tuned is not None
    assert callback.tuned.settings == _BETTER
    assert tuner.options[0]["time_budget_s"] == 3


def test_a_schedule_counts_the_steps_of_the_tuned_loader() -> None:
    """estimated_stepping_batches is asked before training, and already sees loader and accumulation."""
    module = Tiny()
    fit(module, AutotuneCallback(tune=Tuner(_BETTER)))
    assert module.total_steps == 5


def test_the_baseline_is_the_trainers_own() -> None:
    """Accumulation, precision, clipping and the batch of the Trainer are what the tuner starts from."""
    tuner = Tuner(_BETTER)
    fit(Tiny(), AutotuneCallback(tune=tuner), accumulate_grad_batches=3, precision="bf16-mixed", gradient_clip_val=0.5)
    (task,) = tuner.tasks
    assert task.trains_with == {"gradient_accumulation_steps": 3, "precision": "bf16-mixed"}
    assert (task.base_batch_size, task.max_grad_norm, task.data.batch_size) == (12, 0.5, 4)
    assert tuner.options[0]["space"].listed("optimizer_implementation") == (None,)


def test_a_found_fp32_takes_the_trainers_mixed_precision_back() -> None:
    """Precision is set either way, not only switched on."""
    module, notes = Tiny(), Notes()
    fit(module, AutotuneCallback(tune=Tuner(Settings(batch_size=8))), notes, precision="bf16-mixed")
    assert module.dtypes == {torch.float32}
    assert notes.precision == "32-true"


class Numbers(LightningDataModule):
    """The same data from a data module."""

    def setup(self, stage: str) -> None:
        """Made late, as data modules do."""
        self.data = numbers()

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of four."""
        return DataLoader(self.data, batch_size=4)


@pytest.mark.parametrize("data", ["module", "loader"])
def test_data_modules_and_loaders_handed_over_are_tuned_too(data: str) -> None:
    """Wherever the data comes from, it is loaded in the tuned batches."""
    module = Tiny()
    fit(module, AutotuneCallback(tune=Tuner(_BETTER)), data=Numbers() if data == "module" else DataLoader(numbers()))
    assert module.rows == [8] * 8 + [6]


def test_a_saved_config_is_not_tuned_again(tmp_path: Path) -> None:
    """A path or a config is used as it is."""
    first = AutotuneCallback(tune=Tuner(_BETTER))
    fit(Tiny(), first)
    assert first.tuned is not None
    first.tuned.save(tmp_path / "tuned.json")
    module, unused = Tiny(), Tuner(Settings())
    fit(module, AutotuneCallback(tmp_path / "tuned.json", tune=unused))
    assert module.rows == [8] * 8 + [6]
    assert unused.tasks == []


class MadeLate(Tiny):
    """Has no layer before setup()."""

    def __init__(self) -> None:
        super().__init__()
        del self.layer

    def setup(self, stage: str) -> None:
        """Makes it."""
        self.layer = nn.Linear(6, 2)


def test_a_module_made_in_setup_is_tuned_after_it_and_a_wrong_schedule_said() -> None:
    """The tuner gets the whole module; configure_optimizers had counted the former loader's steps."""
    module, tuner = MadeLate(), Tuner(_BETTER)
    with pytest.warns(UserWarning, match="counts those of the former loader"):
        fit(module, AutotuneCallback(tune=tuner))
    assert module.rows == [8] * 8 + [6]
    assert module.total_steps == 18


def test_a_second_fit_trains_under_the_same_settings() -> None:
    """It is tuned once; loader and rate are those of the first fit."""
    module, tuner, notes = Tiny(), Tuner(_BETTER), Notes()
    callback = AutotuneCallback(tune=tuner)
    trainer = fit(module, callback, notes)
    trainer.fit_loop.max_epochs = 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own
        trainer.fit(module)
    assert len(tuner.tasks) == 1
    assert module.rows == [8] * 8 + [6]
    assert notes.rate == pytest.approx(0.2)


class WithImages(Tiny):
    """Blocks of convolutions, made in setup()."""

    def __init__(self) -> None:
        super().__init__()
        del self.layer

    def setup(self, stage: str) -> None:
        """Makes them."""
        reshape = nn.Unflatten(1, (6, 1, 1))
        self.layer = nn.Sequential(reshape, nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(4, 2))


def test_memory_format_is_set_on_a_model_that_is_made_late(tmp_path: Path) -> None:
    """A ready config is applied to the whole model, whenever it is made."""
    first = AutotuneCallback(tune=Tuner(_BETTER.replace(channels_last=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that steps were counted before
        fit(WithImages(), first)
    module = WithImages()
    fit(module, AutotuneCallback(first.tuned))
    assert module.layer[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert module.rows == [8] * 8 + [6]


class Steps(Callback):
    """The rates at which the optimizer really stepped."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the optimizer."""
        optimizer = trainer.optimizers[0]
        optimizer.register_step_pre_hook(lambda one, *_: self.rates.append(one.param_groups[0]["lr"]))


def test_the_warm_up_rises_from_the_rate_before_tuning() -> None:
    """Each step's rate is the schedule's times the share of TrainStep's warm-up; the schedule never sees it."""
    steps = Steps()
    fit(Tiny(), AutotuneCallback(tune=Tuner(_BETTER, warmup_steps=2)), steps)
    assert steps.rates == pytest.approx([0.1, 0.1 * 0.75, 0.05, 0.025, 0.0125])


def test_what_cannot_be_applied_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """An implementation of the optimizer stays the module's own, with a warning and in not_applied."""
    tuner = Tuner(_BETTER.replace(optimizer_implementation="foreach"))
    callback = AutotuneCallback(tune=tuner)
    with caplog.at_level(logging.WARNING, logger="autotune"):
        fit(Tiny(), callback)
    assert [one.partition("=")[0].partition(":")[0] for one in callback.not_applied] == [
        "optimizer_implementation",
        "the weights of short groups",
    ]
    assert "optimizer_implementation='foreach'" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reload_dataloaders_every_n_epochs": 1}, "would replace the tuned loader"),
        ({"precision": "bf16-true"}, "converts the model itself"),
        ({"callbacks": [GradientAccumulationScheduler({0: 1, 4: 2})]}, "sets the accumulation anew"),
    ],
)
def test_trainers_that_would_undo_it_are_refused(options: dict[str, Any], said: str) -> None:
    """Before anything is tuned, with the reason."""
    tuner = Tuner(_BETTER)
    callbacks = options.pop("callbacks", [])
    with pytest.raises(TaskError, match=said):
        fit(Tiny(), AutotuneCallback(tune=tuner), *callbacks, **options)
    assert tuner.tasks == []


def test_the_callback_remembers_the_warm_up_of_a_resumed_run() -> None:
    """Its state is the number of optimizer steps, which a new callback goes on from."""
    callback = AutotuneCallback(tune=Tuner(_BETTER, warmup_steps=100))
    fit(Tiny(), callback)
    assert callback.state_dict() == {"optimizer_steps": 5}
    other = AutotuneCallback(tune=Tuner(_BETTER))
    other.load_state_dict({"optimizer_steps": 5})
    assert other.state_dict() == {"optimizer_steps": 5}
