"""Each dialect against the library itself; where that is not installed, also against what was recorded of it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.config import TunedConfig
from autotune.export import Export, to
from autotune.settings import Settings

from .conftest import ALL_AT_ONCE, MakeConfig, TinyNet, pictures
from .recorded import DEEPSPEED, FASTAI_LOADER, TORCHTITAN_02, TORCHTITAN_03, timm_parser

if sys.version_info >= (3, 11):
    import tomllib

_PLAIN = Settings(batch_size=16)


def _listed(export: Export) -> str:
    return " | ".join(map(str, export.not_expressed))


def test_lightning_builds_a_trainer_of_it(everything: TunedConfig) -> None:
    """Trainer and DataLoader take every argument, and the Trainer holds what was asked for."""
    from lightning.pytorch import Trainer

    data = to(everything, "lightning").data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, about this machine
        trainer = Trainer(**data["trainer"], logger=False, enable_checkpointing=False)
    torch.backends.cudnn.benchmark = False
    assert trainer.accumulate_grad_batches == 4
    assert trainer.precision == "bf16-mixed"
    assert trainer.gradient_clip_val == 0.5
    loader = torch.utils.data.DataLoader(pictures(), **data["dataloader"])
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (8, 2, 4)
    optimizer = getattr(torch.optim, data["optimizer"]["class"].rpartition(".")[2])
    assert optimizer(TinyNet().parameters(), **data["optimizer"]["kwargs"]).defaults["fused"] is True


def test_lightning_is_not_asked_for_fp16_on_a_cpu(make_config: MakeConfig) -> None:
    """There it would silently train in bf16, so fp32 is given and the loss said."""
    export = to(make_config(Settings(batch_size=16, precision="fp16-mixed")), "lightning")
    assert export.data["trainer"]["precision"] == "32-true"
    assert "Lightning trains with bf16 instead" in _listed(export)


@pytest.mark.parametrize("settings", [_PLAIN, ALL_AT_ONCE])
def test_hugging_face_builds_training_arguments_of_it(
    make_config: MakeConfig, settings: Settings, tmp_path: Path
) -> None:
    """TrainingArguments takes every argument; batch, accumulation, rate and clipping are as asked for."""
    from transformers import TrainingArguments

    config = make_config(settings, max_grad_norm=0.5 if settings is ALL_AT_ONCE else None)
    given = to(config, "hf").data["training_arguments"]
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[], **given)
    assert args.train_batch_size == settings.batch_size
    assert args.gradient_accumulation_steps == settings.gradient_accumulation_steps
    assert args.learning_rate == 0.004
    assert args.max_grad_norm == (0.5 if settings is ALL_AT_ONCE else 0)
    assert args.bf16 == (settings is ALL_AT_ONCE)
    assert args.dataloader_num_workers == settings.num_workers


def _hf_optimizer(config: TunedConfig, folder: Path) -> torch.optim.Optimizer:
    from transformers import Trainer, TrainingArguments

    given = to(config, "hf").data["training_arguments"]
    args = TrainingArguments(output_dir=str(folder), report_to=[], **given)
    cls, kwargs = Trainer.get_optimizer_cls_and_kwargs(args)
    return cls(TinyNet().parameters(), **kwargs)


def _sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True)


def _rmsprop(params: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, lr=0.1, alpha=0.95, centered=True)


@pytest.mark.parametrize("make", [_sgd, _rmsprop, None])
def test_hugging_face_makes_the_optimizer_that_was_tuned(make_config: MakeConfig, make: Any, tmp_path: Path) -> None:
    """Class and options of the optimizer its Trainer makes are those of the config."""
    config = make_config(_PLAIN) if make is None else make_config(_PLAIN, optimizer=make)
    made = _hf_optimizer(config, tmp_path)
    tuned = config.optimizer(TinyNet())
    assert type(made) is type(tuned)
    for name in set(made.defaults) - {"foreach", "fused", "weight_decay"}:
        assert made.defaults[name] == pytest.approx(tuned.param_groups[0][name]), name


def test_an_optimizer_hugging_face_has_no_word_for_is_listed(make_config: MakeConfig) -> None:
    """It names the way round: optimizers= of the Trainer."""
    export = to(make_config(_PLAIN, optimizer=lambda params: torch.optim.Rprop(params, lr=0.1)), "hf")
    assert "optim" not in export.data["training_arguments"]
    assert "Trainer(optimizers=(optimizer, None))" in _listed(export)


def test_accelerate_loads_the_file(everything: TunedConfig, tmp_path: Path) -> None:
    """Its own loader refuses unknown keys; precision and compilation are as asked for."""
    from accelerate.commands.config.config_args import load_config_from_file

    path = tmp_path / "accelerate.yaml"
    path.write_text(to(everything, "accelerate").text)
    config = load_config_from_file(str(path))
    assert config.mixed_precision == "bf16"
    assert config.use_cpu is True
    assert config.dynamo_config["dynamo_mode"] == "default"
    assert config.dynamo_config["dynamo_use_regional_compilation"] is True


def test_accelerate_launches_with_the_file(make_config: MakeConfig, tmp_path: Path) -> None:
    """Its launcher turns the file into the environment that an Accelerator reads."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = tmp_path / "accelerate.yaml"
    path.write_text(to(make_config(Settings(batch_size=16, precision="bf16-mixed")), "accelerate").text)
    args = launch_command_parser().parse_args(["--config_file", str(path), "--num_cpu_threads_per_process=1", "x.py"])
    args, _, mixed_precision_from_file = _validate_launch_command(args)
    assert args.mixed_precision == "bf16"
    assert mixed_precision_from_file is not None


