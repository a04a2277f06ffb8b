"""A Trainer trains with what ``autotune_trainer`` set."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import Dataset

from autotune.errors import TaskError
from autotune.export import to
from autotune.integrations import autotune_trainer
from autotune.settings import Settings

from .conftest import Tuner

_BETTER = Settings(batch_size=8, gradient_accumulation_steps=2, precision="bf16-mixed", num_threads=1)


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Seventy rows of noise and two classes."""

    def __len__(self) -> int:
        return 70

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        noise = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return {"inputs": noise, "labels": torch.tensor(index % 2)}


class Tiny(nn.Module):
    """One layer that returns its loss; notes what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.rows: list[int] = []
        self.dtypes: set[torch.dtype] = set()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and scores."""
        scores = self.layer(inputs)
        self.rows.append(len(labels))
        self.dtypes.add(scores.dtype)
        return {"loss": nn.functional.cross_entropy(scores.float(), labels), "logits": scores}


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Any]:
    """Makes a Trainer that writes nothing."""

    def make(**changes: Any) -> Any:
        given = {name: changes.pop(name) for name in ("optimizers",) if name in changes}
        defaults = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 4,
            "learning_rate": 0.01,
            "num_train_epochs": 1,
            "lr_scheduler_type": "constant",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "save_strategy": "no",
            "dataloader_pin_memory": False,
        }
        args = transformers.TrainingArguments(**{**defaults, **changes})
        return transformers.Trainer(model=Tiny(), args=args, train_dataset=Rows(), **given)

    return make


def test_batch_accumulation_precision_and_rate_are_the_tuned_ones(make_trainer: Callable[..., Any]) -> None:
    """The training that follows runs batches of 8 under bf16, an update every second one, at twice the rate."""
    trainer, tuner = make_trainer(), Tuner(_BETTER)
    same, tuned = autotune_trainer(trainer, tune=tuner, time_budget_s=3)
    assert same is trainer
    assert tuned.settings == _BETTER
    rows_before = len(trainer.model.rows)
    done = trainer.train()
    assert trainer.model.rows[rows_before:] == [8] * 8 + [6]
    assert torch.bfloat16 in trainer.model.dtypes
    assert trainer.accelerator.mixed_precision == "bf16"
    assert done.global_step == 5
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.02)
    assert tuner.options[0]["time_budget_s"] == 3


def test_the_search_is_kept_to_what_a_trainer_can_be_given(make_trainer: Callable[..., Any]) -> None:
    """No memory format, compilation or other implementation of the optimizer is tried unless asked for."""
    tuner = Tuner(_BETTER)
    autotune_trainer(make_trainer(), tune=tuner)
    space = tuner.options[0]["space"]
    assert space.listed("channels_last") == (False,)
    assert space.listed("optimizer_implementation") == (None,)
    assert tuner.tasks[0].trains_with == {"gradient_accumulation_steps": 1, "precision": "fp32"}


def test_workers_are_set(make_trainer: Callable[..., Any]) -> None:
    """The Trainer's loader has them, with prefetching and persistence."""
    trainer = make_trainer()
    better = Settings(batch_size=8, num_workers=2, prefetch_factor=4, persistent_workers=True)
    autotune_trainer(trainer, tune=Tuner(better))
    loader = trainer.get_train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 4, True)


def test_a_found_fp32_takes_the_trainers_mixed_precision_back(make_trainer: Callable[..., Any]) -> None:
    """Precision is set either way."""
    trainer = make_trainer(bf16=True)
    autotune_trainer(trainer, tune=Tuner(Settings(batch_size=8)))
    assert trainer.accelerator.mixed_precision == "no"
    assert not trainer.args.bf16


@pytest.mark.parametrize(("own", "kept"), [(0, 3), (7, 7), (2, 3), (0.1, 0.1)])
def test_the_longer_warm_up_stays(make_trainer: Callable[..., Any], own: float, kept: float) -> None:
    """A warm-up of the Trainer's own, or as a share of all steps, is not shortened."""
    trainer = make_trainer(warmup_steps=own)
    autotune_trainer(trainer, tune=Tuner(_BETTER, warmup_steps=3))
    assert trainer.args.warmup_steps == kept


def test_an_optimizer_handed_over_is_scaled_itself(make_trainer: Callable[..., Any]) -> None:
    """Its learning rate, which no argument reaches, is the tuned one."""
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = make_trainer(optimizers=(optimizer, None))
    trainer.model.layer = model.layer
    autotune_trainer(trainer, tune=Tuner(_BETTER))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_a_saved_config_is_not_tuned_again(make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """A path is read and used as it is."""
    _, tuned = autotune_trainer(make_trainer(), tune=Tuner(_BETTER))
    tuned.save(tmp_path / "tuned.json")
    trainer, unused = make_trainer(), Tuner(Settings())
    autotune_trainer(trainer, tmp_path / "tuned.json", tune=unused)
    assert trainer.args.per_device_train_batch_size == 8
    assert unused.tasks == []


def test_what_cannot_be_applied_is_said(make_trainer: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Knobs that no argument expresses are logged as warnings, each with its reason."""
    tuner = Tuner(_BETTER.replace(optimizer_implementation="foreach", multiprocessing_context=None))
    with caplog.at_level(logging.WARNING, logger="autotune"):
        autotune_trainer(make_trainer(), tune=tuner)
    assert "optimizer_implementation='foreach'" in caplog.text


def test_nothing_is_said_where_all_is_applied(
    make_trainer: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A warning means something is missing."""
    with caplog.at_level(logging.WARNING, logger="autotune"):
        autotune_trainer(make_trainer(), tune=Tuner(_BETTER))
    assert caplog.text == ""


@pytest.mark.parametrize("changes", [{"auto_find_batch_size": True}])
def test_trainers_that_would_undo_it_are_refused(make_trainer: Callable[..., Any], changes: dict[str, Any]) -> None:
    """Before anything is tuned."""
    with pytest.raises(TaskError, match="would replace the tuned batch"):
        autotune_trainer(make_trainer(**changes), tune=Tuner(_BETTER))


def test_what_a_trainer_was_tuned_to_exports_as_its_arguments(make_trainer: Callable[..., Any]) -> None:
    """Its own two groups, with weight decay and without, are two arguments again."""
    _, tuned = autotune_trainer(make_trainer(weight_decay=0.1), tune=Tuner(_BETTER))
    export = to(tuned, "hf")
    arguments = export.data["training_arguments"]
    assert (arguments["weight_decay"], arguments["learning_rate"]) == (0.1, pytest.approx(0.02))
    assert "parameter groups" not in " ".join(map(str, export.not_expressed))


def test_settings_are_not_applied_twice(make_trainer: Callable[..., Any]) -> None:
    """The learning rate would be scaled once more."""
    trainer = make_trainer()
    _, tuned = autotune_trainer(trainer, tune=Tuner(_BETTER))
    with pytest.raises(TaskError, match="has these settings already"):
        autotune_trainer(trainer, tuned)
    assert trainer.args.learning_rate == pytest.approx(0.02)


def test_a_trainer_that_has_trained_is_refused(make_trainer: Callable[..., Any]) -> None:
    """Its optimizer and schedule are made, which no argument changes any more."""
    trainer = make_trainer(max_steps=1)
    trainer.train()
    with pytest.raises(TaskError, match="has trained already"):
        autotune_trainer(trainer, tune=Tuner(_BETTER))


def test_anything_else_is_no_trainer() -> None:
    """The message names what to call instead."""
    with pytest.raises(TaskError, match=r"Use autotune\(\) for anything else"):
        autotune_trainer(Tiny(), tune=Tuner(_BETTER))
