from __future__ import annotations

import errno
import signal
from typing import Any

import pytest
import torch
from torch._utils import ExceptionWrapper

from autotune.oom import exit_is_memory, memory_failure, size_limit

MEMORY = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), "accelerator"),
    (torch.OutOfMemoryError(), "accelerator"),
    (torch.OutOfMemoryError(12, None), "accelerator"),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), "accelerator"),
    (torch.AcceleratorError("CUDA error: out of memory"), "accelerator"),
    (RuntimeError("CUDA ran out of memory outside PyTorch's allocator."), "accelerator"),
    (RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"), "accelerator"),
    (RuntimeError("HIP error: hipErrorOutOfMemory"), "accelerator"),
    (RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB"), "accelerator"),
    (
        RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        "accelerator",
    ),
    (RuntimeError("MPS backend out of memory (MPS allocated: 9.05 GB, max allowed: 9.07 GB)"), "accelerator"),
    (
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        "accelerator",
    ),
    (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), "accelerator"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "accelerator"),
    (RuntimeError("CUDNN_ALLOC_FAILED"), "accelerator"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), "accelerator"),
    (RuntimeError("CUDNN_INTERNAL"), "accelerator"),
    (RuntimeError("FIND was unable to find an engine to execute this computation"), "accelerator"),
    (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), "accelerator"),
    (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 800000000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        "allocator",
    ),
    (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), "allocator"),
    (MemoryError(), "allocator"),
    (MemoryError("std::bad_alloc"), "allocator"),
    (RuntimeError("std::bad_alloc"), "allocator"),
    (RuntimeError("could not create a primitive"), "allocator"),
    (RuntimeError("could not execute a primitive"), "allocator"),
    (RuntimeError("could not create a memory object"), "allocator"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "allocator"),
    (
        RuntimeError(
            "DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers "
            "are out of shared memory. Please try to raise your shared memory limit."
        ),
        "shared memory",
    ),
    (RuntimeError("unable to write to file </torch_12_34>: No space left on device (28)"), "shared memory"),
    (RuntimeError("unable to allocate shared memory(shm) for file </torch_1_2>: Success (0)"), "shared memory"),
    (OSError(errno.ENOSPC, "No space left on device", "/dev/shm/torch_1"), "shared memory"),
    (RuntimeError("DataLoader worker (pid 4242) is killed by signal: Killed. "), "killed"),
]


def name_of(value: Any) -> str:
    return f"{type(value).__name__}: {value}"[:60] if isinstance(value, BaseException) else str(value)


@pytest.mark.parametrize(("error", "kind"), MEMORY, ids=name_of)
def test_memory_failures_are_recognised(error: Exception, kind: str) -> None:
    """Every known way to say "out of memory" is recognised, with who noticed."""
    assert memory_failure(error) == kind
    assert not size_limit(error)


@pytest.mark.parametrize(
    "message",
    [
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be true, but got false.",
        "upsample_nearest_nhwc only supports output tensors with less than INT_MAX elements, but got [9]",
        "input tensor must fit into 32-bit index math",
        "CUDA error: invalid configuration argument",
    ],
)
def test_limits_of_a_backend_are_a_ceiling_and_not_memory(message: str) -> None:
    """A backend that cannot take the size is told apart from memory, and recognised as the size's fault."""
    assert memory_failure(RuntimeError(message)) is None
    assert size_limit(RuntimeError(message))


NOT_MEMORY = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x32 and 16x4)"),
    RuntimeError("The size of tensor a (1680) must match the size of tensor b (12) at non-singleton dimension 0"),
    RuntimeError("stack expects each tensor to be equal size, but got [3, 4] at entry 0 and [3, 5] at entry 1"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("could not create a primitive descriptor for the matmul primitive. Run workload with ONEDNN_VERBOSE"),
    RuntimeError("could not create a memory descriptor from blob"),
    RuntimeError("DataLoader worker (pid 4242) is killed by signal: Segmentation fault. "),
    RuntimeError("DataLoader worker (pid(s) 4242) exited unexpectedly"),
    RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376."),
    RuntimeError("unable to write to file <model.pt>: No space left on device (28)"),
    RuntimeError("unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)"),
    IndexError("index 12 is out of memory bank"),
    IndexError("index out of range in self"),
    ValueError("memory format channels_last needs 4 dimensions"),
    FileNotFoundError(errno.ENOENT, "No such file or directory", "out of memory.jpg"),
    OSError(errno.ENOSPC, "No space left on device", "/home/user/model.pt"),
    TypeError("expected Tensor"),
    RuntimeError(),
    KeyError("target"),
    KeyboardInterrupt("out of memory"),
    SystemExit("out of memory"),
]


@pytest.mark.parametrize("error", NOT_MEMORY, ids=name_of)
def test_other_failures_are_not_memory(error: BaseException) -> None:
    """Shape errors, illegal accesses, full disks and the like are no memory failures and no size limits."""
    assert memory_failure(error) is None
    assert not size_limit(error)


