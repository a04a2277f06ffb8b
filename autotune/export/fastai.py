"""fastai: arguments of its DataLoaders, callbacks and optimizer of its Learner."""

from __future__ import annotations

from typing import Any

from autotune.export.process import model_lines, process_lines
from autotune.export.record import Export
from autotune.export.text import comments, python_call
from autotune.export.wanted import Wanted

__all__ = ["export"]

_LOADER = {
    "batch_size": "bs",
    "shuffle": "shuffle",
    "num_workers": "num_workers",
    "persistent_workers": "persistent_workers",
    "pin_memory": "pin_memory",
    "drop_last": "drop_last",
    "timeout": "timeout",
}
_AMP = {"bf16-mixed": "AMPMode.BF16", "fp16-mixed": "AMPMode.FP16"}
_WHY = {
    "prefetch_factor": "fastai's loader keeps 2 batches ready per worker",
    "multiprocessing_context": "fastai's loader leaves it to the platform",
    "in_order": "fastai's loader always keeps the order",
    "short_group": "GradientAccumulation carries a short group on into the next epoch",
    "warmup_steps": "fit_one_cycle and fit_flat_cos warm up by a share of all steps, not by a number",
    "loss_fn": "Learner(loss_func=)",
    "activation_checkpointing": "wrap the blocks in torch.utils.checkpoint before Learner",
    "collate_fn": "create_batch= of its DataLoader",
    "worker_init_fn": "wif= of its DataLoader",
    "sampler": "get_idxs= of its DataLoader",
}


def export(wanted: Wanted) -> Export:
    """Arguments for a Learner and its data.

    Args:
        wanted: What the settings ask for.
    """
    before = process_lines(wanted)
    loader = {theirs: wanted.take(name) for name, theirs in _LOADER.items() if wanted.get(name) is not None}
    callbacks = _callbacks(wanted)
    model = model_lines(wanted)
    optimizer, code = _optimizer(wanted)
    wanted.explain(_WHY)
    left = wanted.left("fastai has no argument for it")
    data = {
        "dataloader": loader,
        "callbacks": {name: dict(arguments) for name, arguments in callbacks},
        "optimizer": optimizer,
        "before": before,
        "model": model,
    }
    lines = ["import functools, torch", "from fastai.vision.all import *", "", *before, *model]
    lines.append(python_call("train = DataLoader", loader, "dataset"))
    cbs = ", ".join(f"{name}({', '.join(f'{key}={_code(value)}' for key, value in args)})" for name, args in callbacks)
    given = ["DataLoaders(train, valid)", "model", "loss_func=loss_fn", *code, f"cbs=[{cbs}]"]
    lines.append(python_call("learn = Learner", {}, *given))
    text = comments(left) + "\n".join(lines) + "\n"
    return Export(dialect="fastai", data=data, text=text, file_name="fastai_settings.py", not_expressed=left)


def _callbacks(wanted: Wanted) -> list[tuple[str, list[tuple[str, Any]]]]:
    callbacks: list[tuple[str, list[tuple[str, Any]]]] = []
    precision = wanted.get("precision")
    if precision in _AMP:
        wanted.take("precision")
        callbacks.append(("MixedPrecision", [("amp_mode", _AMP[precision])]))
        if wanted.device != "cuda":
            wanted.cannot("precision", "fastai's MixedPrecision is for CUDA: it runs under autocast of the GPU")
    steps, size = wanted.get("gradient_accumulation_steps"), wanted.get("batch_size")
    if steps > 1 and size is not None:
        wanted.take("gradient_accumulation_steps")
        callbacks.append(("GradientAccumulation", [("n_acc", steps * size)]))  # it counts samples
    if wanted.asked("max_grad_norm"):
        callbacks.append(("GradientClip", [("max_norm", wanted.take("max_grad_norm"))]))
    return callbacks


def _optimizer(wanted: Wanted) -> tuple[dict[str, Any], list[str]]:
    name = wanted.get("optimizer")
    if not wanted.makes_optimizer:
        return {}, []
    wanted.take("optimizer")
    kwargs = wanted.take_all("optimizer.")
    flags = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}, None: {}}
    kwargs |= flags[wanted.take("optimizer_implementation")]
    rate = wanted.take("learning_rate")
    text = ", ".join([f"OptimWrapper, opt={name}", *(f"{key}={value!r}" for key, value in kwargs.items())])
    code = [f"opt_func=functools.partial({text})"]
    if rate is not None:
        code.append(f"lr={rate!r}")
    return {"class": name, "kwargs": kwargs, "lr": rate}, code


def _code(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
