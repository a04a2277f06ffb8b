"""Hugging Face's ``Trainer``: its loss, optimizer, loader and arguments are what is measured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

from autotune.build.optimizer import build_optimizer
from autotune.build.train_step import TrainStep
from autotune.errors import TaskError
from autotune.hardware import Hardware, Limits
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.task import Task, resolve_loss
from autotune.task.hf_trainer import TrainerLoss, TrainerParts

_TOKENS = 50


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=_TOKENS,
            n_positions=32,
            n_embd=16,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
        )
    )


def sentences(count: int = 64) -> datasets.Dataset:
    """With a text beside the tokens, which the Trainer leaves out; every fourth label does not count."""
    tokens = [[1 + (row * 7 + at) % (_TOKENS - 1) for at in range(8)] for row in range(count)]
    labels = [
        [-100 if at % 4 == row % 4 else token for at, token in enumerate(row_of)] for row, row_of in enumerate(tokens)
    ]
    return datasets.Dataset.from_dict({"text": ["…"] * count, "input_ids": tokens, "labels": labels})


def arguments(folder: Path, **changes: Any) -> transformers.TrainingArguments:
    defaults = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
    }
    return transformers.TrainingArguments(**{**defaults, **changes})


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Any]:
    """Makes a Trainer that writes below ``tmp_path``."""

    def make(cls: Any = transformers.Trainer, *, model: Any = None, data: Any = None, **changes: Any) -> Any:
        given = {
            key: changes.pop(key) for key in ("optimizers", "data_collator", "compute_loss_func") if key in changes
        }
        rows = sentences() if data is None else data
        return cls(model=model or gpt2(), args=arguments(tmp_path, **changes), train_dataset=rows, **given)

    return make


def test_a_trainer_brings_model_loader_optimizer_and_arguments_along(trainer: Any, desk: Any) -> None:
    """Batch, accumulation, precision, clipping, decay groups and learning rate of the baseline are the Trainer's."""
    put = desk(trainer(bf16=True, dataloader_num_workers=2))
    hardware = dataclasses.replace(Hardware.detect(device="cpu"), cpu_bf16_native=True)
    rules = BatchRules(base_batch_size=put.task.base_batch_size)
    candidates = Candidates.of(put.facts, hardware, Limits.of(hardware), rules, Space())
    baseline = candidates.baseline
    assert (baseline.batch_size, baseline.gradient_accumulation_steps, baseline.num_workers) == (4, 2, 2)
    assert baseline.precision == "bf16-mixed"
    assert "fp32" in candidates.values["precision"]
    assert (put.task.base_batch_size, put.task.max_grad_norm) == (8, 0.5)
    groups = put.task.optimizer.resolve(put.task.build_model()).groups
    assert [(group["lr"], group["weight_decay"]) for _, group in groups] == [(0.01, 0.1), (0.01, 0.0)]
    assert put.task.data.shuffle
    assert any("compute_loss" in note for note in put.facts.warnings)


def test_a_trainer_is_measured_after_the_way_into_the_isolated_process(trainer: Any, desk: Any, crossed: Any) -> None:
    """What crosses is the step and the data, not the Trainer's callbacks and state; a window runs there."""
    task = crossed(Task(trainer()))
    put = desk(task)
    assert put.measure(batch_size=8).samples_per_s > 0
    step = task.training_step
    assert isinstance(step, TrainerLoss)
    assert step._quiet.callback_handler is None
    assert step._quiet.model is None


def test_our_step_trains_as_the_trainer_does(trainer: Any) -> None:
    """Two accumulated micro-batches whose counted labels differ in number move the weights as Trainer.train() does."""
    rows = sentences(8)
    original = gpt2()
    theirs = trainer(
        model=original,
        data=rows,
        max_steps=1,
        train_sampling_strategy="sequential",
        lr_scheduler_type="constant",
    )
    state = {name: value.clone() for name, value in original.state_dict().items()}
    theirs.train()
    task = Task(trainer(model=gpt2(), data=rows))
    model = task.build_model()
    model.load_state_dict(state)
    batches = [{key: torch.tensor(rows[at : at + 4][key]) for key in ("input_ids", "labels")} for at in (0, 4)]
    loss = resolve_loss(training_step=task.training_step, model=model, reduction="mean")
    settings = Settings(batch_size=4, gradient_accumulation_steps=2)
    optimizer = build_optimizer(task.optimizer.resolve(model), model, settings)
    step = TrainStep(model, optimizer, loss=loss, settings=settings, device="cpu", max_grad_norm=task.max_grad_norm)
    for batch in batches:
        step(batch)
    expected = dict(original.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-4, atol=1e-6)


