"""Plain PyTorch: a training script that needs torch and the user's own parts, nothing else."""

from __future__ import annotations

import inspect
import json
from typing import Any

from autotune.export import plain_script
from autotune.export.plain_parts import parts_file
from autotune.export.process import loader_arguments
from autotune.export.record import Export, NotExpressed
from autotune.export.text import comments
from autotune.export.wanted import Wanted
from autotune.task import layers

__all__ = ["PARTS", "export"]

PARTS = plain_script.BESIDE
"""Name of the module that the script imports the user's parts from."""
_TAKEN = (
    *("gradient_accumulation_steps", "short_group", "max_grad_norm", "precision", "channels_last", "cudnn_benchmark"),
    *("activation_checkpointing", "num_threads", "compile_mode", "compile_scope", "warmup_steps", "learning_rate"),
)
_OF_THE_LOADER = ("collate_fn", "sampler", "batch_sampler", "generator", "worker_init_fn")
_GROUPED = "batches are drawn at random; tuned.dataloader() groups them, by autotune.build.length_grouping"
_WEIGHT = "a loss that is a mean over something else than rows: return its number as the weight in training_step"


def export(wanted: Wanted) -> Export:
    """A script, and the module beside it with model, data and loss: of the task's file, or to be filled in.

    Args:
        wanted: What the settings ask for.
    """
    loader = loader_arguments(wanted)
    if wanted.get("batch_sampler") is not None:
        loader.pop("batch_size", None)
    for name in _TAKEN:
        wanted.take(name)
    objects = [name for name in _OF_THE_LOADER if wanted.take(name) is not None]
    loss = wanted.take("training_step") or wanted.take("loss_fn")
    wanted.take("loss_fn")
    optimizer = _optimizer(wanted)
    wanted.cannot("length_grouped", _GROUPED)
    left = wanted.left("plain PyTorch has no argument for it")
    if wanted.get("short_group"):
        left = (*left, NotExpressed(what="weights other than rows in accumulation", reason=_WEIGHT))
    data = _constants(wanted, loader, optimizer)
    parts, fill_in = parts_file(wanted, objects, loss, own_optimizer=optimizer is None)
    text = _script(wanted, data, objects, f"{comments(left)}{_to_fill_in(fill_in)}")
    return Export(
        dialect="plain",
        data=data,
        text=text,
        file_name="train.py",
        beside={f"{PARTS}.py": parts},
        fill_in=tuple(fill_in),
        not_expressed=left,
    )


def _to_fill_in(names: list[str]) -> str:
    """A comment line; empty where there is nothing to fill in."""
    return f"# To fill in, in {PARTS}.py: {', '.join(one.partition(':')[0] for one in names)}\n" if names else ""


def _optimizer(wanted: Wanted) -> dict[str, Any] | None:
    """Class and arguments; None where the user's own has to be made by the user's own code."""
    name, portable = wanted.get("optimizer"), wanted.makes_optimizer
    wanted.take("optimizer")
    wanted.take("param_groups")
    kwargs = {"lr": wanted.get("learning_rate"), **wanted.take_all("optimizer.")}
    implementation = wanted.take("optimizer_implementation")
    if not portable:
        flags = {"fused": "fused=True", "foreach": "foreach=True", "for-loop": "foreach=False"}
        if implementation is not None:
            wanted.insist("optimizer_implementation", f"make_optimizer is yours: pass {flags[implementation]} there")
        return None
    flag = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}, None: {}}
    kwargs = {key: tuple(value) if isinstance(value, list) else value for key, value in kwargs.items()}
    return {
        "class": name,
        "kwargs": {key: value for key, value in kwargs.items() if value is not None} | flag[implementation],
    }


def _constants(wanted: Wanted, loader: dict[str, Any], optimizer: dict[str, Any] | None) -> dict[str, Any]:
    document = wanted.document
    precision = wanted.get("precision")
    return {
        "device": wanted.device,
        "dataloader": loader,
        "gradient_accumulation_steps": document["gradient_accumulation_steps"],
        "reduction": document["task"]["reduction"],
        "autocast_dtype": {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}.get(precision),
        "max_grad_norm": document["max_grad_norm"],
        "optimizer": optimizer,
        "lr_factor": document["learning_rate"]["factor"],
        "warmup_steps": document["optimizer"]["warmup_steps"],
    }


