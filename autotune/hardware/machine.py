"""``Hardware``: everything about this machine that decides which settings are fast, as one record."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from autotune.errors import ConfigError
from autotune.hardware.accelerator import Accelerator, complete_accelerator, find_accelerator
from autotune.hardware.cores import affinity, read_cpu, usable_cores
from autotune.hardware.memory import open_file_limit, read_ram, shm_free_bytes

__all__ = ["Hardware", "decode_record"]

_ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What this process may use of its machine; null is "could not be read", and ``notes`` says why."""

    cores: int
    """CPU cores this process may use."""
    cores_reason: str
    """What sets that number."""
    physical_cores: int | None
    """Physical cores behind them."""
    cpu_model: str
    cpu_bf16_native: bool
    """The CPU multiplies bf16 matrices at least as fast as fp32."""
    ram_bytes: int
    """RAM, or the control group's limit where that is less."""
    ram_available_bytes: int
    """Available when it was looked at."""
    shm_bytes: int | None
    """Free in ``/dev/shm`` when it was looked at."""
    open_files: int | None
    """Files this process may hold open."""
    accelerator: Accelerator | None
    has_compiler: bool
    """The C++ compiler that ``torch.compile`` calls exists."""
    platform: str
    python: str
    torch: str
    cuda: str | None
    """CUDA version torch was built with; ``"rocm x.y"`` for ROCm."""
    cudnn: int | None
    notes: tuple[str, ...] = ()
    """What could not be read and why, and what bounds this process."""

    @classmethod
    def detect(
        cls,
        *,
        device: str | None = None,
        root: Path = _ROOT,
        env: Mapping[str, str] | None = None,
        nvml: Any | None = None,
        torch: Any | None = None,
        allowed: Callable[[], frozenset[int] | None] = affinity,
        host_cores: Callable[[], int | None] = os.cpu_count,
        which: Callable[[str], str | None] = shutil.which,
    ) -> Hardware:
        """Look at this machine; neither CUDA nor any other accelerator is initialised.

        Args:
            device: The user's wish, such as ``"cpu"`` or ``"cuda:1"``; None takes what is there.
            root: Where ``proc``, ``sys`` and ``dev`` are found.
            env: The environment; None is this process's.
            nvml: A module with pynvml's functions; None imports pynvml.
            torch: A module with torch's facts; None imports torch.
            allowed: Gives the affinity mask.
            host_cores: Gives the machine's logical CPUs.
            which: Finds a program, as ``shutil.which``.

        Raises:
            SettingsError: ``device`` is malformed or not there.
        """
        env = os.environ if env is None else env
        torch = torch or import_module("torch")
        notes: list[str] = []
        mask = allowed()
        cores, reason = usable_cores(root=root, env=env, allowed=mask, host=host_cores(), notes=notes)
        cpu = read_cpu(root=root, allowed=mask, notes=notes)
        ram_bytes, available_bytes = read_ram(root=root, notes=notes)
        accelerator = find_accelerator(torch, device=device, root=root, env=env, nvml=nvml, notes=notes)
        return cls(
            cores=cores,
            cores_reason=reason,
            physical_cores=cpu.physical_cores,
            cpu_model=cpu.model,
            cpu_bf16_native=cpu.bf16_native,
            ram_bytes=ram_bytes,
            ram_available_bytes=available_bytes,
            shm_bytes=shm_free_bytes(root),
            open_files=open_file_limit(),
            accelerator=accelerator,
            has_compiler=which(_compiler(env)) is not None,
            platform=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            torch=str(torch.__version__),
            cuda=_cuda_version(torch),
            cudnn=_cudnn_version(torch, notes),
            notes=tuple(notes),
        )

    @property
    def device(self) -> str:
        """Where training runs here, as torch spells it: "cuda:0", or "cpu" without an accelerator."""
        return f"{self.accelerator.type}:{self.accelerator.index}" if self.accelerator else "cpu"

    def completed(self, *, torch: Any | None = None) -> Hardware:
        """This record with what only the device itself can say; for a process that may initialise it.

        Args:
            torch: A module with torch's functions; None imports torch.

        Returns:
            Itself where nothing is missing. With several cards, also checks that torch's number means the card
            described. Without a device after all, ``accelerator`` becomes None.

        Raises:
            SettingsError: Torch has fewer devices than the one asked for.
        """
        if self.accelerator is None or not (self.accelerator.incomplete or self.accelerator.count > 1):
            return self
        notes = list(self.notes)
        accelerator = complete_accelerator(self.accelerator, torch or import_module("torch"), notes)
        return dataclasses.replace(self, accelerator=accelerator, notes=tuple(notes))

    def speed_facts(self) -> dict[str, Any]:
        """The facts that change how fast a setting is, and nothing that changes from one minute to the next."""
        found = self.accelerator
        card = found and {
            "type": found.type,
            "name": found.name,
            "count": found.count,
            # NVML and torch differ by some MiB that the driver keeps for itself.
            "memory_gib": None if found.memory_bytes is None else round(found.memory_bytes / 2**30),
            "driver_major": None if found.driver is None else found.driver.split(".")[0],
        }
        names = ("cores", "cpu_model", "torch", "cuda", "cudnn")
        return {**{name: getattr(self, name) for name in names}, "accelerator": card}

    @property
    def fingerprint(self) -> str:
        """``"sha256:…"`` of ``speed_facts``: equal where settings can be carried over."""
        text = json.dumps(self.speed_facts(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values, in declaration order."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Hardware:
        """The record ``to_json`` wrote.

        Raises:
            ConfigError: Not such a mapping: a field is missing, unknown, or of another type.
        """
        return decode_record(cls, data)


Record = typing.TypeVar("Record")


def decode_record(cls: type[Record], data: Any) -> Record:
    """Build a frozen record out of JSON, every field checked against its annotation.

    Args:
        cls: A dataclass of scalars, tuples of scalars and dataclasses of the same kind.
        data: What ``json.loads`` gave.

    Raises:
        ConfigError: A field is missing, unknown, or of another type.
    """
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if not isinstance(data, Mapping) or set(data) != fields:
        keys = sorted(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
        raise ConfigError(
            f"No valid {cls.__name__} record: {keys} instead of {sorted(fields)}.", "Tune again on this machine."
        )
    hints = typing.get_type_hints(cls)
    return cls(**{name: _decode(hints[name], data[name], f"{cls.__name__}.{name}") for name in fields})


def _decode(hint: Any, value: Any, where: str) -> Any:
    for option in typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
        if dataclasses.is_dataclass(option) and isinstance(option, type) and isinstance(value, Mapping):
            return decode_record(option, value)
        if typing.get_origin(option) is tuple and isinstance(value, list):
            inner = typing.get_args(option)
            kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
            if len(kinds) == len(value):
                return tuple(_decode(kind, each, where) for kind, each in zip(kinds, value, strict=True))
        if type(value) is option:  # a bool is no int here
            return value
    raise ConfigError(f"{where} cannot be {value!r}.", "Tune again on this machine.")


def _compiler(env: Mapping[str, str]) -> str:
    # Inductor's own rule: $CXX, else the platform's usual name.
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return env.get("CXX") or usual


def _cuda_version(torch: Any) -> str | None:
    hip = torch.version.hip
    return f"rocm {hip}" if hip else torch.version.cuda


def _cudnn_version(torch: Any, notes: list[str]) -> int | None:
    # Not torch.backends.cudnn.version(): where a card is visible, that asks each for its capability and so
    # initialises CUDA.
    try:
        return int(torch._C._cudnn.getVersionInt()) if torch._C._has_cudnn else None
    except (AttributeError, RuntimeError) as error:
        notes.append(f"The cuDNN version cannot be read: {error}.")
        return None