def test_nothing_of_the_trainer_is_changed(trainer: Any) -> None:
    """Taking a Trainer apart leaves its model, optimizer and accelerator where they were."""
    own = trainer()
    before = dict(vars(own))
    TrainerParts.of(own)
    assert vars(own) == before


class Weighted(transformers.Trainer):
    """What people override."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        labels = inputs.pop("labels")
        self.log({"seen": len(labels)})
        self.save_model()
        self.push_to_hub()
        logits = model(**inputs).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return (loss, logits) if return_outputs else 3 * loss


def test_an_overridden_compute_loss_is_what_is_measured(trainer: Any, desk: Any) -> None:
    """A subclass's own loss runs, although it logs and takes labels out of the batch; nothing is saved or pushed."""
    own = trainer(Weighted)
    put = desk(own)
    assert put.measure().samples_per_s > 0
    assert own.state.log_history == []
    assert not list(Path(own.args.output_dir).glob("*.safetensors"))


class Stepping(transformers.Trainer):
    """Computes gradients itself."""

    def training_step(self, *given: Any, **named: Any) -> Any:
        return super().training_step(*given, **named)


def test_an_overridden_training_step_is_refused_with_the_way_out(trainer: Any) -> None:
    """A step that also computes the gradients cannot be tuned, and the error says what to override instead."""
    with pytest.raises(TaskError, match="training_step of its own") as caught:
        Task(trainer(Stepping))
    assert "compute_loss" in str(caught.value)


class Asking(transformers.Trainer):
    """Wants what only a running Trainer has."""

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        self.accelerator.print("here")
        return super().compute_loss(model, inputs, *given, **named)


def test_what_only_a_running_trainer_has_is_named(trainer: Any) -> None:
    """A loss that asks the accelerator for more than one process can give fails with the attribute's name."""
    task = Task(trainer(Asking))
    with pytest.raises(TaskError, match="asks for print"):
        task.training_step(task.build_model(), dict.fromkeys(("input_ids", "labels"), torch.ones(2, 4).long()))


@pytest.mark.parametrize("given", ["loader", "dataset"])
def test_other_data_takes_the_trainers_place(trainer: Any, desk: Any, given: str) -> None:
    """A DataLoader is taken as it is; a dataset is loaded as the Trainer would load it."""
    rows = sentences(32)
    own = trainer()
    data: Any = rows
    if given == "loader":
        data = DataLoader(rows.with_format("torch", columns=["input_ids", "labels"]), batch_size=16)
    task = Task(own, data)
    assert task.data.batch_size == (16 if given == "loader" else 4)
    assert desk(task).facts.samples == 32


def test_a_trainer_without_data_asks_for_it(trainer: Any) -> None:
    """No train_dataset and no dataset: the error says which is missing."""
    own = trainer()
    own.train_dataset = None
    with pytest.raises(TaskError, match="no train_dataset"):
        Task(own)


def test_an_optimizer_handed_to_the_trainer_is_used(trainer: Any) -> None:
    """``optimizers=(SGD, …)`` wins over the optimizer that the arguments name."""
    model = gpt2()
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    task = Task(trainer(model=model, optimizers=(sgd, None)))
    assert task.optimizer.cls is torch.optim.SGD


def test_label_smoothing_and_padding_collators_are_measured(trainer: Any, desk: Any) -> None:
    """The Trainer's label smoother gets the labels, its collator pads the rows."""
    ragged = [{"input_ids": list(range(1, 4 + row % 5)), "labels": list(range(1, 4 + row % 5))} for row in range(32)]
    own = trainer(data=ragged, label_smoothing_factor=0.1, data_collator=functools.partial(_padded, to=0))
    assert desk(own).measure().samples_per_s > 0


def _padded(samples: list[dict[str, Any]], to: int) -> dict[str, torch.Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    return {
        key: torch.tensor([sample[key] + [fill] * (longest - len(sample[key])) for sample in samples])
        for key, fill in (("input_ids", to), ("labels", -100))
    }