def _script(wanted: Wanted, data: dict[str, Any], objects: list[str], told: str) -> str:
    loader = ", ".join(["dataset", *(f"{name}=yours.{name}" for name in objects)])
    optimizer = data["optimizer"]
    dtype = data["autocast_dtype"]
    values = {
        "COMMENTS": told,
        "PARTS": PARTS,
        "IMPORTS": _imports(wanted),
        "DEVICE": json.dumps(wanted.device),
        "LOADER": "".join(["{\n", *(f'    "{key}": {value!r},\n' for key, value in data["dataloader"].items()), "}"]),
        "STEPS": str(data["gradient_accumulation_steps"]),
        "MEAN": str(data["reduction"] == "mean"),
        "DTYPE": f"torch.{dtype}" if dtype else "None",
        "NORM": repr(data["max_grad_norm"]),
        "FACTOR": repr(data["lr_factor"]),
        "WARMUP": str(data["warmup_steps"]),
        "CHANNELS_LAST": str(wanted.get("channels_last")),
        "SWITCHES": "\n".join(f"    {line}" for line in _switches(wanted)) or "    # none",
        "PREPARE": "\n".join(f"    {line}" for line in _prepare(wanted)) or "    # as it is",
        "BLOCKS": _blocks(wanted),
        "MAKE_LOADER": f"DataLoader({loader}, **LOADER)",
        "MAKE_OPTIMIZER": _made(optimizer),
    }
    text = plain_script.TEMPLATE
    for name, value in values.items():
        text = text.replace(f"<<{name}>>", value)
    return text


def _made(optimizer: dict[str, Any] | None) -> str:
    if optimizer is None:
        return "yours.make_optimizer(model)"
    arguments = [f"{name}={value!r}" for name, value in optimizer["kwargs"].items()]
    return f"{optimizer['class']}({', '.join(['model.parameters()', *arguments])})"


def _switches(wanted: Wanted) -> list[str]:
    switches = wanted.document["torch"]
    lines = []
    if switches["num_threads"] is not None:
        lines.append(f"torch.set_num_threads({switches['num_threads']})")
    if switches["cudnn_benchmark"]:
        lines.append("torch.backends.cudnn.benchmark = True")
    if switches["float32_matmul_precision"] is not None:
        lines.append(f'torch.set_float32_matmul_precision("{switches["float32_matmul_precision"]}")')
    return lines


def _prepare(wanted: Wanted) -> list[str]:
    lines = []
    if wanted.get("channels_last"):
        lines.append("model.to(memory_format=torch.channels_last)")
    if wanted.get("activation_checkpointing"):
        lines += [
            "for block in repeated_blocks(model):",
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
        ]
    mode = wanted.get("compile_mode")
    if mode is not None and wanted.get("compile_scope") == "blocks":
        lines += ["for block in repeated_blocks(model):", f'    block.compile(mode="{mode}")']
    elif mode is not None:
        lines.append(f'model.compile(mode="{mode}")')
    return lines


def _needs_blocks(wanted: Wanted) -> bool:
    return bool(wanted.asked("compile_scope") or wanted.get("activation_checkpointing"))


def _imports(wanted: Wanted) -> str:
    lines = []
    if _needs_blocks(wanted):
        lines.append("from collections import Counter")
    if wanted.get("activation_checkpointing"):
        lines += ["from functools import partial", "", "from torch.utils.checkpoint import checkpoint"]
    return "".join(f"{line}\n" for line in lines)


def _blocks(wanted: Wanted) -> str:
    """The very rule by which blocks were found, where the script needs it."""
    if not _needs_blocks(wanted):
        return ""
    functions = "\n\n".join(inspect.getsource(one) for one in (layers.repeated_blocks, layers._is_block))
    containers = "_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)"
    return f"{containers}\n\n\n{functions.rstrip()}\n\n\n"
