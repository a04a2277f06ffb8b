"""The process-wide switches that ``Settings`` hold: CPU threads, cuDNN autotuning, float32 matmul precision.

torch has two interfaces for TF32. ``torch.set_float32_matmul_precision`` writes its own value *and* the matmul
entries of the newer ``fp32_precision`` table; the newer one writes the table alone, after which reading through the
older one raises ("mix of the legacy and new APIs"). So: set with the older one, which leaves both readable whatever
the caller used before, and for restoring save both, the table's own entries without what they inherit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from autotune.settings import Settings

__all__ = ["apply_switches", "switches"]

_BACKENDS = ("cuda", "mkldnn")
"""Backends whose matmul entry ``torch.set_float32_matmul_precision`` writes."""

TF32 = "high"
"""float32 matmuls may use TensorFloat32."""


@contextmanager
def switches(settings: Settings) -> Iterator[list[str]]:
    """The switches of ``settings`` inside the ``with`` block, exactly the former ones afterwards.

    Args:
        settings: num_threads, cudnn_benchmark and precision are used; precisions other than "tf32" leave the
            caller's float32 flags alone.

    Yields:
        What was changed, for people.
    """
    threads = torch.get_num_threads()
    benchmark = torch.backends.cudnn.benchmark
    matmul = _MatmulPrecision.read() if settings.precision == "tf32" else None
    try:
        yield apply_switches(settings)
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
        if matmul is not None:
            matmul.write()


def apply_switches(settings: Settings) -> list[str]:
    """Set the switches of ``settings`` for the rest of the process.

    Args:
        settings: As for ``switches``.

    Returns:
        What was changed, one sentence each; empty where all was as wanted.
    """
    changed = []
    threads = torch.get_num_threads()
    if settings.num_threads is not None and settings.num_threads != threads:
        torch.set_num_threads(settings.num_threads)
        changed.append(f"torch.set_num_threads({settings.num_threads}) (was {threads})")
    benchmark = torch.backends.cudnn.benchmark
    if settings.cudnn_benchmark != benchmark:
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark
        changed.append(f"torch.backends.cudnn.benchmark = {settings.cudnn_benchmark} (was {benchmark})")
    if settings.precision == "tf32":
        before = _MatmulPrecision.read()
        torch.set_float32_matmul_precision(TF32)
        if _MatmulPrecision.read() != before:
            changed.append(f"torch.set_float32_matmul_precision({TF32!r}) (was {before.legacy!r})")
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatmulPrecision:
    """Everything ``torch.set_float32_matmul_precision`` writes."""

    legacy: str
    entries: tuple[str, ...]

    @classmethod
    def read(cls) -> _MatmulPrecision:
        entries = tuple(_own_entry(backend) for backend in _BACKENDS)
        # The older interface can be read only while the table does not contradict it; "ieee" never does.
        _write_entries(("ieee",) * len(_BACKENDS))
        legacy = torch.get_float32_matmul_precision()
        _write_entries(entries)
        return cls(legacy=legacy, entries=entries)

    def write(self) -> None:
        torch.set_float32_matmul_precision(self.legacy)
        _write_entries(self.entries)


def _own_entry(backend: str) -> str:
    """The matmul entry itself ("none" where unset); reading it plainly gives what it inherits."""
    get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    whole = get("generic", "all")
    put("generic", "all", "none")
    part = get(backend, "all")
    put(backend, "all", "none")
    own = get(backend, "matmul")
    put(backend, "all", part)
    put("generic", "all", whole)
    return own


def _write_entries(entries: tuple[str, ...]) -> None:
    for backend, entry in zip(_BACKENDS, entries, strict=True):
        torch._C._set_fp32_precision_setter(backend, "matmul", entry)
