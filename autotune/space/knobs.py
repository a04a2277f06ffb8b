"""Which knobs can matter for a task on a machine, with which values; the others with their reason."""

from __future__ import annotations

from typing import Any

from autotune.hardware import Hardware
from autotune.settings import DOMAINS, Settings
from autotune.space.space import Space
from autotune.task import Facts

__all__ = ["dropped_knobs", "values_to_try"]


_NOTHING_LEFT = {"precision": "this CPU only emulates bfloat16, many times slower"}

Values = dict[str, tuple[Any, ...]]


def values_to_try(facts: Facts, hardware: Hardware, space: Space, baseline: Settings) -> Values:
    """Values of the knobs that have few, best guess first, the baseline's own left out.

    What the caller lists is tried where it can run here at all, also where it would not have been our guess.

    Args:
        facts: Of the task.
        hardware: Of the machine.
        space: The caller's limits.
        baseline: Where the search starts.
    """
    possible, found = _possible(facts, hardware), {}
    for name, guesses in _guesses(facts, hardware).items():
        listed = [value for value in space.listed(name) or () if value in possible.get(name, ())]
        wanted = dict.fromkeys((*guesses, *listed))
        own = getattr(baseline, name)
        found[name] = tuple(value for value in wanted if value != own and space.allows(name, value))
    return found


def dropped_knobs(facts: Facts, hardware: Hardware, space: Space, baseline: Settings, values: Values) -> dict[str, str]:
    """Knobs that stay as they are: name -> reason.

    Args:
        facts: Of the task.
        hardware: Of the machine.
        space: The caller's limits.
        baseline: Where the search starts.
        values: What is left to try, of the knobs that have few values.
    """
    dropped = {**_by_default(space), **_by_facts(facts, hardware)}
    for name, left in values.items():
        if not left and name not in dropped:
            listed = "none of the values you allowed can be used here"
            dropped[name] = listed if space.listed(name) else _NOTHING_LEFT.get(name, "already as it would be tried")
    return {**dropped, **_by_caller(space, baseline)}


def _by_facts(facts: Facts, hardware: Hardware) -> dict[str, str]:
    accelerator = hardware.accelerator
    reasons = {
        "batch_size": facts.batches_kept,
        "num_workers": facts.workers_refused or _stream_reason(facts),
        "pin_memory": None if accelerator else "no accelerator to copy to",
        "persistent_workers": _persistence_reason(facts),
        "multiprocessing_context": "kept as it is",
        "channels_last": None if facts.has_conv_4d else "no 4-D convolution weights",
        "compile_mode": _compile_reason(hardware, facts),
        "compile_scope": _compile_reason(hardware, facts) or _blocks_reason(facts),
        "activation_checkpointing": _blocks_reason(facts),
        "cudnn_benchmark": _cudnn_reason(_cuda(hardware), facts),
        "optimizer_implementation": _optimizer_reason(facts),
        "num_threads": _threads_reason(hardware),
        "length_grouped": facts.order_kept or (None if facts.ragged else "all batches are of one size"),
        "precision": _precision_reason(facts),
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _threads_reason(hardware: Hardware) -> str | None:
    if hardware.accelerator is not None:
        return "the training process waits for the accelerator, not for more threads"
    return "one usable core" if hardware.cores == 1 else None


def _persistence_reason(facts: Facts) -> str | None:
    if facts.has_set_epoch:
        return "the dataset's set_epoch() would not reach workers that are kept between epochs"
    return None


def _blocks_reason(facts: Facts) -> str | None:
    return None if facts.has_repeated_blocks else "the model has no blocks that occur more than once"


def _by_default(space: Space) -> dict[str, str]:
    if space.allows("length_grouped", True):
        return {}
    return {"length_grouped": "off unless space=Space(length_grouped=True): it changes the order of samples"}


def _by_caller(space: Space, baseline: Settings) -> dict[str, str]:
    pinned = {}
    for name in DOMAINS:
        allowed = space.listed(name)
        if allowed is not None and all(value == getattr(baseline, name) for value in allowed):
            pinned[name] = "only the baseline's value is in the space you allowed"
    return pinned


def _guesses(facts: Facts, hardware: Hardware) -> Values:
    return {
        "precision": (*_precisions(hardware), *(["fp32"] if facts.caller.get("precision", "fp32") != "fp32" else [])),
        "channels_last": (True,),
        "pin_memory": (True,),
        "cudnn_benchmark": (True,),
        "compile_mode": ("default", "reduce-overhead") if _cuda(hardware) else ("default",),
        "compile_scope": ("blocks",),
        "optimizer_implementation": tuple(
            name for name in ("fused", "foreach") if name in facts.optimizer_implementations
        ),
    }


def _possible(facts: Facts, hardware: Hardware) -> Values:
    """What would run here, fast or not."""
    precisions = ["fp32", "bf16-mixed", *(["fp16-mixed"] if hardware.accelerator else [])]
    return {
        "precision": (*precisions, *(["tf32"] if _cuda(hardware) else [])),
        "compile_mode": ("default", "reduce-overhead", "max-autotune-no-cudagraphs"),
        "optimizer_implementation": facts.optimizer_implementations,
    }


def _precisions(hardware: Hardware) -> tuple[str, ...]:
    accelerator = hardware.accelerator
    if accelerator is None:
        return ("bf16-mixed",) if hardware.cpu_bf16_native else ()
    found = ["bf16-mixed"] if accelerator.bf16_native else ["fp16-mixed"]
    if accelerator.type == "cuda" and (accelerator.capability or (0, 0)) >= (8, 0):
        found.append("tf32")
    return tuple(found)


def _precision_reason(facts: Facts) -> str | None:
    if facts.model_dtype != "float32":
        return f"the model's parameters are {facts.model_dtype} already"
    if facts.deterministic:
        return "torch.use_deterministic_algorithms is on"
    return None


def _stream_reason(facts: Facts) -> str | None:
    if facts.one_worker_only and facts.loader["num_workers"] > 1:  # what it yields depends on their number
        return f"kept as it is: {facts.one_worker_only}"
    return None


def _cuda(hardware: Hardware) -> bool:
    return hardware.accelerator is not None and hardware.accelerator.type == "cuda"


def _compile_reason(hardware: Hardware, facts: Facts) -> str | None:
    if not hardware.has_compiler:
        return "no C++ compiler for torch.compile to use"
    if facts.has_compiled_parts:
        return "parts of the model are results of torch.compile already"
    if facts.batches_kept:
        return "the user's own batches may differ in size, and each size would be compiled anew"
    return None


def _cudnn_reason(cuda: bool, facts: Facts) -> str | None:
    if not cuda:
        return "no CUDA device"
    return "torch.use_deterministic_algorithms is on" if facts.deterministic else None


def _optimizer_reason(facts: Facts) -> str | None:
    if facts.optimizer_implementations:
        return None
    return f"{facts.optimizer_name} has no other implementation here"
