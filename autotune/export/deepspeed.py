"""DeepSpeed: its JSON configuration, for one process."""

from __future__ import annotations

import json
from typing import Any

from autotune.export.record import Export
from autotune.export.wanted import Wanted

__all__ = ["export"]

_OPTIMIZERS = {
    "torch.optim.AdamW": ("AdamW", {"torch_adam": True, "adam_w_mode": True}),
    "torch.optim.Adam": ("Adam", {"torch_adam": True, "adam_w_mode": False}),
    "torch.optim.SGD": ("SGD", {}),
    "torch.optim.Adagrad": ("Adagrad", {}),
}
_LOADER = "DeepSpeed's configuration has no key for it: pass a DataLoader of your own, not training_data="
_WHY = {
    **dict.fromkeys(("shuffle", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory"), _LOADER),
    **dict.fromkeys(("multiprocessing_context", "drop_last", "timeout", "in_order", "length_grouped"), _LOADER),
    "short_group": "DeepSpeed divides each loss by the full number of batches, and a short group waits for the next",
    "activation_checkpointing": "its activation_checkpointing section needs deepspeed.checkpointing in the model",
    "compile_mode": "engine.compile() in the script; there is no key for it",
    "param_groups": "DeepSpeed makes one group: hand your optimizer to deepspeed.initialize(optimizer=)",
    "optimizer": "not one that DeepSpeed makes: hand it to deepspeed.initialize(optimizer=)",
    "num_threads": "OMP_NUM_THREADS in the environment",
}
_CAST = (
    "DeepSpeed's section casts the model itself to 16 bit, with fp32 masters; measured was autocast over fp32 weights"
)


def export(wanted: Wanted) -> Export:
    """A configuration file; ``train_batch_size`` is that of one process and grows with their number.

    Args:
        wanted: What the settings ask for.
    """
    config = _batch(wanted) | _precision(wanted)
    if wanted.asked("max_grad_norm"):
        config["gradient_clipping"] = wanted.take("max_grad_norm")
    config |= _optimizer(wanted)
    wanted.explain(_WHY)
    left = wanted.left("DeepSpeed's configuration has no key for it")
    text = json.dumps(config, indent=2) + "\n"
    return Export(
        dialect="deepspeed", data={"config": config}, text=text, file_name="deepspeed.json", not_expressed=left
    )


def _batch(wanted: Wanted) -> dict[str, Any]:
    steps = wanted.take("gradient_accumulation_steps")
    size = wanted.take("batch_size")
    if size is None:
        return {"gradient_accumulation_steps": steps}
    return {
        "train_batch_size": size * steps,
        "train_micro_batch_size_per_gpu": size,
        "gradient_accumulation_steps": steps,
    }


def _precision(wanted: Wanted) -> dict[str, Any]:
    precision = wanted.take("precision", "fp32")
    if precision == "tf32":
        wanted.cannot("precision", 'torch.set_float32_matmul_precision("high") in the script')
    elif precision != "fp32":
        wanted.cannot("precision", _CAST)
    config: dict[str, Any] = {"bf16": {"enabled": precision == "bf16-mixed"}}
    config["fp16"] = {"enabled": precision == "fp16-mixed"}
    return config


def _optimizer(wanted: Wanted) -> dict[str, Any]:
    known = _OPTIMIZERS.get(wanted.get("optimizer"))
    if known is None or wanted.asked("param_groups"):
        return {}
    wanted.take("optimizer")
    name, fixed = known
    rate = wanted.take("learning_rate")
    params = {key: value for key, value in {"lr": rate, **wanted.take_all("optimizer.")}.items() if value is not None}
    config: dict[str, Any] = {"optimizer": {"type": name, "params": params | fixed}}
    if wanted.asked("warmup_steps"):
        config["scheduler"] = {
            "type": "WarmupLR",
            "params": {
                "warmup_min_lr": wanted.document["optimizer"]["base_lr"],
                "warmup_max_lr": rate,
                "warmup_num_steps": wanted.take("warmup_steps"),
                "warmup_type": "linear",
            },
        }
    return config
