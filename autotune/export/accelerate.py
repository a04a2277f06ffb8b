"""Accelerate: the configuration file of ``accelerate launch``, and arguments of ``Accelerator``."""

from __future__ import annotations

from typing import Any

from autotune.export.process import loader_arguments
from autotune.export.record import Export
from autotune.export.text import comments, yaml
from autotune.export.wanted import Wanted

__all__ = ["export"]

_MIXED = {"fp32": "no", "tf32": "no", "bf16-mixed": "bf16", "fp16-mixed": "fp16"}
_WHY = {
    "max_grad_norm": "accelerator.clip_grad_norm_(model.parameters(), {value}) in the loop",
    "optimizer": "the optimizer is made in your script",
    "learning_rate": "the optimizer is made in your script: lr={value}",
    "num_threads": "a launcher of one process leaves it alone: OMP_NUM_THREADS={value}",
    "short_group": "Accelerate divides each loss by the full number of batches, also in a short group",
}


def export(wanted: Wanted) -> Export:
    """A configuration file.

    Args:
        wanted: What the settings ask for.
    """
    config = _config(wanted)
    accelerator: dict[str, Any] = {"gradient_accumulation_steps": wanted.take("gradient_accumulation_steps")}
    accelerator |= {"mixed_precision": config["mixed_precision"], "cpu": config["use_cpu"]}
    loader = loader_arguments(wanted)
    for name, reason in _WHY.items():
        wanted.cannot(name, reason.format(value=repr(wanted.get(name))))
    left = wanted.left("Accelerate's configuration has no key for it; it is done in your script")
    given = ", ".join(f"{name}={value!r}" for name, value in accelerator.items())
    listed = ", ".join(f"{name}={value!r}" for name, value in loader.items())
    head = f"# In the script: Accelerator({given})\n# In the script: DataLoader(dataset, {listed})\n"
    return Export(
        dialect="accelerate",
        data={"config": config, "accelerator": accelerator, "dataloader": loader},
        text=head + comments(left) + yaml(config),
        file_name="accelerate.yaml",
        not_expressed=left,
    )


def _config(wanted: Wanted) -> dict[str, Any]:
    precision = wanted.take("precision", "fp32")
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "mixed_precision": _MIXED[precision],
        "use_cpu": wanted.device == "cpu",
        "debug": False,
        "num_processes": 1,
        "num_machines": 1,
        "machine_rank": 0,
        "main_training_function": "main",
    }
    if precision == "tf32":
        wanted.cannot("precision", 'torch.set_float32_matmul_precision("high") in the script')
    if precision == "fp16-mixed" and wanted.device == "cpu":
        config["mixed_precision"] = "no"
        wanted.cannot("precision", "Accelerate has no fp16 on a CPU")
    mode = wanted.take("compile_mode")
    if mode is not None:
        blocks = wanted.take("compile_scope") == "blocks"
        config["dynamo_config"] = {
            "dynamo_backend": "INDUCTOR",
            "dynamo_mode": mode,
            "dynamo_use_regional_compilation": blocks,
        }
    return config
