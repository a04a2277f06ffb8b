"""The three kinds of machine, and the records that the product would have detected on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.hardware import Accelerator, Hardware

__all__ = ["MACHINES", "Machine", "MachineKind", "hardware_record"]

MachineKind = Literal["A", "C", "B"]

_GB = 10**9
_RAM_SHARE = 0.9  # ``Limits.of`` takes this share of the available RAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one kind of machine has."""

    kind: MachineKind
    text: str
    cores: int
    has_gpu: bool
    memory_gb: float
    """What a training process can allocate where it trains: on the GPU, else of the RAM."""
    card_gb: float = 0.0
    """What the card says it has: the driver and the context keep the difference."""
    ram_gb: float
    capability: tuple[int, int] = (0, 0)
    process_start_s: float
    """Until a new process is ready for its first probe: torch imported, context made, task loaded and described."""


MACHINES: dict[MachineKind, Machine] = {
    "A": Machine(
        kind="A",
        text="GPU with 80 GB, 16 cores",
        cores=16,
        has_gpu=True,
        memory_gb=79.0,
        card_gb=80.0,
        ram_gb=500.0,
        capability=(8, 0),
        process_start_s=6.0,  # assumed: the CPU's, and two seconds for context and libraries
    ),
    "C": Machine(
        kind="C",
        text="GPU with 24 GB, 8 cores",
        cores=8,
        has_gpu=True,
        memory_gb=23.0,
        card_gb=24.0,
        ram_gb=64.0,
        capability=(8, 6),
        process_start_s=6.0,
    ),
    "B": Machine(
        kind="B",
        text="CPU with 2 cores",
        cores=2,
        has_gpu=False,
        memory_gb=16.0,
        ram_gb=18.0,
        process_start_s=4.0,  # measured, see budgets.py: 3.3 to 4.4 s
    ),
}


def hardware_record(machine: Machine, *, bf16_pays: bool) -> Hardware:
    """What ``Hardware.detect`` would have found.

    Args:
        machine: The kind.
        bf16_pays: Whether this one multiplies bf16 in hardware; an older card or CPU does not.
    """
    ram_bytes = int(machine.ram_gb * _GB)
    available_gb = machine.ram_gb * _RAM_SHARE if machine.has_gpu else machine.memory_gb / _RAM_SHARE
    return Hardware(
        cores=machine.cores,
        cores_reason="simulated",
        physical_cores=machine.cores,
        cpu_model="simulated",
        cpu_bf16_native=bf16_pays and not machine.has_gpu,
        ram_bytes=ram_bytes,
        ram_available_bytes=int(available_gb * _GB),
        shm_bytes=ram_bytes // 2,
        open_files=1024,
        accelerator=_card(machine, bf16_pays) if machine.has_gpu else None,
        has_compiler=True,
        platform="simulated",
        python="3.11",
        torch="2.9",
        cuda="12.8" if machine.has_gpu else None,
        cudnn=91000 if machine.has_gpu else None,
    )


def _card(machine: Machine, bf16_pays: bool) -> Accelerator:
    return Accelerator(
        type="cuda",
        name="simulated",
        index=0,
        count=1,
        memory_bytes=int(machine.card_gb * _GB),
        free_bytes=int(machine.memory_gb * _GB),
        capability=machine.capability if bf16_pays else (7, 5),
        bf16_native=bf16_pays,
        other_processes=0,
        exclusive_process=False,
    )
