"""torchtitan: TOML for its releases up to 0.2, and arguments for 0.3, which reads no files any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.export.record import Export, NotExpressed
from autotune.export.text import comments, toml
from autotune.export.wanted import Wanted

__all__ = ["export"]

_OPTIMIZERS = {"torch.optim.AdamW": "AdamW", "torch.optim.Adam": "Adam"}
_LOADER = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
_WHY = {
    "optimizer": "torchtitan makes Adam and AdamW alone",
    "param_groups": "torchtitan 0.2 makes one group; 0.3 groups by patterns in its registry of configurations",
    "shuffle": "torchtitan's datasets are streams, which it does not shuffle",
    "short_group": "torchtitan counts the tokens of the whole batch; groups never are short, since its data never ends",
    "compile_mode": "torchtitan compiles its blocks in mode 'default' alone",
    "activation_checkpointing": "its activation_checkpoint section recomputes by rules of its own",
    "channels_last": "torchtitan has no models of images by convolutions",
    "loss_fn": "torchtitan's model specification brings the loss",
    "warmup_steps": "torchtitan's warm-up rises from 0, the measured plan's from the rate before tuning",
    "num_threads": "OMP_NUM_THREADS in the environment",
    "drop_last": "its data never ends",
}

_IN_03 = NotExpressed(
    what="learning rate, betas, eps and weight decay in torchtitan 0.3",
    reason="its arguments reach the optimizer's implementation alone; the others stand in its config_registry.py",
)


def export(wanted: Wanted) -> Export:
    """A configuration file and arguments, for one rank.

    Args:
        wanted: What the settings ask for.
    """
    tables = {"training": _training(wanted), "training.dataloader": _loader(wanted), **_optimizer(wanted)}
    tables |= _compiled(wanted)
    wanted.explain(_WHY)
    left = wanted.left("torchtitan's configuration has no key for it")
    if "optimizer" in tables:
        left = (*left, _IN_03)
    arguments = _arguments(tables)
    tables = {name: table for name, table in tables.items() if table}
    head = f"# torchtitan 0.2; for 0.3, which reads no TOML: {' '.join(arguments)}\n"
    return Export(
        dialect="torchtitan",
        data={"toml": tables, "arguments": arguments},
        text=head + comments(left) + toml(tables),
        file_name="torchtitan.toml",
        not_expressed=left,
    )


def _training(wanted: Wanted) -> dict[str, Any]:
    steps, size = wanted.get("gradient_accumulation_steps"), wanted.take("batch_size")
    table: dict[str, Any] = {}
    if size is not None:
        wanted.take("gradient_accumulation_steps")  # follows from the two
        table |= {"local_batch_size": size, "global_batch_size": size * steps}
    norm = wanted.take("max_grad_norm")
    table["max_norm"] = norm if norm is not None else 1e30  # it always clips
    precision = wanted.take("precision", "fp32")
    table["mixed_precision_param"] = "bfloat16" if precision == "bf16-mixed" else "float32"
    wanted.take("short_group")
    if precision in ("tf32", "fp16-mixed"):
        wanted.cannot("precision", "torchtitan trains in float32 or bfloat16")
    return table


def _loader(wanted: Wanted) -> dict[str, Any]:
    return {name: wanted.take(name) for name in _LOADER if wanted.get(name) is not None}


def _optimizer(wanted: Wanted) -> dict[str, dict[str, Any]]:
    name = _OPTIMIZERS.get(wanted.get("optimizer"))
    tables: dict[str, dict[str, Any]] = {"lr_scheduler": {"warmup_steps": wanted.take("warmup_steps", 0)}}
    wanted.cannot("warmup_steps", _WHY["warmup_steps"])
    if name is None or wanted.asked("param_groups"):
        return tables
    wanted.take("optimizer")
    table: dict[str, Any] = {"name": name}
    if wanted.get("learning_rate") is not None:
        table["lr"] = wanted.take("learning_rate")
    betas = wanted.take("optimizer.betas")
    if betas is not None:
        table |= {"beta1": betas[0], "beta2": betas[1]}
    for key in ("eps", "weight_decay"):
        if wanted.get(f"optimizer.{key}") is not None:
            table[key] = wanted.take(f"optimizer.{key}")
    implementation = wanted.take("optimizer_implementation")
    # Left alone torchtitan fuses; torch's own choice is foreach where there is an accelerator, else the loop.
    table["implementation"] = implementation or ("for-loop" if wanted.device == "cpu" else "foreach")
    return {"optimizer": table, **tables}


def _compiled(wanted: Wanted) -> dict[str, dict[str, Any]]:
    mode = wanted.get("compile_mode")
    if mode is None:
        return {"compile": {"enable": False}}
    if mode == "default":
        wanted.take("compile_mode")
    if wanted.take("compile_scope") == "model":
        wanted.insist("compile_scope", "torchtitan compiles block by block")
    return {"compile": {"enable": True, "components": ["model"]}}


def _arguments(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """For 0.3: its optimizer's options are set in its registry, except for the implementation."""
    arguments = []
    for name, table in tables.items():
        section = "dataloader" if name == "training.dataloader" else name
        for key, value in table.items():
            if section == "optimizer" and key != "implementation":
                continue
            if isinstance(value, bool):
                arguments.append(f"--{section}.{key}" if value else f"--{section}.no_{key}")
            elif isinstance(value, list):
                arguments += [f"--{section}.{key}", *map(str, value)]
            else:
                arguments += [f"--{section}.{key}", str(value)]
    return arguments
