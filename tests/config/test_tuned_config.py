"""The builders of a tuned config, fresh and loaded."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autotune.config import TunedConfig
from autotune.errors import ConfigError, TaskError
from autotune.hardware import Hardware
from autotune.settings import Settings
from autotune.task import Task

MakeConfig = Callable[..., TunedConfig]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a config is saved."""
    return tmp_path / "tuned.json"


def _train(config: TunedConfig, model: nn.Module, **missing: Any) -> list[float]:
    dataset, loss_fn = missing.get("dataset"), missing.get("loss_fn")
    model = config.prepare(model)
    step = config.train_step(model, config.optimizer(model), loss_fn=loss_fn)
    torch.manual_seed(0)
    losses = [float(step(batch)) for batch in config.dataloader(dataset)]
    step.flush()
    return losses


def test_loaded_with_its_task_trains_exactly_like_the_original(make_config: MakeConfig, task: Task, path: Path) -> None:
    """Same weights and seed give the same losses, bit for bit."""
    config = make_config()
    config.save(path)
    losses = []
    for one in (config, TunedConfig.load(path, task=task)):
        torch.manual_seed(1)
        losses.append(_train(one, task.build_model()))
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5


def test_loaded_without_task_trains_once_given_what_it_lacks(make_config: MakeConfig, task: Task, path: Path) -> None:
    """With dataset and loss_fn as arguments the same losses come out as from the original."""
    config = make_config()
    config.save(path)
    torch.manual_seed(1)
    expected = _train(config, task.build_model())
    torch.manual_seed(1)
    loaded = TunedConfig.load(path)
    assert _train(loaded, task.build_model(), dataset=task.data.dataset, loss_fn=task.loss_fn) == expected


def test_saved_again_after_loading_is_byte_equal(make_config: MakeConfig, path: Path, tmp_path: Path) -> None:
    """Loading and saving loses nothing."""
    make_config(same_batch=make_config(Settings(batch_size=16, num_threads=1))).save(path)
    TunedConfig.load(path).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_loader_has_the_settings_and_validation_is_in_order(make_config: MakeConfig) -> None:
    """Training shuffles with the tuned batch; ``train=False`` gives every sample once, in order."""
    config = make_config(Settings(batch_size=16))
    assert config.dataloader().batch_size == 16
    validation = TensorDataset(torch.arange(35.0)[:, None])
    seen = torch.cat([rows for (rows,) in config.dataloader(validation, train=False)])
    assert seen.flatten().tolist() == list(range(35))
    shuffled = torch.cat([rows for (rows,) in config.dataloader(validation)]).flatten().tolist()
    assert shuffled != list(range(35))
    assert sorted(shuffled) == list(range(35))


def test_other_dataset_keeps_the_collate_function(make_config: MakeConfig, task: Task) -> None:
    """What batches the tuned data batches another dataset too."""
    task = Task(task.model, task.data.dataset, loss_fn=task.loss_fn, optimizer=torch.optim.SGD, collate_fn=_pairs)
    loader = make_config(Settings(batch_size=16), of=task).dataloader(task.data.dataset, train=False)
    assert loader.collate_fn is _pairs


def test_given_dataloader_keeps_its_own_parts(make_config: MakeConfig) -> None:
    """A DataLoader handed over brings sampler and collate_fn; the knobs are the tuned ones.

    Report: Lightning-AI/pytorch-lightning#14212.
    """
    given = DataLoader(TensorDataset(torch.arange(9.0)[:, None]), batch_size=2, collate_fn=_pairs, sampler=[3, 1])
    loader = make_config(Settings(batch_size=16)).dataloader(given)
    assert (loader.batch_size, loader.collate_fn, list(loader.sampler)) == (16, _pairs, [3, 1])


def test_optimizer_has_scaled_rate_and_implementation(make_config: MakeConfig, task: Task) -> None:
    """Four times the batch: four times the rate, in the chosen implementation."""
    group = make_config().optimizer(task.build_model()).param_groups[0]
    assert group["lr"] == pytest.approx(0.04)
    assert (group["momentum"], group["foreach"]) == (0.9, True)


