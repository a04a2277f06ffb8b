"""Hugging Face: arguments of ``transformers.TrainingArguments``."""

from __future__ import annotations

from typing import Any

from autotune.export.process import process_lines
from autotune.export.record import Export
from autotune.export.text import comments, python_call
from autotune.export.wanted import Wanted

__all__ = ["export", "training_arguments"]

_OPTIMIZERS = {
    "torch.optim.AdamW": "adamw_torch",
    "torch.optim.SGD": "sgd",
    "torch.optim.Adagrad": "adagrad",
    "torch.optim.RMSprop": "rmsprop",
}
_OPTIM_ARGS = {
    "sgd": ("momentum", "dampening", "weight_decay", "nesterov"),
    "adagrad": ("lr_decay", "weight_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "weight_decay", "centered"),
}
"""What the Trainer reads from ``optim_args``; of these two argument forms AdamW has the other."""
_LOADER = {
    "batch_size": "per_device_train_batch_size",
    "num_workers": "dataloader_num_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "drop_last": "dataloader_drop_last",
}
_WHY = {
    "optimizer": "TrainingArguments cannot name it: hand it over as Trainer(optimizers=(optimizer, None))",
    "optimizer_implementation": "TrainingArguments has a word for fused AdamW alone",
    "param_groups": "the Trainer makes two groups of its own, with weight decay and without",
    "channels_last": "the Trainer has no such argument: model.to(memory_format=torch.channels_last) before it",
    "compile_scope": "the Trainer compiles the whole model",
    "multiprocessing_context": "older releases have no dataloader_multiprocessing_context; newer take it by that name",
    "shuffle": "the Trainer shuffles map-style data and never a stream",
    "length_grouped": 'train_sampling_strategy="group_by_length" groups by a rule of its own, not the one measured',
    "activation_checkpointing": "gradient_checkpointing=True recomputes what the model's own code says",
    "loss_fn": "the Trainer takes the loss of the model, or compute_loss_func=",
}
_WARMUP = "the Trainer's warm-up rises from 0, the measured plan's from the rate before tuning"


def export(wanted: Wanted) -> Export:
    """Arguments for the Trainer.

    Args:
        wanted: What the settings ask for.
    """
    before = process_lines(wanted, tf32=False)
    arguments = training_arguments(wanted)
    wanted.explain(_WHY)
    wanted.cannot("warmup_steps", _WARMUP)
    left = wanted.left("TrainingArguments has no such argument")
    lines = ["import torch", "from transformers import TrainingArguments", "", *before]
    text = comments(left) + "\n".join([*lines, python_call("args = TrainingArguments", arguments)]) + "\n"
    data = {"training_arguments": arguments, "before": before}
    return Export(dialect="hf", data=data, text=text, file_name="hf_settings.py", not_expressed=left)


def training_arguments(wanted: Wanted) -> dict[str, Any]:
    """The arguments themselves.

    Args:
        wanted: What the settings ask for; what can be said is taken.
    """
    arguments: dict[str, Any] = {}
    for name, theirs in _LOADER.items():
        value = wanted.take(name)
        if value is not None:
            arguments[theirs] = value
    if wanted.get("shuffle", False) or wanted.document["facts"]["iterable"]:
        wanted.take("shuffle")  # as the Trainer does it
    arguments["gradient_accumulation_steps"] = wanted.take("gradient_accumulation_steps")
    wanted.take("short_group")  # it counts the labels of each group before it starts
    arguments |= _precision(wanted)
    arguments["max_grad_norm"] = wanted.take("max_grad_norm") or 0.0  # None is not 0 there: its default is 1
    arguments |= _compiled(wanted) | _optimizer(wanted)
    if wanted.asked("warmup_steps"):
        arguments["warmup_steps"] = wanted.take("warmup_steps")
    if wanted.device == "cpu":
        arguments["use_cpu"] = True
    return arguments


def _precision(wanted: Wanted) -> dict[str, Any]:
    precision = wanted.take("precision", "fp32")
    arguments: dict[str, Any] = {"bf16": precision == "bf16-mixed", "fp16": precision == "fp16-mixed"}
    if wanted.device == "cuda":  # left alone it is switched on wherever bf16 is, and refused where there is none
        arguments["tf32"] = precision == "tf32"
    elif precision == "tf32":
        wanted.cannot("precision", "TrainingArguments knows tf32 on CUDA alone")
    if precision == "fp16-mixed" and wanted.device == "cpu":
        arguments["fp16"] = False
        wanted.cannot("precision", "the Trainer has no fp16 on a CPU")
    return arguments


def _compiled(wanted: Wanted) -> dict[str, Any]:
    mode = wanted.take("compile_mode")
    return {} if mode is None else {"torch_compile": True, "torch_compile_mode": mode}


def _optimizer(wanted: Wanted) -> dict[str, Any]:
    name = _OPTIMIZERS.get(wanted.get("optimizer"))
    if name is None:
        return {}
    wanted.take("optimizer")
    arguments: dict[str, Any] = {"optim": name}
    if wanted.get("learning_rate") is not None:
        arguments["learning_rate"] = wanted.take("learning_rate")
    if wanted.get("param_groups") and not _of_its_own(wanted, arguments):
        return arguments
    return arguments | (_adamw(wanted) if name == "adamw_torch" else _with_optim_args(wanted, name))


def _of_its_own(wanted: Wanted, arguments: dict[str, Any]) -> bool:
    """Whether the groups are the Trainer's: alike but for the weight decay, which one of two is without."""
    groups = wanted.get("param_groups")
    rest = [{key: value for key, value in group.items() if key != "weight_decay"} for group in groups]
    decays = [group.get("weight_decay", 0.0) for group in groups]
    if len(groups) != 2 or rest[0] != rest[1] or decays[1] != 0:
        return False
    wanted.take("param_groups")
    wanted.take("optimizer.weight_decay")
    arguments["learning_rate"] = wanted.take("learning_rate") if groups[0].get("lr") is None else groups[0]["lr"]
    wanted.take("learning_rate")
    arguments["weight_decay"] = decays[0]
    return True


def _adamw(wanted: Wanted) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    # Left alone the Trainer fuses wherever it can, and other rooms' rule "as constructed" means torch's own choice.
    if wanted.get("optimizer_implementation") == "fused":
        arguments["optim"] = "adamw_torch_fused"
        wanted.take("optimizer_implementation")
    betas = wanted.take("optimizer.betas")
    if betas is not None:
        arguments |= {"adam_beta1": betas[0], "adam_beta2": betas[1]}
    if wanted.get("optimizer.eps") is not None:
        arguments["adam_epsilon"] = wanted.take("optimizer.eps")
    decay = wanted.take("optimizer.weight_decay")
    if decay is not None and not wanted.get("param_groups"):  # groups have each their own
        arguments["weight_decay"] = decay
        if decay:
            wanted.insist("optimizer.weight_decay", "the Trainer leaves biases and normalization layers out of it")
    return arguments


def _with_optim_args(wanted: Wanted, name: str) -> dict[str, Any]:
    known = {key: wanted.get(f"optimizer.{key}") for key in _OPTIM_ARGS[name] if wanted.asked(f"optimizer.{key}")}
    for key in known:
        wanted.take(f"optimizer.{key}")
    if not known:
        return {}
    return {"optim_args": ",".join(f"{key}={value}" for key, value in known.items())}
