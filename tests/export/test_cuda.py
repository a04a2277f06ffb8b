"""Exports of a config that was tuned on a GPU, which differ from those of a CPU."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from autotune.config import TunedConfig
from autotune.export import Export, to
from autotune.settings import Settings

from .conftest import MakeConfig


@pytest.fixture
def on_cuda(make_config: MakeConfig) -> Any:
    """Exports settings as tuned on a GPU: ``on_cuda(dialect, settings)``."""

    def make(dialect: str, settings: Settings, **fields: Any) -> Export:
        document = make_config(settings, baseline=settings, **fields).to_json()
        document["autocast"]["device_type"] = "cuda"
        if document["grad_scaler"]["enabled"]:
            document["grad_scaler"]["device"] = "cuda"
        return to(TunedConfig.from_json(document), dialect)

    return make


_BF16 = Settings(batch_size=16, precision="bf16-mixed", pin_memory=True, num_workers=2, prefetch_factor=2)
_TF32 = Settings(batch_size=16, precision="tf32", cudnn_benchmark=True)
_FP16 = Settings(batch_size=16, precision="fp16-mixed")


def _said(export: Export) -> str:
    return " | ".join(map(str, export.not_expressed))


@pytest.mark.parametrize(("settings", "tf32"), [(_BF16, False), (_TF32, True), (_FP16, False)])
def test_hugging_face_is_told_of_tf32_either_way(on_cuda: Any, settings: Settings, tf32: bool) -> None:
    """Left alone it is switched on with compilation and bf16; every argument is one of TrainingArguments."""
    from transformers import TrainingArguments

    arguments = on_cuda("hf", settings).data["training_arguments"]
    assert arguments["tf32"] is tf32
    assert arguments["fp16"] is (settings is _FP16)
    assert "use_cpu" not in arguments
    assert set(arguments) <= set(inspect.signature(TrainingArguments).parameters)


def test_precision_is_expressed_by_lightning_accelerate_and_timm(on_cuda: Any) -> None:
    """fp16 has a word in each of them on a GPU, and nothing is said to be missing."""
    assert on_cuda("lightning", _FP16).data["trainer"]["precision"] == "16-mixed"
    assert on_cuda("lightning", _FP16).data["trainer"]["accelerator"] == "gpu"
    assert on_cuda("accelerate", _FP16).data["config"]["mixed_precision"] == "fp16"
    arguments = on_cuda("timm", _FP16).data["arguments"]
    assert arguments[arguments.index("--amp-dtype") + 1] == "float16"
    assert "--device" not in arguments
    for dialect in ("lightning", "accelerate", "timm"):
        assert "precision=" not in _said(on_cuda(dialect, _FP16))


def test_timm_turns_tf32_on_by_itself(on_cuda: Any) -> None:
    """Asked for it is expressed; fp32 is not what will be trained, and that is said."""
    assert "precision=" not in _said(on_cuda("timm", _TF32))
    assert "precision='fp32': train.py allows TF32" in _said(on_cuda("timm", Settings(batch_size=16)))


def test_lightning_is_not_asked_to_clip_under_fp16_with_a_fused_optimizer(on_cuda: Any) -> None:
    """It refuses that while training; the implementation is left out, and said."""
    settings = _FP16.replace(optimizer_implementation="fused")
    export = on_cuda("lightning", settings, max_grad_norm=1.0)
    assert "fused" not in export.data["optimizer"]["kwargs"]
    assert "refuses to clip under fp16" in _said(export)


def test_the_plain_script_moves_and_scales_for_the_device(on_cuda: Any) -> None:
    """Device, dtype and scaler are those of the GPU."""
    text = on_cuda("plain", _FP16).text
    assert 'DEVICE = "cuda"' in text
    assert "AUTOCAST = torch.float16" in text
    compile(text, "train.py", "exec")


def test_deepspeed_says_that_its_sections_cast_the_model(on_cuda: Any) -> None:
    """The section is there, and so is the difference to what was measured."""
    export = on_cuda("deepspeed", _BF16)
    assert export.data["config"]["bf16"] == {"enabled": True}
    assert "measured was autocast" in _said(export)