@pytest.mark.parametrize("settings", [_PLAIN, ALL_AT_ONCE])
def test_timm_parses_the_arguments(make_config: MakeConfig, settings: Settings) -> None:
    """Its parser, as recorded, knows each option and reads what was meant."""
    args = timm_parser().parse_args(to(make_config(settings, max_grad_norm=0.5), "timm").data["arguments"])
    assert (args.batch_size, args.workers) == (settings.batch_size, settings.num_workers)
    assert args.grad_accum_steps == settings.gradient_accumulation_steps
    assert args.clip_grad == 0.5
    assert args.amp == (settings is ALL_AT_ONCE)
    assert args.opt_betas == [0.8, 0.99]


@pytest.mark.parametrize("make", [_sgd, _rmsprop, None])
def test_timm_makes_the_optimizer_that_was_tuned(make_config: MakeConfig, make: Any) -> None:
    """Through timm's own factory, with the arguments as its script hands them on."""
    from timm.optim import create_optimizer_v2, optimizer_kwargs

    config = make_config(_PLAIN) if make is None else make_config(_PLAIN, optimizer=make)
    args = timm_parser().parse_args(to(config, "timm").data["arguments"])
    made = create_optimizer_v2(TinyNet(), **{**optimizer_kwargs(args), **args.opt_kwargs})
    tuned = config.optimizer(TinyNet())
    assert type(made) is type(tuned)
    for name in set(tuned.defaults) & {"lr", "betas", "eps", "momentum", "nesterov", "alpha", "centered"}:
        assert made.param_groups[0][name] == pytest.approx(tuned.param_groups[0][name]), name


@pytest.mark.parametrize("settings", [_PLAIN, ALL_AT_ONCE])
def test_deepspeeds_batch_triple_is_consistent(make_config: MakeConfig, settings: Settings) -> None:
    """Micro-batch times accumulation is the batch, only known keys are there, and one precision at most is on."""
    config = to(make_config(settings, max_grad_norm=0.5, warmup_steps=3), "deepspeed").data["config"]
    size, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    assert config["train_batch_size"] == size * steps == settings.effective_batch_size
    assert all(isinstance(value, DEEPSPEED[name]) for name, value in config.items())
    assert config["bf16"]["enabled"] + config["fp16"]["enabled"] == (settings is ALL_AT_ONCE)


