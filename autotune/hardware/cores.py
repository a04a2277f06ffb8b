"""The CPU cores this process may really use, and what they are."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.hardware.cgroup import cpu_quota, read_text

__all__ = ["Cpu", "affinity", "read_cpu", "usable_cores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor behind the allowed cores."""

    model: str
    physical_cores: int | None
    """Physical cores behind the allowed logical ones; None where the system does not say."""
    bf16_native: bool
    """Whether bf16 matrix products run at least at the speed of fp32."""


def affinity() -> frozenset[int] | None:
    """Numbers of the logical CPUs this process may run on; None where the platform has no such thing (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    import psutil

    process = psutil.Process()
    return frozenset(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else None


def usable_cores(
    *, root: Path, env: Mapping[str, str], allowed: frozenset[int] | None, host: int | None, notes: list[str]
) -> tuple[int, str]:
    """How many cores this process may use, and what sets that number.

    Args:
        root: Where ``proc`` and ``sys`` are found.
        env: The environment, for the batch scheduler's share.
        allowed: The affinity mask.
        host: Logical CPUs of the machine.
        notes: Gets a line for each thing worth telling people.

    Returns:
        The smallest of machine, affinity, cgroup quota and SLURM share, at least 1, and its name.
    """
    host = host or 1
    bounds = [(host, "all of the machine's")]
    if allowed is not None and len(allowed) < host:
        bounds.append((len(allowed), f"the affinity mask allows {len(allowed)} of {host}"))
    quota = cpu_quota(root)
    if quota is not None:
        # To the nearest whole core: threads share a fraction of half a core or more with profit, and throttling
        # of less than half a core is milder than an idle core.
        bounds.append((int(quota.cores + 0.5), f"the cgroup's CPU quota is {quota.cores:g} of {host}"))
    bounds += _slurm_share(env, notes)
    cores, reason = min(bounds, key=lambda bound: bound[0])
    if cores < host:
        notes.append(f"{max(1, cores)} of {host} CPU cores can be used: {reason}.")
    return max(1, cores), reason


def read_cpu(*, root: Path, allowed: frozenset[int] | None, notes: list[str]) -> Cpu:
    """Model, physical cores and matrix units of the processor.

    Args:
        root: Where ``proc`` is found.
        allowed: The affinity mask; physical cores outside of it do not count.
        notes: Gets a line for what cannot be read.

    Returns:
        The facts, from ``/proc/cpuinfo`` where there is one.
    """
    blocks = list(_cpuinfo(root))
    if not blocks:
        return _foreign_cpu(notes)
    first = blocks[0]
    flags = (first.get("flags") or first.get("Features") or "").split()
    mine = [block for block in blocks if allowed is None or int(block.get("processor", "0")) in allowed]
    pairs = {(block.get("physical id", "0"), block["core id"]) for block in mine if "core id" in block}
    return Cpu(
        model=_model(first),
        physical_cores=len(pairs) or None,
        # AMX on x86, the BF16 extension on ARM. avx512_bf16 alone ran far behind fp32.
        bf16_native="amx_bf16" in flags or "bf16" in flags,
    )


def _slurm_share(env: Mapping[str, str], notes: list[str]) -> Iterator[tuple[int, str]]:
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        value = env.get(name, "")
        if not value:
            continue
        if value.isdigit() and int(value) > 0:
            yield int(value), f"{name}={value}"
        else:
            notes.append(f"{name}={value!r} is no number of cores and is ignored.")


def _cpuinfo(root: Path) -> Iterator[dict[str, str]]:
    text = read_text(root / "proc/cpuinfo") or ""
    for part in text.split("\n\n"):
        pairs = (line.partition(":") for line in part.splitlines())
        block = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if block.get("processor", "").isdigit():
            yield block


def _model(block: Mapping[str, str]) -> str:
    if "model name" in block:
        return block["model name"]
    if "CPU implementer" in block:
        return f"{platform.machine()} implementer {block['CPU implementer']} part {block.get('CPU part', '?')}"
    return platform.machine()


def _foreign_cpu(notes: list[str]) -> Cpu:
    import psutil

    notes.append("Whether this CPU multiplies bf16 matrices natively cannot be read on this system; taken as no.")
    model = _apple_model() or platform.processor() or platform.machine()
    physical: Callable[..., int | None] = psutil.cpu_count
    return Cpu(model=model, physical_cores=physical(logical=False), bf16_native=False)


def _apple_model() -> str | None:
    if platform.system() != "Darwin":
        return None
    # platform.processor() is "arm" on every Apple chip.
    text, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    status = ctypes.CDLL(None).sysctlbyname(b"machdep.cpu.brand_string", text, ctypes.byref(size), None, 0)
    return text.value.decode(errors="replace") if status == 0 else None
