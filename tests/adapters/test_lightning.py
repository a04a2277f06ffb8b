"""``LightningModule`` and ``LightningDataModule``: their own step, optimizer and loader, measured without a Trainer."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from autotune.build.optimizer import build_optimizer
from autotune.build.train_step import TrainStep
from autotune.errors import TaskError
from autotune.settings import Settings
from autotune.task import Task, resolve_loss
from autotune.task.lightning import TrainDataLoader


def pairs(samples: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(samples, 4, generator=generator), torch.arange(samples) % 2)


class Backbone(lightning.LightningModule):
    """A part that is a module of its own, which the Trainer of the whole reaches too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 2.0 if self.trainer.is_global_zero and self.current_epoch >= 0 else 1.0
        return self.layer(x).relu() * scale


class Classifier(lightning.LightningModule):
    """Does in its step what people do: logs, asks where training stands, writes an image now and then."""

    def __init__(self, lr: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.backbone = Backbone()
        self.head = nn.Linear(8, 2)
        self.accuracy = MulticlassAccuracy(num_classes=2)
        self.seen: list[tuple[int, int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        x, y = batch
        output = self(x)
        loss = functional.cross_entropy(output, y)
        self.accuracy(output, y)
        self.seen.append((len(x), batch_idx))
        self.log("loss", loss, prog_bar=True)
        self.log("accuracy", self.accuracy)
        self.log_dict({"epoch": float(self.current_epoch), "step": float(self.global_step)})
        if self.trainer.is_global_zero:
            self.logger.experiment.add_image("batch", x)
        return {"loss": loss, "kept": y}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warmup, "interval": "step"}}


class Pairs(lightning.LightningDataModule):
    """Makes its dataset in ``setup``."""

    def __init__(self, samples: int = 64) -> None:
        super().__init__()
        self.samples = samples
        self.done: list[str] = []

    def prepare_data(self) -> None:
        self.done.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.done.append(stage)
        self.dataset = pairs(self.samples)

    def train_dataloader(self) -> Any:
        return DataLoader(self.dataset, batch_size=4, shuffle=True)


class Manual(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


def test_the_modules_own_step_and_optimizer_are_measured(desk: Any) -> None:
    """Every batch of a trial goes through ``training_step``, in batches of the size tried, with a running index."""
    model = Classifier()
    put = desk(model, Pairs())
    assert put.facts.loss.startswith("training_step")
    assert not put.facts.loss_inferred
    assert (put.facts.optimizer_name, put.facts.optimizer_assumed) == ("torch.optim.SGD", False)
    assert (put.facts.samples, put.facts.loader["batch_size"], put.facts.loader["given"]) == (64, 4, True)
    assert put.facts.reduction == "mean"
    model.seen.clear()
    assert put.measure(batch_size=16).largest_batch_rows == 16
    assert {rows for rows, _ in model.seen} == {16}
    indices = [index for _, index in model.seen]
    assert indices == list(range(indices[0], indices[0] + len(indices)))


def test_the_report_says_what_a_trainer_does_besides(desk: Any) -> None:
    """One sentence names the hooks that are overridden and not measured."""

    class Hooked(Classifier):
        def on_train_batch_end(self, *_: Any) -> None:
            raise AssertionError

    (said,) = desk(Hooked(), Pairs()).facts.warnings
    assert "training_step and optimizer are measured" in said
    assert "its hooks on_train_batch_end, schedules, callbacks" in said


def test_nothing_is_logged_or_written_and_the_trainer_stays(tmp_path: Path, desk: Any, monkeypatch: Any) -> None:
    """After a fit the module still has its Trainer and logger; trials leave both, and the folder, as they were."""
    monkeypatch.chdir(tmp_path)
    model, data = Classifier(), Pairs()
    trainer = _fitted(model, data, tmp_path)
    listing, attributes = sorted(tmp_path.rglob("*")), dict(vars(model))
    metrics = {path: path.read_bytes() for path in listing if path.is_file()}
    desk(model, data).measure(batch_size=8)
    assert sorted(tmp_path.rglob("*")) == listing
    assert {path: path.read_bytes() for path in metrics} == metrics
    assert model.trainer is trainer
    assert data.trainer is trainer
    assert set(vars(model)) == set(attributes)


def test_module_and_data_cross_without_their_trainer(
    tmp_path: Path, crossed: Callable[[Task], Task], desk: Any
) -> None:
    """A fitted module's Trainer, with its loggers and callbacks, does not come along into the isolated process."""
    model, data = Classifier(), Pairs()
    _fitted(model, data, tmp_path / "run")
    put = desk(crossed(Task(model, data, device="cpu")))
    assert put.task.build_model()._trainer is None
    assert put.task.data.dataset_factory.data_module.trainer is None
    assert put.measure(batch_size=8).largest_batch_rows == 8


def test_the_callers_data_module_is_not_set_up(desk: Any) -> None:
    """``prepare_data`` and ``setup`` run as a Trainer runs them, on a copy."""
    data = Pairs()
    put = desk(Classifier(), data)
    assert put.task.data.dataset_factory.data_module.done[:2] == ["prepare_data", "fit"]
    assert not hasattr(data, "dataset")


def test_a_schedule_does_not_leave_the_optimizer_at_its_first_rate() -> None:
    """The module's warm-up starts at 0; what trials and the tuned config build starts at the full rate."""
    task = Task(Classifier(lr=0.05), Pairs())
    for implementation in (None, "foreach"):
        optimizer = build_optimizer(
            task.optimizer, task.build_model(), Settings(optimizer_implementation=implementation), lr_factor=2.0
        )
        assert [group["lr"] for group in optimizer.param_groups] == [pytest.approx(0.1)]


def test_a_loop_of_ones_own_trains_with_the_measured_step() -> None:
    """The builders of a tuned config get a working loss and optimizer from the task: the loss goes down."""
    task = Task(Classifier(), Pairs())
    model = task.build_model()
    optimizer = build_optimizer(task.optimizer, model, Settings())
    loss = resolve_loss(training_step=task.training_step, model=model, reduction="mean")
    step = TrainStep(model, optimizer, loss=loss, settings=Settings(batch_size=64), device="cpu")
    batch = pairs()[:]
    losses = [float(step(batch)) for _ in range(30)]
    assert losses[-1] < losses[0]
    assert step.optimizer_steps == 30


@pytest.mark.parametrize("model", [Classifier, functools.partial(Classifier, lr=0.01)])
def test_the_class_is_a_factory_of_it(model: Any, desk: Any) -> None:
    """So that the weights are made in the isolated process only."""
    put = desk(model, Pairs())
    assert put.facts.loss.startswith("training_step")
    assert put.facts.optimizer_name == "torch.optim.SGD"


def test_batches_are_prepared_by_the_modules_own_hooks(desk: Any) -> None:
    """``on_after_batch_transfer``, where people augment on the device, is part of the step."""

    class Augmented(Classifier):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [batch[0] + 1000, batch[1]]

        def training_step(self, batch: Any) -> torch.Tensor:
            assert batch[0].min() > 900
            return functional.cross_entropy(self(batch[0]), batch[1])

    assert desk(Augmented(), Pairs()).measure(batch_size=8).largest_batch_rows == 8


def test_what_is_given_beside_a_module_wins(desk: Any) -> None:
    """A training step and an optimizer of the caller's replace the module's own, also where it optimizes manually."""
    put = desk(
        Manual(),
        pairs(),
        training_step=lambda model, batch: functional.cross_entropy(
            model.head(model.backbone.layer(batch[0])), batch[1]
        ),
        optimizer=lambda params: torch.optim.Adam(params),
    )
    assert put.facts.optimizer_name == "torch.optim.Adam"
    assert put.measure(batch_size=8).largest_batch_rows == 8


def test_manual_optimization_is_refused() -> None:
    """At once for a module, when it is built for a class."""
    with pytest.raises(TaskError, match=r"optimizes manually.*\(automatic_optimization=False\)"):
        Task(Manual(), pairs())
    with pytest.raises(TaskError, match="optimizes manually"):
        Task(Manual, pairs()).build_model()


def test_a_factory_that_hides_a_module_is_refused() -> None:
    """Its step is not known when the task is made; the message says what to pass."""
    with pytest.raises(TaskError, match="Pass the class Classifier"):
        Task(lambda: Classifier(), pairs()).build_model()


@pytest.mark.parametrize(
    ("configured", "named"),
    [
        (
            lambda self: [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.backbone, self.head)],
            "2 optimizers",
        ),
        (
            lambda self: ([torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.backbone, self.head)], []),
            "2 optimizers",
        ),
        (lambda self: None, "no optimizer"),
        (lambda self: torch.optim.SGD([], lr=0.1), "configure_optimizers raised ValueError"),
        (lambda self: torch.optim.SGD(self.parameters(), lr=1 / self.trainer.max_epochs), "self.trainer.max_epochs"),
    ],
)
def test_an_optimizer_that_cannot_be_tuned_is_refused(configured: Any, named: str, desk: Any) -> None:
    """None, several, or one that asks a Trainer how long training will be."""
    model = type("Odd", (Classifier,), {"configure_optimizers": configured})()
    with pytest.raises(TaskError, match=named):
        desk(model, pairs())


