"""Facts of one NVIDIA card through NVML, which reads them without creating a CUDA context.

Torch numbers the cards that ``CUDA_VISIBLE_DEVICES`` leaves; NVML numbers all of them. The mapping is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

__all__ = ["Card", "NvmlUnavailable", "open_nvml", "read_card", "visible_entries"]

Answer = TypeVar("Answer")


class NvmlUnavailable(Exception):
    """NVML cannot be used here; the message says why. Never leaves this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What NVML says of one card; None for each thing it refuses to say."""

    count: int
    """Cards visible to this process."""
    name: str | None
    memory_bytes: int | None
    free_bytes: int | None
    capability: tuple[int, int] | None
    driver: str | None
    uuid: str | None
    process_ids: tuple[int, ...] | None
    exclusive_process: bool | None


@contextmanager
def open_nvml(nvml: Any | None) -> Iterator[Any]:
    """NVML, started and shut down again.

    Args:
        nvml: A module with pynvml's functions; None imports pynvml.

    Raises:
        NvmlUnavailable: The package, the library or the driver is missing, or NVML fails while it is used.
    """
    library = _load() if nvml is None else nvml
    try:
        library.nvmlInit()
    except (library.NVMLError, OSError) as error:
        raise NvmlUnavailable(str(error)) from error
    try:
        yield library
    except library.NVMLError as error:
        raise NvmlUnavailable(str(error)) from error
    finally:
        # A library that fails to shut down has still given its answers.
        with suppress(library.NVMLError):
            library.nvmlShutdown()


def read_card(nvml: Any, *, index: int, env: Mapping[str, str], notes: list[str]) -> Card | None:
    """The facts of the card that torch would call ``cuda:<index>``.

    Args:
        nvml: A started NVML.
        index: Torch's number of the card.
        env: The environment, for ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``.
        notes: Gets a line for each thing that cannot be read.

    Returns:
        The card; None where torch would see no such card.
    """
    handles = _visible_handles(nvml, env)
    if not 0 <= index < len(handles):
        return None
    _doubt_order(nvml, handles, env, notes)
    handle, whole = _mig_slice(nvml, handles[index], notes)
    memory = _ask(nvml, notes, "Free and total memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    mode = _ask(nvml, notes, "The compute mode", lambda: nvml.nvmlDeviceGetComputeMode(whole))
    capability = _ask(nvml, notes, "The compute capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(whole))
    processes = _ask(nvml, notes, "Other processes", lambda: _process_ids(nvml, handle))
    return Card(
        # With MIG on, torch sees one slice, however many there are.
        count=len(handles) if handle is whole else 1,
        name=_text(_ask(nvml, notes, "The name", lambda: nvml.nvmlDeviceGetName(handle))),
        memory_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        driver=_text(_ask(nvml, notes, "The driver version", nvml.nvmlSystemGetDriverVersion)),
        uuid=_text(_ask(nvml, notes, "The UUID", lambda: nvml.nvmlDeviceGetUUID(handle))),
        process_ids=processes,
        exclusive_process=None if mode is None else mode == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
    )


def visible_entries(value: str | None) -> list[int] | list[str] | None:
    """What ``CUDA_VISIBLE_DEVICES`` lists, read as the CUDA driver reads it.

    Args:
        value: The variable; None when unset.

    Returns:
        NVML indices, or UUIDs (possibly shortened), up to the first entry that is neither; None for all cards.

    Source: CUDA C Programming Guide, CUDA environment variables; torch.cuda._parse_visible_devices.
    """
    if value is None:
        return None
    entries = [entry.strip() for entry in value.split(",")]
    if value.startswith(("GPU-", "MIG-")):
        return _unique(list(takewhile(lambda entry: entry.startswith(value[:4]), entries)))
    numbers = takewhile(lambda number: number is not None, map(_leading_number, entries))
    return _unique([number for number in numbers if number is not None])


Entry = TypeVar("Entry", int, str)


def _unique(entries: list[Entry]) -> list[Entry]:
    return entries if len(set(entries)) == len(entries) else []  # CUDA sees nothing when one is named twice


def _leading_number(entry: str) -> int | None:
    digits = entry[: len(entry) - len(entry.lstrip("0123456789"))]
    return int(digits) if digits else None


def _load() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailable("the package nvidia-ml-py is not installed") from error
    return pynvml


def _visible_handles(nvml: Any, env: Mapping[str, str]) -> list[Any]:
    entries = visible_entries(env.get("CUDA_VISIBLE_DEVICES"))
    count = nvml.nvmlDeviceGetCount()
    if entries is None:
        return [nvml.nvmlDeviceGetHandleByIndex(each) for each in range(count)]
    handles = []
    for entry in entries:
        handle = _handle(nvml, entry, count)
        if handle is None:
            break  # the first one that is not there hides the rest
        handles.append(handle)
    return handles


def _handle(nvml: Any, entry: int | str, count: int) -> Any | None:
    if isinstance(entry, int):
        return nvml.nvmlDeviceGetHandleByIndex(entry) if entry < count else None
    if entry.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(entry)
        except nvml.NVMLError:
            return None  # no such slice, as for CUDA
    cards = [nvml.nvmlDeviceGetHandleByIndex(each) for each in range(count)]
    matching = [card for card in cards if (_text(nvml.nvmlDeviceGetUUID(card)) or "").startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _doubt_order(nvml: Any, handles: Sequence[Any], env: Mapping[str, str], notes: list[str]) -> None:
    if len(handles) < 2 or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return
    if len({_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}) > 1:
        notes.append(
            "The visible cards differ and CUDA may number them by speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID, "
            "or the facts here may be another card's."
        )


def _mig_slice(nvml: Any, handle: Any, notes: list[str]) -> tuple[Any, Any]:
    """The handle to ask about memory, and that of the whole card."""
    try:
        if nvml.nvmlDeviceIsMigDeviceHandle(handle):
            return handle, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError, AttributeError):
        return handle, handle  # a card without MIG
    if not current:
        return handle, handle
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            return nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number), handle
        except nvml.NVMLError:
            continue  # slots may be empty
    notes.append("MIG is on but no slice can be read; the memory shown is the whole card's.")
    return handle, handle


def _process_ids(nvml: Any, handle: Any) -> tuple[int, ...]:
    listed = [*nvml.nvmlDeviceGetComputeRunningProcesses(handle), *nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)]
    return tuple(sorted({int(process.pid) for process in listed}))


def _ask(nvml: Any, notes: list[str], what: str, call: Callable[[], Answer]) -> Answer | None:
    try:
        return call()
    except nvml.NVMLError as error:
        notes.append(f"{what} of the card cannot be read: {error}.")
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value  # bytes from old releases
