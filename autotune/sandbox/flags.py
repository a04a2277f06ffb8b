"""The process-wide switches of torch: read all, set all back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

__all__ = ["TorchFlags"]

# Attributes below torch.backends. Order matters when setting: a legacy switch writes several of the new ones,
# and a wide precision is inherited by the narrow ones, so legacy comes first and narrow last.
_BACKEND_ATTRIBUTES = (
    "cudnn.allow_tf32",
    "fp32_precision",
    "cudnn.fp32_precision",
    "mkldnn.fp32_precision",
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "mkldnn.rnn.fp32_precision",
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "mkldnn.enabled",
    "mkldnn.deterministic",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
)
_ATTENTION_KERNELS = ("flash", "mem_efficient", "math", "cudnn")


@dataclass(frozen=True, slots=True)
class TorchFlags:
    """Values of torch's global switches.

    Args:
        values: JSON scalars by name. A switch that cannot be read (torch refuses to read a legacy TF32 switch
            once the new ones were used) is absent and is left alone.
    """

    values: dict[str, Any]

    @classmethod
    def capture(cls) -> TorchFlags:
        """The switches as they are now; initialises no accelerator."""
        values = {name: _read(get) for name, (get, _) in _switches().items()}
        return cls({name: value for name, value in values.items() if value is not _UNREADABLE})

    def apply(self) -> None:
        """Sets every switch that differs; equal ones are not touched (setting a precision makes it explicit)."""
        switches = _switches()
        for name, value in self.values.items():
            get, set_ = switches[name]
            if _read(get) != value:
                set_(value)


_UNREADABLE = object()
_Switch = tuple[Callable[[], Any], Callable[[Any], object]]


def _read(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (RuntimeError, AttributeError):  # mixed TF32 interfaces, or a switch of another release
        return _UNREADABLE


def _switches() -> dict[str, _Switch]:
    switches: dict[str, _Switch] = {
        "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "default_dtype": (_default_dtype, _set_default_dtype),
        "default_device": (_default_device, torch.set_default_device),
        "deterministic_algorithms": (_deterministic, _set_deterministic),
        "fill_uninitialized_memory": _attribute(torch.utils, "deterministic.fill_uninitialized_memory"),
        "num_threads": (torch.get_num_threads, torch.set_num_threads),
    }
    switches |= {name: _attribute(torch.backends, name) for name in _BACKEND_ATTRIBUTES}
    for kernel in _ATTENTION_KERNELS:
        get = getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")
        switches[f"{kernel}_sdp"] = (get, getattr(torch.backends.cuda, f"enable_{kernel}_sdp"))
    return switches


def _attribute(root: Any, path: str) -> _Switch:
    *parents, name = path.split(".")

    def owner() -> Any:
        return reduce(getattr, parents, root)

    return lambda: getattr(owner(), name), lambda value: setattr(owner(), name, value)


def _default_dtype() -> str:
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _set_default_dtype(name: str) -> None:
    torch.set_default_dtype(getattr(torch, name))


def _default_device() -> str | None:
    # torch.get_default_device() makes a tensor there, which would initialise the accelerator.
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else str(context.device)


def _deterministic() -> int:
    # 0: off, 1: warn only, 2: on - one scalar, so that the two parts are compared and set together
    if not torch.are_deterministic_algorithms_enabled():
        return 0
    return 1 if torch.is_deterministic_algorithms_warn_only_enabled() else 2


def _set_deterministic(level: int) -> None:
    torch.use_deterministic_algorithms(level > 0, warn_only=level == 1)