def test_a_real_failure_of_the_allocator_is_recognised() -> None:
    """Torch's own message for an impossible allocation on the CPU."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.uint8)
    assert memory_failure(caught.value) == "allocator"


def test_a_subclass_counts_by_its_type() -> None:
    """Subclasses such as numpy's array memory error are recognised whatever they say."""

    class ArrayMemoryError(MemoryError):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert memory_failure(ArrayMemoryError()) == "allocator"


def test_an_error_that_cannot_be_printed_is_not_memory() -> None:
    """A ``__str__`` that fails does not fail the judgement."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert memory_failure(Silent()) is None


def raised(error: BaseException, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = False
    return error


def test_the_cause_of_an_error_decides() -> None:
    """An error raised from a memory failure, or while one was handled, is one."""
    inner = torch.OutOfMemoryError()
    assert memory_failure(raised(ValueError("step failed"), cause=inner)) == "accelerator"
    assert memory_failure(raised(ValueError("handler failed"), context=inner)) == "accelerator"
    deep = raised(ValueError("outer"), cause=raised(ValueError("middle"), cause=MemoryError()))
    assert memory_failure(deep) == "allocator"


def test_a_suppressed_context_does_not_count() -> None:
    """``raise … from None`` says that the earlier error does not matter."""
    error = raised(ValueError("bad shape"), context=MemoryError())
    error.__suppress_context__ = True
    assert memory_failure(error) is None


def test_a_ring_of_causes_ends() -> None:
    """Exceptions that name each other as cause do not hang the judgement."""
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert memory_failure(one) is None


def test_a_group_of_errors_is_searched() -> None:
    """Any memory failure in an exception group makes the group one."""

    class Group(Exception):
        exceptions = (ValueError("a"), MemoryError())

    assert memory_failure(Group("two failed")) == "allocator"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "allocator"),
        (torch.OutOfMemoryError("CUDA out of memory."), "accelerator"),
        (KeyError("target"), None),
        (ValueError("bad row"), None),
    ],
    ids=name_of,
)
def test_errors_wrapped_by_a_loader_worker_are_judged_by_what_was_raised(error: Exception, kind: str | None) -> None:
    """The text of a worker's traceback is understood; source lines quoted in it prove nothing."""
    try:
        raise error  # no out of memory here, whatever this line says
    except Exception:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(type(error), match="Caught") as caught:
        wrapped.reraise()
    assert "whatever this line says" in str(caught.value)
    assert memory_failure(caught.value) == kind


def test_a_wrapped_type_that_cannot_be_rebuilt_is_understood() -> None:
    """Where the wrapper turned the type into a plain error, the named type in its text decides."""
    text = (
        "Caught _ArrayMemoryError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "worker.py", line 3, in fetch\n    data = load()  # shapes cannot be multiplied\n'
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB for an array\n"
    )
    assert memory_failure(RuntimeError(text)) == "allocator"
    assert memory_failure(KeyError(text.replace("\n", "\\n"))) == "allocator"


KILLED, BUS, ABORTED = -signal.SIGKILL, -getattr(signal, "SIGBUS", 7), -signal.SIGABRT


@pytest.mark.parametrize(
    ("exit_code", "evidence", "kind"),
    [
        (KILLED, {}, None),
        (KILLED, {"oom_kills": 1}, "killed"),
        (KILLED, {"tree_bytes": 95, "limit_bytes": 100}, "killed"),
        (KILLED, {"tree_bytes": 50, "limit_bytes": 100}, None),
        (KILLED, {"tree_bytes": 95}, None),
        (KILLED, {"output_tail": "CUDA out of memory"}, None),
        (137, {"oom_kills": 2}, "killed"),
        (BUS, {}, None),
        (BUS, {"shm_free_bytes": 0}, "shared memory"),
        (BUS, {"shm_free_bytes": 2**34}, None),
        (BUS, {"output_tail": "ERROR: Unexpected bus error encountered in worker."}, "shared memory"),
        (ABORTED, {}, None),
        (ABORTED, {"output_tail": "terminate called after throwing an instance of 'std::bad_alloc'"}, "allocator"),
        (ABORTED, {"output_tail": "what(): CUDA error: out of memory"}, "accelerator"),
        (ABORTED, {"output_tail": "what(): CUDA error: an illegal memory access was encountered"}, None),
        (ABORTED, {"output_tail": "what(): CUDNN_STATUS_NOT_SUPPORTED"}, None),
        (1, {"output_tail": "libgomp: Out of memory allocating 800 bytes"}, "allocator"),
        (1, {"output_tail": "ran out of memory once, went on"}, None),
        (0, {"oom_kills": 1}, None),
        (-signal.SIGSEGV, {"oom_kills": 1, "output_tail": "out of memory"}, None),
        (None, {"oom_kills": 1}, None),
    ],
)
def test_an_exit_is_memory_only_with_evidence(
    exit_code: int | None, evidence: dict[str, Any], kind: str | None
) -> None:
    """A signal alone proves nothing; the kernel's count, a tree near its limit or the last words do."""
    assert exit_is_memory(exit_code, **evidence) == kind