def test_deepspeed_accepts_the_file(everything: TunedConfig) -> None:
    """Its own DeepSpeedConfig checks it, and holds the same batch, precision and clipping."""
    config = pytest.importorskip("deepspeed.runtime.config", reason="DeepSpeed is not installed", exc_type=ImportError)
    checked = config.DeepSpeedConfig(to(everything, "deepspeed").data["config"])
    assert (checked.train_batch_size, checked.train_micro_batch_size_per_gpu) == (32, 8)
    assert checked.gradient_clipping == 0.5
    assert checked.bfloat16_config.enabled
    assert checked.scheduler_params["warmup_num_steps"] == 3


def test_fastais_arguments_are_known(everything: TunedConfig) -> None:
    """Its DataLoader has each argument by name; accumulation counts samples there."""
    data = to(everything, "fastai").data
    assert set(data["dataloader"]) <= FASTAI_LOADER
    assert data["callbacks"]["GradientAccumulation"] == {"n_acc": 32}


def test_fastai_builds_its_objects(everything: TunedConfig) -> None:
    """Its DataLoader, callbacks and OptimWrapper are made of the arguments."""
    reason = "fastai is not installed"
    load = pytest.importorskip("fastai.data.load", reason=reason, exc_type=ImportError)
    training = pytest.importorskip("fastai.callback.training", reason=reason, exc_type=ImportError)
    optimizer = pytest.importorskip("fastai.optimizer", reason=reason, exc_type=ImportError)
    data = to(everything, "fastai").data
    assert load.DataLoader(pictures(), **data["dataloader"]).bs == 8
    assert training.GradientAccumulation(**data["callbacks"]["GradientAccumulation"]).n_acc == 32
    assert training.GradientClip(**data["callbacks"]["GradientClip"]).max_norm == 0.5
    cls = getattr(torch.optim, data["optimizer"]["class"].rpartition(".")[2])
    kwargs = {**data["optimizer"]["kwargs"], "lr": data["optimizer"]["lr"]}
    made = optimizer.OptimWrapper(list(TinyNet().parameters()), opt=cls, **kwargs)
    assert made.opt.defaults["fused"] is True


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the standard library reads TOML from Python 3.11 on")
@pytest.mark.parametrize("settings", [_PLAIN, ALL_AT_ONCE])
def test_torchtitans_keys_are_known(make_config: MakeConfig, settings: Settings) -> None:
    """The TOML reads back as what was meant, and only keys of its configuration are in it."""
    export = to(make_config(settings, warmup_steps=3), "torchtitan")
    read = tomllib.loads(export.text)
    training = read["training"]
    assert set(training.pop("dataloader", {})) <= TORCHTITAN_02["training.dataloader"]
    for name, table in read.items():
        assert set(table) <= TORCHTITAN_02[name]
    assert training["global_batch_size"] == settings.effective_batch_size
    assert {one for one in export.data["arguments"] if one.startswith("--")} <= TORCHTITAN_03


def test_torchtitan_has_the_fields(everything: TunedConfig) -> None:
    """The configuration classes of its release 0.3 have each field that an argument names."""
    configs = pytest.importorskip("torchtitan.config.configs", reason="torchtitan is not installed")
    classes = {"training": configs.TrainingConfig, "compile": configs.CompileConfig}
    for name in to(everything, "torchtitan").data["arguments"]:
        section, _, key = name.removeprefix("--").partition(".")
        if name.startswith("--") and section in classes:
            assert key.removeprefix("no_") in inspect.signature(classes[section]).parameters


def test_torch_reads_the_environment_variables(make_config: MakeConfig) -> None:
    """A process started with them has that many threads; the lines are for a shell."""
    export = to(make_config(Settings(batch_size=16, num_threads=1)), "env")
    assert "export OMP_NUM_THREADS=1\n" in export.text
    environment = {**os.environ, **export.data["environment"]}
    code = "import torch; print(torch.get_num_threads())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "1"
