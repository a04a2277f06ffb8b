"""The accelerator torch would train on, found without initialising it.

What only torch's own runtime could say is left null here and filled in by ``complete_accelerator`` in a process that
may initialise the device.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import SettingsError
from autotune.hardware.nvml import NvmlUnavailable, open_nvml, read_card, visible_entries
from autotune.hardware.process_tree import tree_pids

__all__ = ["UNKNOWN_NAME", "Accelerator", "complete_accelerator", "find_accelerator"]

UNKNOWN_NAME = "unknown"

# Files that exist only where a driver for such a device does: all a process can see without starting the runtime.
# /dev/dxg is WSL's way to the card, nvhost and nvgpu are Jetson's.
_DEVICE_FILES = {
    "cuda": ("dev/nvidia[0-9]*", "dev/dxg", "dev/nvhost-gpu", "dev/nvgpu", "Windows/System32/nvcuda.dll"),
    "rocm": ("dev/kfd", "dev/dxg", "Windows/System32/amdhip64*.dll"),
    "xpu": ("dev/dri/renderD*", "dev/dxg", "Windows/System32/ze_loader.dll"),
}

_ROCM_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device, by torch's name for it; null is "could not be read"."""

    type: str
    """``"cuda"`` (NVIDIA and ROCm), ``"xpu"``, ``"mps"``, …"""
    name: str
    index: int
    """Torch's number, after ``CUDA_VISIBLE_DEVICES``."""
    count: int
    """Devices of this type visible to the process."""
    memory_bytes: int | None = None
    free_bytes: int | None = None
    """Free when it was looked at."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability."""
    driver: str | None = None
    uuid: str | None = None
    bf16_native: bool = False
    """bf16 in hardware, not emulated; False while unknown."""
    other_processes: int | None = None
    """Processes on the card besides this one and its children."""
    exclusive_process: bool | None = None
    """The card admits one process at a time."""

    @property
    def incomplete(self) -> bool:
        """Whether the device itself must still be asked."""
        return self.name == UNKNOWN_NAME or self.memory_bytes is None


def find_accelerator(
    torch: Any, *, device: str | None, root: Path, env: Mapping[str, str], nvml: Any | None, notes: list[str]
) -> Accelerator | None:
    """The accelerator to train on.

    Args:
        torch: The torch module; only compile-time facts are asked of it, unless this process has already
            initialised the device.
        device: The user's wish, such as ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; None takes what is there.
        root: Where ``dev`` is found.
        env: The environment, for the visible devices.
        nvml: A module with pynvml's functions; None imports pynvml.
        notes: Gets a line for each thing that cannot be read.

    Returns:
        The device, perhaps with nulls to be completed; None where there is none or the CPU was asked for.

    Raises:
        SettingsError: ``device`` is malformed or not there.
    """
    wanted, index = _parse_device(device)
    if wanted == "cpu":
        return None
    built = torch.accelerator.current_accelerator()  # what torch was compiled for; touches no runtime
    if built is None or wanted not in (None, built.type):
        if wanted is not None:
            raise SettingsError(f"device={device!r} is not what this torch was built for.", _remedy(built))
        return None
    started = _is_initialised(torch, built.type)
    if index is None:
        index = int(torch.accelerator.current_device_index()) if started else 0
    found = _look(torch, built.type, index=index, root=root, env=env, nvml=nvml, notes=notes)
    if found is not None and started and found.incomplete:
        found = complete_accelerator(found, torch, notes)
    if found is None and wanted is not None:
        raise SettingsError(f"device={device!r} is not visible to this process.", 'Use device="cpu" or leave it out.')
    return found


def complete_accelerator(accelerator: Accelerator, torch: Any, notes: list[str]) -> Accelerator | None:
    """Fill the nulls by asking torch, which may initialise the device.

    Args:
        accelerator: As ``find_accelerator`` gave it.
        torch: The torch module.
        notes: Gets a line for each thing that cannot be read.

    Returns:
        The same device with nothing known replaced, except where torch shows that the number means another card;
        None where torch finds no device.
    """
    if not torch.accelerator.is_available():
        if not accelerator.incomplete:
            return accelerator  # a record from elsewhere, such as a test's
        notes.append(f"There are driver files for {accelerator.type}, but torch finds no device.")
        return None
    index = accelerator.index
    count = int(torch.accelerator.device_count())
    if index >= count:
        raise SettingsError(f"Device {accelerator.type}:{index} does not exist.", f"Torch sees {count}.")
    read = _from_torch(accelerator.type, index, torch, notes)
    if _differ(accelerator.uuid, read.get("uuid")):
        notes.append(f"Torch's {accelerator.type}:{index} is another card than NVML's; torch's facts are used.")
        known: dict[str, Any] = {"type": accelerator.type, "driver": accelerator.driver}
    else:
        known = {field.name: getattr(accelerator, field.name) for field in dataclasses.fields(accelerator)}
        if known["name"] == UNKNOWN_NAME:
            known["name"] = None
    merged = {key: value if known.get(key) is None else known[key] for key, value in {**known, **read}.items()}
    bf16 = bool(known.get("bf16_native")) or bool(read["bf16_native"])
    return Accelerator(**{**merged, "index": index, "count": count, "bf16_native": bf16})


