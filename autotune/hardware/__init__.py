"""What this machine is and allows, and readings of process trees.

=====================  =================================================================
``machine``            ``Hardware``: one record of all facts, its fingerprint
``limits``             ``Limits``: how much of it a trial may take
``cores``              cores really usable (affinity, quota, SLURM) and the CPU's model
``memory``             RAM, shared memory, open files, the kernel's out-of-memory kills
``accelerator``        the device torch would train on, found without initialising it
``nvml``               NVIDIA's management library, and its numbering against torch's
``cgroup``             control groups of versions 1 and 2
``process_tree``       memory, CPU time and bytes read of a process and its descendants
``peak_memory``        the highest memory of this process over a stretch of work
``cpu_meter``          CPU time that others take from us
=====================  =================================================================
"""

from __future__ import annotations

from autotune.hardware.accelerator import Accelerator
from autotune.hardware.cpu_meter import CpuMeter
from autotune.hardware.limits import Limits
from autotune.hardware.machine import Hardware
from autotune.hardware.memory import oom_kill_count, shm_free_bytes
from autotune.hardware.peak_memory import PeakMemory, ResidentPeak
from autotune.hardware.process_tree import (
    io_bytes,
    tree_cpu_s,
    tree_memory_bytes,
    tree_pids,
    tree_resident_bytes,
)

__all__ = [
    "Accelerator",
    "CpuMeter",
    "Hardware",
    "Limits",
    "PeakMemory",
    "ResidentPeak",
    "io_bytes",
    "oom_kill_count",
    "shm_free_bytes",
    "tree_cpu_s",
    "tree_memory_bytes",
    "tree_pids",
    "tree_resident_bytes",
]
