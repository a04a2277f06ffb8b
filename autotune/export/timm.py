"""timm: arguments of its training script ``train.py``."""

from __future__ import annotations

import shlex

from autotune.export.record import Export
from autotune.export.text import comments
from autotune.export.wanted import Wanted

__all__ = ["export"]

_OPTIMIZERS = {
    "torch.optim.AdamW": "adamw",
    "torch.optim.Adam": "adam",
    "torch.optim.NAdam": "nadam",
    "torch.optim.RAdam": "radam",
    "torch.optim.Adamax": "adamax",
    "torch.optim.Adadelta": "adadelta",
    "torch.optim.Adagrad": "adagrad",
    "torch.optim.RMSprop": "rmsprop",
}
_AMP = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}
_WHY = {
    "prefetch_factor": "train.py leaves it to torch (2)",
    "multiprocessing_context": "train.py leaves it to torch",
    "warmup_steps": "train.py warms up for whole epochs: --warmup-epochs, from --warmup-lr",
    "short_group": "train.py scales the last group of an epoch by its own number of batches, not of samples",
    "num_threads": "OMP_NUM_THREADS in the environment",
    "cudnn_benchmark": "train.py sets it itself on CUDA, and only there",
    "compile_scope": "train.py compiles the whole model",
    "precision": "train.py allows TF32 itself on CUDA, and only there",
    "loss_fn": "train.py has losses of its own: --smoothing, --bce-loss, --mixup",
}
_DECAY = "train.py leaves biases and normalization layers out of it"


def export(wanted: Wanted) -> Export:
    """Command-line arguments.

    Args:
        wanted: What the settings ask for.
    """
    arguments = [*_loader(wanted), *_step(wanted), *_optimizer(wanted)]
    wanted.explain(_WHY)
    left = wanted.left("train.py has no such argument")
    text = comments(left) + _lines(arguments)
    data = {"arguments": arguments}
    return Export(dialect="timm", data=data, text=text, file_name="timm_arguments.sh", not_expressed=left)


def _loader(wanted: Wanted) -> list[str]:
    arguments = []
    size = wanted.take("batch_size")
    if size is not None:
        arguments += ["--batch-size", str(size)]
    arguments += ["--workers", str(wanted.take("num_workers", 0))]
    if wanted.take("pin_memory"):
        arguments.append("--pin-mem")
    if wanted.get("persistent_workers"):
        wanted.take("persistent_workers")  # its create_loader keeps workers
    if wanted.get("shuffle"):
        wanted.take("shuffle")  # as it always does in training
    wanted.take("drop_last")
    if not wanted.get("drop_last"):
        wanted.insist("drop_last", "train.py leaves out an epoch's incomplete last batch where data is map-style")
    return arguments


def _step(wanted: Wanted) -> list[str]:
    arguments = ["--grad-accum-steps", str(wanted.take("gradient_accumulation_steps"))]
    if wanted.device != "cuda":
        arguments += ["--device", wanted.device]
    precision = wanted.get("precision")
    if precision in _AMP:
        wanted.take("precision")
        arguments += ["--amp", "--amp-dtype", _AMP[precision]]
    elif precision == "tf32" and wanted.device == "cuda":
        wanted.take("precision")
    elif wanted.device == "cuda":
        wanted.insist("precision", "train.py allows TF32 in fp32 matrix products on CUDA")
    if wanted.take("channels_last"):
        arguments.append("--channels-last")
    mode = wanted.take("compile_mode")
    if mode is not None:
        arguments += ["--torchcompile", "inductor", "--torchcompile-mode", mode]
    if wanted.device == "cuda" and wanted.get("cudnn_benchmark"):
        wanted.take("cudnn_benchmark")
    if wanted.asked("activation_checkpointing"):
        arguments.append("--grad-checkpointing")
        wanted.cannot("activation_checkpointing", "--grad-checkpointing recomputes what the model's own code says")
    if wanted.asked("max_grad_norm"):
        arguments += ["--clip-grad", str(wanted.take("max_grad_norm")), "--clip-mode", "norm"]
    return arguments


def _optimizer(wanted: Wanted) -> list[str]:
    name = _name(wanted)
    if name is None or wanted.asked("param_groups"):
        return []
    wanted.take("optimizer")
    arguments = ["--opt", name]
    if wanted.get("learning_rate") is not None:
        arguments += ["--lr", str(wanted.take("learning_rate"))]
    if wanted.get("optimizer.betas") is not None:
        arguments += ["--opt-betas", *map(str, wanted.take("optimizer.betas"))]
    if wanted.get("optimizer.eps") is not None:
        arguments += ["--opt-eps", str(wanted.take("optimizer.eps"))]
    if wanted.get("optimizer.momentum") is not None:
        arguments += ["--momentum", str(wanted.take("optimizer.momentum"))]
    decay = wanted.take("optimizer.weight_decay", 0.0)
    arguments += ["--weight-decay", str(decay)]  # its default is not torch's
    if decay:
        wanted.insist("optimizer.weight_decay", _DECAY)
    return arguments + _keywords(wanted)


def _name(wanted: Wanted) -> str | None:
    if wanted.get("optimizer") == "torch.optim.SGD":
        return "sgd" if wanted.take("optimizer.nesterov") else "momentum"
    return _OPTIMIZERS.get(wanted.get("optimizer"))


def _keywords(wanted: Wanted) -> list[str]:
    keywords = wanted.take_all("optimizer.")
    for name in ("betas", "eps", "momentum", "weight_decay", "nesterov"):
        keywords.pop(name, None)
    implementation = wanted.take("optimizer_implementation")
    if implementation is not None:
        flags = {"fused": "fused=True", "foreach": "foreach=True", "for-loop": "foreach=False"}
        return ["--opt-kwargs", *(f"{key}={value!r}" for key, value in keywords.items()), flags[implementation]]
    return ["--opt-kwargs", *(f"{key}={value!r}" for key, value in keywords.items())] if keywords else []


def _lines(arguments: list[str]) -> str:
    """One option per line, as a shell reads it."""
    lines: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--"):
            lines.append([argument])
        else:
            lines[-1].append(argument)
    return " \\\n  ".join(["python train.py", *(shlex.join(line) for line in lines)]) + "\n"