def test_apply_to_scales_optimizer_and_schedule(make_config: MakeConfig) -> None:
    """A live optimizer and its scheduler go on at the scaled rate."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    make_config().apply_to(optimizer, scheduler)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)
    assert scheduler.base_lrs == [pytest.approx(0.4)]


def test_train_step_gets_all_that_was_tuned(make_config: MakeConfig, task: Task) -> None:
    """Accumulation and clipping reach the step: four batches per update, each update no longer than rate x norm."""
    config = make_config(max_grad_norm=1e-3)
    model = config.prepare(task.build_model())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = config.train_step(model, config.optimizer(model))
    updates = []
    for batch in config.dataloader():
        step(batch)
        updates.append(step.did_update)
    assert updates == [False, False, False, True, False]
    step.flush()
    assert step.did_update
    now = [parameter.detach() for parameter in model.parameters()]
    moved = max(float((new - old).abs().max()) for new, old in zip(now, before, strict=True))
    assert 0 < moved <= 0.04 * 1e-3 * (1 + 1.9)


def test_warm_up_reaches_the_step(make_config: MakeConfig, task: Task) -> None:
    """The first update of a warm-up over ten steps uses far less than the scaled rate, and the rate is back after."""
    config = make_config()
    assert config.learning_rate.warmup_steps == 10
    lengths = []
    for plan in (config.learning_rate, dataclasses.replace(config.learning_rate, warmup_steps=0)):
        torch.manual_seed(0)
        one = dataclasses.replace(config, learning_rate=plan)
        model = one.prepare(task.build_model())
        optimizer = one.optimizer(model)
        before = model.classify.weight.detach().clone()
        step = one.train_step(model, optimizer)
        for batch in list(one.dataloader())[:4]:
            step(batch)
        lengths.append(float((model.classify.weight.detach() - before).norm()))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.04)
    assert 0.2 < lengths[0] / lengths[1] < 0.5


def test_scheduler_is_stepped_once_per_update(make_config: MakeConfig, task: Task) -> None:
    """It goes by optimizer steps, not by micro-batches."""
    config = make_config()
    model = config.prepare(task.build_model())
    optimizer = config.optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    step = config.train_step(model, optimizer, scheduler)
    for batch in config.dataloader():
        step(batch)
    assert scheduler.last_epoch == 1


def test_prepare_sets_the_switches_and_says_so(
    make_config: MakeConfig, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process-wide change is logged at INFO; the model comes back, its keys unchanged."""
    threads = torch.get_num_threads()
    config = make_config(Settings(batch_size=16, num_threads=threads + 1))
    model = task.build_model()
    keys = list(model.state_dict())
    with config.switches():
        assert torch.get_num_threads() == threads + 1
    assert torch.get_num_threads() == threads
    try:
        with caplog.at_level(logging.INFO, logger="autotune"):
            assert config.prepare(model) is model
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert any(f"torch.set_num_threads({threads + 1})" in record.getMessage() for record in caplog.records)
    assert list(model.state_dict()) == keys


def test_keep_batch_is_itself_where_the_batch_is_kept(make_config: MakeConfig) -> None:
    """Accumulating to the same effective batch is the same training."""
    config = make_config(Settings(batch_size=8, gradient_accumulation_steps=2))
    assert config.keep_batch() is config


def test_keep_batch_gives_the_same_batch_winner(make_config: MakeConfig) -> None:
    """It is the config raced for that."""
    same = make_config(Settings(batch_size=16, num_threads=1))
    assert make_config(same_batch=same).keep_batch() is same


@pytest.mark.parametrize("loaded", [False, True])
def test_keep_batch_without_a_winner_is_the_baseline(make_config: MakeConfig, loaded: bool) -> None:
    """Nothing else was proven, so nothing else is returned; no learning rate is scaled."""
    config = make_config()
    kept = (TunedConfig.from_json(config.to_json()) if loaded else config).keep_batch()
    assert kept.settings == config.baseline
    assert (kept.learning_rate.factor, kept.learning_rate.warmup_steps) == (1.0, 0)
    assert (kept.evidence.kept_baseline, kept.evidence.samples_per_s) == (True, 385.5)
    assert kept.saved.dataloader["batch_size"] == 16