@pytest.mark.parametrize(
    ("form"),
    [
        lambda optimizer, schedule: optimizer,
        lambda optimizer, schedule: [optimizer],
        lambda optimizer, schedule: ([optimizer], [schedule]),
        lambda optimizer, schedule: ([optimizer], [{"scheduler": schedule, "interval": "step"}]),
        lambda optimizer, schedule: {"optimizer": optimizer, "lr_scheduler": schedule},
        lambda optimizer, schedule: ({"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}},),
    ],
)
def test_every_form_of_one_optimizer_is_understood(form: Any) -> None:
    """As Lightning documents them."""

    class One(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adagrad(self.parameters(), lr=0.3)
            return form(
                optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=9, cycle_momentum=False)
            )

    model = One()
    assert Task(model, pairs()).optimizer.resolve(model).name == "torch.optim.Adagrad"


def test_a_skipped_batch_is_refused(desk: Any) -> None:
    """Lightning skips a batch whose step returns None; a trial cannot count it."""
    model = type("Skipping", (Classifier,), {"training_step": lambda self, batch, batch_idx: None})()
    with pytest.raises(TaskError, match="returned no loss"):
        desk(model, pairs())


def test_a_step_that_asks_the_trainer_is_named(desk: Any) -> None:
    """Rather than failing with an attribute of nothing."""
    model = type("Asking", (Classifier,), {"training_step": lambda self, batch, batch_idx: self.optimizers()})()
    with pytest.raises(TaskError, match=r"asks for self\.trainer\.strategy"):
        desk(model, pairs())


class MadeInAHook(Classifier):
    """Its step uses what only a Trainer would have had it make."""

    def setup(self, stage: str) -> None:
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.criterion(self(batch[0]), batch[1])


class Unconfigured(Classifier):
    """Without layers until a Trainer asks it for them."""

    def __init__(self) -> None:
        lightning.LightningModule.__init__(self)

    def configure_model(self) -> None:
        self.head = nn.Linear(4, 2)


def test_hooks_that_did_not_run_are_named_where_something_is_missing(desk: Any) -> None:
    """An attribute, or all parameters, that ``setup`` and the like make."""
    with pytest.raises(TaskError, match=r"'criterion'.* did not run: setup\.") as caught:
        desk(MadeInAHook(), pairs())
    assert "call the hook" in caught.value.remedy
    with pytest.raises(TaskError, match="no parameter that requires gradients") as caught:
        desk(Unconfigured(), pairs())
    assert "configure_model" in caught.value.remedy
    mistaken = type("Mistaken", (Classifier,), {"training_step": lambda self, batch, batch_idx: self.nowhere})()
    with pytest.raises(TaskError, match=r"AttributeError.*'nowhere'"):
        desk(mistaken, pairs())


@pytest.mark.parametrize(
    "used", [lambda folder: Path(folder) / "x", lambda folder: f"{folder}/x", lambda folder: folder / "x"]
)
def test_a_loggers_folder_is_refused_by_name(used: Callable[[Any], Any], desk: Any) -> None:
    """Nothing may be written there; a step that asks first whether it is a folder goes on."""

    def writing(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        used(self.logger.log_dir)
        return functional.cross_entropy(self(batch[0]), batch[1])

    def asking(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        assert not isinstance(self.logger.log_dir, str)
        return functional.cross_entropy(self(batch[0]), batch[1])

    with pytest.raises(TaskError, match=r"self\.logger\.log_dir"):
        desk(type("Writing", (Classifier,), {"training_step": writing})(), pairs())
    desk(type("Asking", (Classifier,), {"training_step": asking})(), pairs())


def test_what_setup_fills_is_not_the_callers() -> None:
    """Lists, dicts and sets of a data module are copied with it, one that has two names once."""

    class Filling(Pairs):
        def __init__(self) -> None:
            super().__init__()
            self.parts: dict[str, Any] = {}
            self.same, self.seen = self.parts, set()

        def setup(self, stage: str) -> None:
            super().setup(stage)
            self.parts["train"] = self.dataset
            self.seen.add(stage)
            assert self.same is self.parts

    data = Filling()
    made = TrainDataLoader(data)
    made()
    assert made.data_module.parts
    assert (data.done, data.parts, data.seen) == ([], {}, set())


def test_several_train_loaders_are_refused(desk: Any) -> None:
    """A list of loaders is no dataset of loaders."""
    data = Pairs()
    data.train_dataloader = lambda: [DataLoader(pairs()), DataLoader(pairs())]
    with pytest.raises(TaskError, match="returned list, not one DataLoader"):
        desk(Classifier(), data)


def test_data_modules_of_datasets_and_factories_of_them_are_read(desk: Any) -> None:
    """``LightningDataModule.from_datasets``, and a function that makes a data module."""
    made = lightning.LightningDataModule.from_datasets(train_dataset=pairs(), batch_size=16)
    assert desk(Classifier(), made).facts.loader["batch_size"] == 16
    assert desk(Classifier(), lambda: Pairs(32)).facts.samples == 32


def _fitted(model: Classifier, data: Pairs, folder: Path) -> lightning.Trainer:
    """A module after two steps under a real Trainer with a logger that writes files."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=2,
        logger=_Quiet(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the Trainer's own loop: deprecated calls of torch, few workers
        trainer.fit(model, data)
    return trainer


class _Quiet(CSVLogger):
    """Writes its metrics; takes images without keeping them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.experiment.add_image = lambda *_: None
