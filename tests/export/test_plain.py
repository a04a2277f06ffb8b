"""The plain script: it runs where the package is not, and trains as ``TrainStep`` does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.build import prepare_model
from autotune.config import TunedConfig
from autotune.export import to
from autotune.settings import Settings

from .conftest import ALL_AT_ONCE, Block, MakeConfig, TinyNet, pictures

_PARTS = """
import sys
sys.modules["autotune"] = None  # importing it raises
import torch
from torch import nn
EPOCHS = 2
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
    def forward(self, images):
        return torch.relu(self.conv(images))
def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(Block(), Block()), nn.Flatten(), nn.Linear(48, 2))
def make_dataset():
    generator = torch.Generator().manual_seed(0)
    return torch.utils.data.TensorDataset(torch.randn(70, 3, 4, 4, generator=generator), torch.arange(70) % 2)
def training_step(model, batch):
    inputs, target = batch
    return nn.functional.cross_entropy(model(inputs), target), len(target)
def rows(batch):
    return len(batch[0])
def make_scheduler(optimizer):
    return None
def after_epoch(epoch, model, optimizer):
    print("weights", sum(float(p.abs().sum()) for p in model.parameters()), optimizer.param_groups[0]["lr"])
"""


def _run(config: TunedConfig, folder: Path) -> str:
    """Writes the script and the filled-in parts, runs it, and gives what it printed."""
    export = to(config, "plain")
    (folder / "train.py").write_text(export.text)
    (folder / "train_parts.py").write_text(_PARTS)
    command = [sys.executable, str(folder / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_trains_where_the_package_cannot_be_imported(make_config: MakeConfig, tmp_path: Path) -> None:
    """With workers, bf16, accumulation, clipping, warm-up and a short last group it prints a loss and a rate."""
    settings = ALL_AT_ONCE.replace(compile_mode=None, multiprocessing_context=None, pin_memory=False)
    printed = _run(make_config(settings, max_grad_norm=0.5, warmup_steps=3), tmp_path)
    epochs = [line for line in printed.splitlines() if line.startswith("epoch")]
    assert len(epochs) == 2
    assert all("samples/s" in line and "nan" not in line for line in epochs)


def _script(config: TunedConfig, parts: dict[str, Any]) -> dict[str, Any]:
    """The names the script defines, its parts being ``parts``."""
    module = type(sys)("train_parts")
    vars(module).update(parts)
    names: dict[str, Any] = {"__name__": "exported"}
    before = sys.modules.get("train_parts")
    sys.modules["train_parts"] = module
    try:
        exec(compile(to(config, "plain").text, "train.py", "exec"), names)
    finally:
        sys.modules.pop("train_parts") if before is None else sys.modules.update(train_parts=before)
    return names


def _trained(config: TunedConfig, model: nn.Module, *, plain: bool) -> list[torch.Tensor]:
    """Two epochs over the same batches by the script's step or by ours."""
    loss_fn = nn.CrossEntropyLoss()
    prepared = prepare_model(model, config.settings, "cpu")
    optimizer = config.optimizer(prepared)

    def training_step(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
        return loss_fn(model(batch[0]), batch[1]), len(batch[1])

    if plain:
        step = _script(config, {"training_step": training_step})["Step"](prepared, optimizer)
    else:
        step = config.train_step(prepared, optimizer)
    for _ in range(2):
        for batch in torch.utils.data.DataLoader(pictures(), batch_size=config.settings.batch_size):
            step(batch)
        step.flush()
    return [parameter.detach() for parameter in prepared.parameters()]


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_step_is_the_measured_one(make_config: MakeConfig, precision: str, steps: int) -> None:
    """Weights agree with TrainStep's after two epochs with a short batch, a short group, clipping and warm-up."""
    settings = Settings(batch_size=8, gradient_accumulation_steps=steps, precision=precision, channels_last=True)
    config = make_config(settings, max_grad_norm=0.5, warmup_steps=3)
    torch.manual_seed(0)
    model = TinyNet()
    torch.manual_seed(0)
    theirs = _trained(config, TinyNet(), plain=True)
    ours = _trained(config, model, plain=False)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_blocks_are_found_by_the_packages_own_rule(everything: TunedConfig) -> None:
    """The script compiles and recomputes exactly the blocks that were measured so."""
    names = _script(everything, {})
    model = TinyNet()
    assert names["repeated_blocks"](model) == list(model.blocks)
    names["prepare"](model)
    assert all(block._compiled_call_impl is not None for block in model.blocks)
    assert all("forward" in vars(block) for block in model.blocks)


def test_switches_and_loader_are_those_of_the_config(everything: TunedConfig) -> None:
    """Threads are set, and the loader's arguments are the document's."""
    names = _script(everything, {})
    assert names["LOADER"] == everything.to_json()["dataloader"]
    before = torch.get_num_threads(), torch.backends.cudnn.benchmark
    try:
        names["set_switches"]()
        assert torch.get_num_threads() == 2
        assert torch.backends.cudnn.benchmark
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.benchmark = before[1]


def test_a_model_that_can_be_imported_is_imported(make_config: MakeConfig) -> None:
    """A fresh config knows the model's factory; one that was loaded leaves a marked place."""
    config = make_config()
    fresh, loaded = to(config, "plain"), to(TunedConfig.from_json(config.to_json()), "plain")
    assert f"from {TinyNet.__module__} import TinyNet as make_model" in fresh.beside["train_parts.py"]
    assert "def make_model():\n    raise NotImplementedError" in loaded.beside["train_parts.py"]


@pytest.mark.parametrize("settings", [Settings(batch_size=16), ALL_AT_ONCE])
def test_both_files_are_python_of_readable_width(make_config: MakeConfig, settings: Settings) -> None:
    """They parse, import nothing but torch and the standard library, and hold no marks of the template."""
    for text in to(make_config(settings), "plain").files.values():
        tree = ast.parse(text)
        modules = {one.module for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
        assert not any(module.startswith("autotune") for module in modules)
        assert "<<" not in text
        assert max(map(len, text.splitlines())) <= 200


def test_an_optimizer_of_the_users_own_has_a_marked_place(make_config: MakeConfig) -> None:
    """Several parameter groups are made by the user's code, and the factor for their rates is named."""

    def two_groups(params: Any) -> torch.optim.Optimizer:
        first, *rest = params
        return torch.optim.AdamW([{"params": [first]}, {"params": rest, "lr": 0.01}], lr=0.1)

    export = to(make_config(optimizer=two_groups), "plain")
    assert "return yours.make_optimizer(model)" in export.text
    assert "multiply every learning rate by 2.0" in export.beside["train_parts.py"]


def test_the_block_of_the_tests_is_a_block() -> None:
    """The toy block holds a submodule, without which the rule would not see it."""
    assert list(Block().children())