class TestLoadedWithoutTask:
    """What is missing is asked for by name."""

    @pytest.fixture
    def load(self, make_config: MakeConfig, path: Path) -> Callable[..., TunedConfig]:
        """Saves a config of a task and loads it without."""

        def load(**task_arguments: Any) -> TunedConfig:
            arguments = {"model": _model, "dataset": _data(), "loss_fn": nn.CrossEntropyLoss(), **task_arguments}
            make_config(Settings(batch_size=16), of=Task(**arguments)).save(path)
            return TunedConfig.load(path)

        return load

    def test_dataloader_asks_for_dataset(self, load: Callable[..., TunedConfig]) -> None:
        """There is no data in JSON."""
        with pytest.raises(TaskError, match=r"dataset= is missing.*load\(path, task="):
            load().dataloader()

    def test_dataset_with_collate_function_asks_for_it(self, load: Callable[..., TunedConfig]) -> None:
        """Batching with torch's default instead would train on something else."""
        config = load(collate_fn=_pairs)
        with pytest.raises(TaskError, match=r"collate_fn= is missing"):
            config.dataloader(_data())
        assert config.dataloader(DataLoader(_data(), collate_fn=_pairs)).collate_fn is _pairs

    def test_train_step_asks_for_loss_fn(self, load: Callable[..., TunedConfig]) -> None:
        """The loss is the user's."""
        with pytest.raises(TaskError, match=r"loss_fn= is missing"):
            load().train_step(_model(), torch.optim.SGD(_model().parameters()))

    def test_train_step_asks_for_training_step(self, load: Callable[..., TunedConfig]) -> None:
        """A training step cannot be replaced by a loss without saying so."""
        config = load(loss_fn=None, training_step=_step)
        with pytest.raises(TaskError, match=r"training_step= is missing"):
            config.train_step(_model(), torch.optim.SGD(_model().parameters()))

    def test_own_optimizer_class_is_asked_for(self, load: Callable[..., TunedConfig]) -> None:
        """No import path from JSON is ever followed."""
        with pytest.raises(TaskError, match=r"optimizer is missing: .*_OwnSGD"):
            load(optimizer=_OwnSGD).optimizer(_model())

    def test_parameter_groups_are_asked_for(self, load: Callable[..., TunedConfig]) -> None:
        """Which parameter is in which group is not in JSON."""
        with pytest.raises(TaskError, match=r"2 parameter groups"):
            load(optimizer=_two_groups).optimizer(_model())

    def test_name_outside_torch_optim_is_never_built(self, load: Callable[..., TunedConfig]) -> None:
        """A file that names something else gets an error, not an import."""
        document = load().to_json()
        for name in ("os.system", "torch.optim.lr_scheduler.StepLR", "torch.optim.Optimizer.step", "torch.optim.os"):
            document["optimizer"]["name"] = document["facts"]["optimizer_name"] = name
            with pytest.raises(TaskError, match="optimizer is missing"):
                TunedConfig.from_json(json.loads(json.dumps(document))).optimizer(_model())

    def test_models_own_loss_needs_nothing(self, load: Callable[..., TunedConfig]) -> None:
        """The loss travels with the model."""
        config = load(model=_OwnLoss, loss_fn=None, dataset=_dicts(), optimizer=torch.optim.SGD)
        assert len(_train(config, _OwnLoss(), dataset=_dicts())) == 2


def test_inferred_loss_never_trains(make_config: MakeConfig, task: Task) -> None:
    """The guess was for measuring; with loss_fn given it trains."""
    config = make_config(of=Task(task.model, task.data.dataset))
    model = task.build_model()
    with pytest.raises(TaskError, match=r"loss_fn= is missing.*inferred"):
        config.train_step(model, config.optimizer(model))
    config.train_step(model, config.optimizer(model), loss_fn=nn.CrossEntropyLoss())


