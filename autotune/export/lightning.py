"""Lightning: arguments of ``Trainer`` and of the DataLoader, and what to return from ``configure_optimizers``."""

from __future__ import annotations

from typing import Any

from autotune.export.process import loader_arguments, model_lines, process_lines
from autotune.export.record import Export
from autotune.export.text import comments, python_call
from autotune.export.wanted import Wanted

__all__ = ["PRECISIONS", "export"]

PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16-mixed": "bf16-mixed", "fp16-mixed": "16-mixed"}
"""Settings.precision in Lightning's words."""
_ACCELERATORS = {"cpu": "cpu", "cuda": "gpu", "mps": "mps", "xpu": "xpu"}


def export(wanted: Wanted) -> Export:
    """Arguments for Lightning.

    Args:
        wanted: What the settings ask for.
    """
    before = process_lines(wanted, cudnn_benchmark=False)
    loader = loader_arguments(wanted)
    trainer = _trainer(wanted)
    model = model_lines(wanted)
    optimizer, code = _optimizer(wanted)
    _say_what_differs(wanted)
    left = wanted.left("Lightning's Trainer has no argument for it; do it in the LightningModule")
    data = {"trainer": trainer, "dataloader": loader, "optimizer": optimizer, "before": before, "model": model}
    lines = ["import torch", "from lightning.pytorch import Trainer", "", *before]
    lines += [python_call("loader = torch.utils.data.DataLoader", loader, "dataset"), *model]
    lines += [python_call("trainer = Trainer", trainer), *code, "trainer.fit(model, loader)"]
    text = comments(left) + "\n".join(lines) + "\n"
    return Export(dialect="lightning", data=data, text=text, file_name="lightning_settings.py", not_expressed=left)


def _trainer(wanted: Wanted) -> dict[str, Any]:
    precision = wanted.take("precision", "fp32")
    arguments: dict[str, Any] = {"accelerator": _ACCELERATORS.get(wanted.device, wanted.device), "devices": 1}
    arguments["precision"] = PRECISIONS[precision]
    if precision == "fp16-mixed" and wanted.device == "cpu":
        arguments["precision"] = "32-true"
        wanted.cannot("precision", "Lightning trains with bf16 instead of fp16 on a CPU")
    arguments["accumulate_grad_batches"] = wanted.take("gradient_accumulation_steps")
    if wanted.asked("max_grad_norm"):
        arguments["gradient_clip_val"] = wanted.take("max_grad_norm")
        arguments["gradient_clip_algorithm"] = "norm"
    arguments["benchmark"] = wanted.take("cudnn_benchmark")
    return arguments


def _optimizer(wanted: Wanted) -> tuple[dict[str, Any], list[str]]:
    name = wanted.get("optimizer")
    if not wanted.makes_optimizer:
        factor = wanted.document["learning_rate"]["factor"]
        if factor == 1:
            return {}, []
        wanted.take("learning_rate")
        return {"lr_factor": factor}, [f"# in configure_optimizers: multiply every learning rate by {factor!r}"]
    wanted.take("optimizer")
    implementation = wanted.take("optimizer_implementation")
    kwargs = {"lr": wanted.take("learning_rate"), **wanted.take_all("optimizer.")}
    kwargs = {key: value for key, value in kwargs.items() if value is not None}
    if implementation is not None:
        kwargs |= {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}[
            implementation
        ]
    if kwargs.get("fused") and wanted.document["max_grad_norm"] is not None and _scaled(wanted):
        del kwargs["fused"]
        wanted.cannot("optimizer_implementation", "Lightning refuses to clip under fp16 with a fused optimizer")
    call = ", ".join(["self.parameters()", *(f"{key}={value!r}" for key, value in kwargs.items())])
    return {"class": name, "kwargs": kwargs}, [f"# in configure_optimizers: return {name}({call})"]


def _scaled(wanted: Wanted) -> bool:
    return bool(wanted.get("precision") == "fp16-mixed")


def _say_what_differs(wanted: Wanted) -> None:
    wanted.cannot("short_group", "Lightning divides each loss by the full number of batches, also in a short group")
    wanted.cannot("warmup_steps", "Lightning has no warm-up: return a LinearLR from configure_optimizers, per step")
    wanted.cannot("length_grouped", "build the loader with tuned.dataloader(), which groups by length")
    wanted.cannot("loss_fn", "the loss is computed in the module's training_step")
    wanted.cannot("training_step", "the module has a training_step of its own")
