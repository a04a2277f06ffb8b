"""Which exceptions, messages and exit statuses mean that memory ran out: one table, tried from the top.

Types are compared by qualified name, so that neither torch nor numpy is imported to look at an error.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["MemoryKind", "exit_is_memory", "memory_failure", "size_limit"]

MemoryKind = Literal["allocator", "accelerator", "shared memory", "killed"]
"""Who noticed: the host's allocator, the accelerator's, a full shared-memory file system, or the kernel."""


@dataclass(frozen=True, slots=True)
class _Signature:
    pattern: re.Pattern[str]
    kind: MemoryKind | Literal["size limit"]


def _signature(kind: MemoryKind | Literal["size limit"], *patterns: str) -> _Signature:
    return _Signature(re.compile("|".join(patterns), re.IGNORECASE), kind)


# The order matters: the first that matches decides, so the specific ones stand above "out of memory".
_SIGNATURES = (
    # Backends that cannot take the size, whatever memory there is. Smaller batches work, but this is not memory:
    # cuDNN says NOT_SUPPORTED for plain lack of a kernel as well.
    _signature(
        "size limit",
        r"CUDNN_STATUS_NOT_SUPPORTED",
        r"canUse32BitIndexMath",
        r"(less|more) than INT_MAX elements",
        r"must fit into 32-bit index math",
        r"size > INT_MAX is not supported",
        # A launch grid beyond 65,535 blocks in one direction.
        r"CUDA error: invalid configuration argument",
    ),
    # /dev/shm is full. A write beyond it kills the worker by SIGBUS.
    _signature(
        "shared memory",
        r"killed by signal: Bus error",
        r"Unexpected bus error encountered in worker",
        r"unable to allocate shared memory",
        r"unable to (open|resize|write to)[^\n]*</?torch_[^\n]*No space left on device",
        r"Couldn't allocate shared memory segment",
        r"No space left on device[^\n]*/dev/shm",
    ),
    # The kernel ended a loader's worker; nothing but its out-of-memory killer commonly sends this signal.
    _signature("killed", r"worker[^\n]*killed by signal: Killed"),
    _signature(
        "allocator",
        r"DefaultCPUAllocator: can't allocate memory",
        r"C10 Out of Memory",
        r"\bstd::bad_alloc\b",
        r"\b(_Array)?MemoryError\b",
        r"\b(cannot allocate|not enough) memory\b",
        r"\bcudaHostAlloc\b[^\n]*failed",
        # oneDNN, seen with an address-space limit. "primitive descriptor" is a missing kernel and not memory.
        r"could not (create|execute) a primitive(?! descriptor)",
        r"could not create a memory(?! descriptor)",
        r"libgomp: Out of memory",
    ),
    _signature(
        "accelerator",
        r"\bOutOfMemoryError\b",
        r"\bout of memory\b(?!\s+(bank|bound|range|slot|cell)s?\b)",
        r"OUT_OF_(DEVICE|HOST|RESOURCES?|MEMORY)\w*",
        r"\b(cuda|hip)Error(OutOfMemory|MemoryAllocation)\b",
        # cuBLAS, cuDNN, cuSOLVER, cuSPARSE, cuFFT, hipBLAS … share this ending.
        r"\b[A-Z]+(_STATUS)?_ALLOC_FAILED\b",
        r"miopenStatusAllocFailed|rocblas_status_memory_error",
        # No memory left for the library's own handle or workspace: what these mean in practice.
        r"CUBLAS_STATUS_NOT_INITIALIZED",
        r"CUDNN_(STATUS_)?(NOT_INITIALIZED|INTERNAL)\w*",
        r"unable to find an engine to execute",
    ),
)

_TYPES: dict[str, MemoryKind] = {
    "torch.OutOfMemoryError": "accelerator",
    "torch.cuda.OutOfMemoryError": "accelerator",
    "builtins.MemoryError": "allocator",
}


def memory_failure(error: BaseException) -> MemoryKind | None:
    """Whether an exception, or one it was raised from, says that memory ran out.

    Args:
        error: Any exception; messages that wrap a worker's traceback are understood.

    Returns:
        Who noticed, or None where it is not about memory.
    """
    kinds = (_kind(link) for link in _chain(error))
    return next((kind for kind in kinds if kind is not None and kind != "size limit"), None)


def size_limit(error: BaseException) -> bool:
    """Whether a backend refused the *size* of its operands: not memory, yet a smaller batch may run.

    Args:
        error: Any exception.

    Returns:
        True for cuDNN's NOT_SUPPORTED and for index and launch limits, unless the same error is a memory failure.
    """
    return memory_failure(error) is None and any(_kind(link) == "size limit" for link in _chain(error))


def exit_is_memory(
    exit_code: int | None,
    *,
    output_tail: str = "",
    tree_bytes: int | None = None,
    limit_bytes: int | None = None,
    oom_kills: int = 0,
    shm_free_bytes: int | None = None,
) -> MemoryKind | None:
    """Whether a child that ended by itself died for want of memory, given what else was seen.

    A signal alone proves nothing: anybody may send SIGKILL, so it counts only with evidence.

    Args:
        exit_code: As ``subprocess`` gives it, negative for a signal (128 + n, a shell's way, is understood);
            None where the child still runs.
        output_tail: The last lines the child printed.
        tree_bytes: Memory of its process tree when last looked at.
        limit_bytes: What it was allowed.
        oom_kills: By how much the kernel's count of out-of-memory kills rose meanwhile.
        shm_free_bytes: Free shared memory when last looked at.

    Returns:
        Who noticed, or None.
    """
    number = _signal_number(exit_code)
    if number == _SIGKILL:
        near_limit = tree_bytes is not None and limit_bytes is not None and tree_bytes >= _NEAR * limit_bytes
        return "killed" if oom_kills > 0 or near_limit else None
    said = _kind_of_text(output_tail)
    if number == _SIGBUS:
        shm_full = shm_free_bytes is not None and shm_free_bytes < _SHM_FULL_BYTES
        return "shared memory" if shm_full or said == "shared memory" else None
    # bad_alloc and failed enforcements in C++ abort; OpenMP's runtime exits with 1 after one line.
    if number == _SIGABRT or (exit_code == 1 and "libgomp: Out of memory" in output_tail):
        return None if said == "size limit" else said
    return None


_SIGKILL = int(getattr(signal, "SIGKILL", 9))
_SIGBUS = int(getattr(signal, "SIGBUS", 7))
_SIGABRT = int(signal.SIGABRT)
# The tree is looked at a few times a second and may grow by a batch in between: 80 % seen is full.
_NEAR = 0.8
# Less than one large batch of free shared memory.
_SHM_FULL_BYTES = 16 * 2**20


def _signal_number(exit_code: int | None) -> int | None:
    if exit_code is None:
        return None
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if exit_code > 128 else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        inner = [link.__cause__, None if link.__suppress_context__ else link.__context__]
        inner += getattr(link, "exceptions", ())  # of an ExceptionGroup
        waiting += [other for other in inner if isinstance(other, BaseException)]


def _kind(error: BaseException) -> MemoryKind | Literal["size limit"] | None:
    if not isinstance(error, Exception):
        return None  # Ctrl-C and exits
    for cls in type(error).__mro__:
        kind = _TYPES.get(f"{cls.__module__}.{cls.__qualname__}")
        if kind is not None:
            return kind
    if isinstance(error, OSError):
        return _kind_of_os_error(error)
    try:
        text = str(error)
    except Exception:
        # A user's __str__ may fail; the error then says nothing about memory, and its traceback still reaches them.
        return None
    return _kind_of_text(text)


def _kind_of_os_error(error: OSError) -> MemoryKind | None:
    # By number only: a file's name in the message proves nothing.
    if error.errno == errno.ENOMEM:
        return "allocator"
    if error.errno == errno.ENOSPC and str(error.filename or "").startswith("/dev/shm"):
        return "shared memory"
    return None


def _kind_of_text(text: str) -> MemoryKind | Literal["size limit"] | None:
    text = _without_frames(text)
    return next((signature.kind for signature in _SIGNATURES if signature.pattern.search(text)), None)


def _without_frames(text: str) -> str:
    # Source lines of a wrapped traceback may hold any words; they are indented, messages are not.
    before, marker, after = text.partition("Traceback (most recent call last):")
    if not marker:
        return text
    return "\n".join([before, *(line for line in after.splitlines() if not line.startswith("  "))])