def test_sampler_is_not_left_out_silently(make_config: MakeConfig, task: Task) -> None:
    """Training on another dataset without the sampler would change the training; validation needs none."""
    task = Task(task.model, task.data.dataset, loss_fn=task.loss_fn, optimizer=torch.optim.SGD, sampler=list(range(40)))
    config = make_config(Settings(batch_size=16), of=task)
    with pytest.raises(TaskError, match=r"sampler= is missing"):
        config.dataloader(_data())
    assert sum(len(labels) for _, labels in config.dataloader(_data(), train=False)) == 32


def test_own_batches_are_kept_and_asked_for(make_config: MakeConfig, task: Task) -> None:
    """With a batch sampler the tuned loader keeps it; another dataset must bring one."""
    loader = DataLoader(task.data.dataset, batch_sampler=[[0, 1, 2], [3, 4]])
    task = Task(task.model, loader, loss_fn=task.loss_fn, optimizer=torch.optim.SGD)
    settings = Settings(batch_size=None)
    config = make_config(settings, of=task, baseline=settings)
    assert [len(labels) for _, labels in config.dataloader()] == [3, 2]
    assert config.keep_batch() is config
    with pytest.raises(TaskError, match=r"batch_sampler= is missing"):
        config.dataloader(_data())


def test_dataset_factory_is_not_called_to_save(make_config: MakeConfig, task: Task, path: Path) -> None:
    """A factory may be expensive; what the file says is known from the measurement."""
    calls = []

    def make() -> TensorDataset:
        calls.append(1)
        return _data()

    config = make_config(Settings(batch_size=16), of=Task(task.model, make, loss_fn=task.loss_fn))
    calls.clear()
    config.save(path)
    str(config)
    assert calls == []
    assert config.to_json()["dataloader"]["shuffle"] is True
    assert len(list(config.dataloader())) == 2
    assert TunedConfig.load(path).to_json() == config.to_json()


def test_stream_factory_is_saved_without_being_called(make_config: MakeConfig, task: Task) -> None:
    """Streams have neither shuffling nor, always, a length."""
    config = make_config(Settings(batch_size=16), of=Task(task.model, _Stream, loss_fn=task.loss_fn))
    assert "shuffle" not in config.to_json()["dataloader"]
    assert config.facts.samples is None


def test_another_machine_is_noticed(make_config: MakeConfig, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config from elsewhere is not used in silence (facebookresearch/TensorComprehensions#230)."""
    config = TunedConfig.from_json(make_config().to_json())
    monkeypatch.setattr(Hardware, "detect", staticmethod(lambda: SimpleNamespace(fingerprint="sha256:other")))
    with pytest.warns(UserWarning, match="another machine"):
        config.prepare(task.build_model())


def test_missing_device_is_one_clear_error(make_config: MakeConfig, task: Task) -> None:
    """A config for a device that is not there is refused before anything is set."""
    document = make_config().to_json()
    document["autocast"]["device_type"] = "hpu"
    threads = torch.get_num_threads()
    with pytest.raises(ConfigError, match="'hpu', which this machine does not have"):
        TunedConfig.from_json(document).prepare(task.build_model())
    assert torch.get_num_threads() == threads


def test_needs_a_task_or_a_file(make_config: MakeConfig) -> None:
    """A config of nothing cannot be made."""
    with pytest.raises(ConfigError, match="needs a task"):
        make_config(task=None)


def test_text_is_the_summary(make_config: MakeConfig) -> None:
    """Printing a config shows the result box."""
    assert "1.74x the baseline" in str(make_config())


def _pairs(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


def _data() -> TensorDataset:
    return TensorDataset(torch.zeros(32, 3, 8, 8), torch.arange(32) % 2)


def _dicts() -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.zeros(4), "labels": torch.tensor(index % 2)} for index in range(32)]


def _model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def _two_groups(params: Any) -> torch.optim.Optimizer:
    first, *rest = params
    return torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": rest}], lr=0.01)


class _OwnSGD(torch.optim.SGD):
    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)


class _OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        scores = self.scores(x)
        return SimpleNamespace(loss=nn.functional.cross_entropy(scores, labels), logits=scores)


class _Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(3, 8, 8), index % 2) for index in range(40)])
