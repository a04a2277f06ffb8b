"""How long a large in-memory dataset takes to reach the sandbox, and what it does to memory.

    python benchmarks/transport.py [--gib 2] [--rounds 3]

Prints, per round, the seconds until the child has the task (its start included), the seconds of copying alone, and by
how much the memory of parent and child together (PSS) grew beyond an empty sandbox's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.hardware import Hardware, Limits, tree_memory_bytes
from autotune.sandbox import Sandbox, transport
from autotune.task import Task

GIB = 2**30


def main() -> None:
    """Runs the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = int(arguments.gib * GIB) // (4 * 1024)
    small = Task(nn.Linear(1024, 2), TensorDataset(torch.ones(64, 1024), torch.zeros(64, dtype=torch.long)))
    large = Task(nn.Linear(1024, 2), TensorDataset(torch.ones(rows, 1024), torch.zeros(rows, dtype=torch.long)))
    _, empty_bytes = enter(small)
    for number in range(arguments.rounds):
        seconds, grown_bytes = enter(large)
        print(
            f"round {number + 1}: in the child after {seconds:.2f} s, copy alone {copy_s(large):.2f} s, "
            f"memory +{(grown_bytes - empty_bytes) / GIB:.2f} GiB for {arguments.gib:g} GiB of data",
            flush=True,
        )


def enter(task: Task) -> tuple[float, int]:
    """Seconds until the sandbox is ready, and by how much it grew this process tree."""
    hardware = Hardware.detect()
    before = tree_memory_bytes(os.getpid())
    began = time.perf_counter()
    with Sandbox(task, hardware, Limits.of(hardware)):
        seconds = time.perf_counter() - began
        return seconds, tree_memory_bytes(os.getpid()) - before


def copy_s(task: Task) -> float:
    """Seconds of writing the task to files, alone."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        transport.dump(task, Path(folder), limit_bytes=Hardware.detect().ram_available_bytes)
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