def _parse_device(device: str | None) -> tuple[str | None, int | None]:
    if device is None:
        return None, None
    match = re.fullmatch(r"([a-z]+)(?::(\d+))?", device) if isinstance(device, str) else None
    if match is None:
        raise SettingsError(f"device={device!r} is no device.", 'Use a string such as "cpu", "cuda" or "cuda:1".')
    return match[1], None if match[2] is None else int(match[2])


def _differ(one: str | None, other: str | None) -> bool:
    # By what follows "GPU-" or "MIG-": torch writes no prefix of its own.
    return one is not None and other is not None and one[4:] != other[4:]


def _remedy(built: Any) -> str:
    return 'Use device="cpu".' if built is None else f'Use device="{built.type}" or "cpu".'


def _is_initialised(torch: Any, kind: str) -> bool:
    asked = getattr(getattr(torch, kind, None), "is_initialized", None)
    return bool(asked()) if asked is not None else False


def _look(
    torch: Any, kind: str, *, index: int, root: Path, env: Mapping[str, str], nvml: Any | None, notes: list[str]
) -> Accelerator | None:
    unread = Accelerator(type=kind, name=UNKNOWN_NAME, index=index, count=index + 1)
    if kind == "mps":
        # Asks for the class of device only. One device, whose memory is the host's.
        return dataclasses.replace(unread, count=1) if index == 0 and torch.backends.mps.is_available() else None
    family = "rocm" if kind == "cuda" and torch.version.hip else kind
    if _hidden(family, env):
        notes.append(f"The environment hides all {family} devices from this process.")
        return None
    why = f"only torch's own runtime can describe {family} devices"
    if family == "cuda":
        try:
            return _from_nvml(index, env=env, nvml=nvml, started=_is_initialised(torch, kind), notes=notes)
        except NvmlUnavailable as error:
            why = f"NVML: {error}"
    files = _DEVICE_FILES.get(family)
    if files is not None and not any(next(root.glob(pattern), None) for pattern in files):
        notes.append(f"No {family} device: no device file of its driver exists ({why}).")
        return None
    notes.append(f"The {family} device is still to be asked for its name and memory ({why}).")
    return unread


def _hidden(family: str, env: Mapping[str, str]) -> bool:
    names = {"cuda": ("CUDA_VISIBLE_DEVICES",), "rocm": _ROCM_VARIABLES}.get(family, ())
    return any(visible_entries(env.get(name)) == [] for name in names)


def _from_nvml(
    index: int, *, env: Mapping[str, str], nvml: Any | None, started: bool, notes: list[str]
) -> Accelerator | None:
    with open_nvml(nvml) as library:
        card = read_card(library, index=index, env=env, notes=notes)
    if card is None:
        notes.append(f"NVML lists no card that torch would call cuda:{index}.")
        return None
    return Accelerator(
        type="cuda",
        name=card.name or UNKNOWN_NAME,
        index=index,
        count=card.count,
        memory_bytes=card.memory_bytes,
        free_bytes=card.free_bytes,
        capability=card.capability,
        driver=card.driver,
        uuid=card.uuid,
        bf16_native=_cuda_bf16(card.capability),
        other_processes=_others(card.process_ids, started, notes),
        exclusive_process=card.exclusive_process,
    )


def _cuda_bf16(capability: tuple[int, int] | None) -> bool:
    # Not torch.cuda.is_bf16_supported(), which counts emulation as support below 8.0.
    return capability is not None and capability >= (8, 0)


def _others(process_ids: tuple[int, ...] | None, started: bool, notes: list[str]) -> int | None:
    if process_ids is None:
        return None
    own = tree_pids(os.getpid())
    if started and os.getpid() not in process_ids:
        notes.append("Other processes on the card cannot be told apart: its process numbers are not this container's.")
        return None
    return len([process for process in process_ids if process not in own])


def _from_torch(kind: str, index: int, torch: Any, notes: list[str]) -> dict[str, Any]:
    if kind == "mps":
        return {
            "name": "Apple GPU",
            "memory_bytes": int(torch.mps.recommended_max_memory()),
            # The first generation emulates bf16 and cannot be told from the others here.
            "bf16_native": False,
        }
    module = torch.get_device_module(kind)
    facts: dict[str, Any] = {"bf16_native": False}
    if hasattr(module, "get_device_properties"):
        facts |= _from_properties(kind, module.get_device_properties(index), torch)
    try:
        free, total = module.mem_get_info(index)
        facts |= {"free_bytes": int(free), "memory_bytes": facts.get("memory_bytes") or int(total)}
    except (AttributeError, RuntimeError) as error:  # NotImplementedError is a RuntimeError
        notes.append(f"Free memory of {kind}:{index} cannot be read: {error}.")
    return facts


def _from_properties(kind: str, properties: Any, torch: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": str(properties.name), "memory_bytes": int(properties.total_memory)}
    if kind == "xpu":
        return {**facts, "bf16_native": bool(getattr(properties, "has_bfloat16_conversions", False))}
    if kind != "cuda":
        return {**facts, "bf16_native": False}
    if torch.version.hip:
        # CDNA from MI100 on and RDNA 3 on have bf16 matrix instructions.
        native = re.match(r"gfx(908|90a|94|95|11|12)", str(getattr(properties, "gcnArchName", "")))
        return {**facts, "bf16_native": native is not None}
    capability = (int(properties.major), int(properties.minor))
    uuid = getattr(properties, "uuid", None)
    facts["uuid"] = None if uuid is None else f"GPU-{uuid}"
    return {**facts, "capability": capability, "bf16_native": _cuda_bf16(capability)}
