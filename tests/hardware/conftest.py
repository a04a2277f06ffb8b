from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

GIB = 2**30


class NvmlError(Exception):
    """As pynvml's: a code and a text."""

    def __init__(self, value: int = 999) -> None:
        super().__init__({3: "Not Supported", 9: "Driver Not Loaded"}.get(value, f"Unknown Error {value}"))
        self.value = value


def card(**changes: Any) -> SimpleNamespace:
    """One fake card."""
    facts = {
        "name": "NVIDIA A10",
        "total": 24 * GIB,
        "free": 23 * GIB,
        "capability": (8, 6),
        "uuid": "GPU-aaaa1111-0000",
        "pids": (),
        "mode": 0,
        "mig": None,
        "slices": (),
        "parent": None,
        "unsupported": (),
    }
    return SimpleNamespace(**{**facts, **changes})


class FakeNvml:
    """pynvml's functions over a list of fake cards."""

    NVMLError = NvmlError
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3

    def __init__(self, *cards: SimpleNamespace, init_code: int | None = None, driver: str | bytes = "550.54.15"):
        self.cards = cards
        self.init_code = init_code
        self.driver = driver
        self.open = 0

    def nvmlInit(self) -> None:
        if self.init_code is not None:
            raise NvmlError(self.init_code)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimpleNamespace:
        everything = [*self.cards, *(part for whole in self.cards for part in whole.slices if part is not None)]
        return next((found for found in everything if found.uuid == uuid), None) or _refuse(6)

    def nvmlDeviceGetName(self, handle: SimpleNamespace) -> str:
        return _answer(handle, "name")

    def nvmlDeviceGetUUID(self, handle: SimpleNamespace) -> str:
        return _answer(handle, "uuid")

    def nvmlDeviceGetMemoryInfo(self, handle: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(total=_answer(handle, "total"), free=handle.free)

    def nvmlDeviceGetCudaComputeCapability(self, handle: SimpleNamespace) -> tuple[int, int]:
        return _answer(handle, "capability")

    def nvmlDeviceGetComputeMode(self, handle: SimpleNamespace) -> int:
        return _answer(handle, "mode")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: SimpleNamespace) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in _answer(handle, "pids")]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: SimpleNamespace) -> list[SimpleNamespace]:
        return []

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return self.driver

    def nvmlDeviceIsMigDeviceHandle(self, handle: SimpleNamespace) -> bool:
        return handle.parent is not None

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: SimpleNamespace) -> SimpleNamespace:
        return next(whole for whole in self.cards if whole.uuid == handle.parent)

    def nvmlDeviceGetMigMode(self, handle: SimpleNamespace) -> tuple[int, int]:
        return (1, 1) if _answer(handle, "mig") else _refuse(3)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: SimpleNamespace) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: SimpleNamespace, index: int) -> SimpleNamespace:
        parts = handle.slices
        return parts[index] if index < len(parts) and parts[index] is not None else _refuse(6)


def _answer(handle: SimpleNamespace, name: str) -> Any:
    return _refuse(3) if name in handle.unsupported else getattr(handle, name)


def _refuse(code: int) -> Any:
    raise NvmlError(code)


class FakeTorch:
    """torch's facts about devices; everything that would start a runtime fails unless ``available``."""

    __version__ = "2.14.1+cu130"
    _C = SimpleNamespace(_has_cudnn=True, _cudnn=SimpleNamespace(getVersionInt=lambda: 92400))

    def __init__(
        self,
        *,
        built: str | None = "cuda",
        available: bool | None = None,
        initialised: bool = False,
        devices: tuple[SimpleNamespace, ...] = (),
        hip: str | None = None,
        current: int = 0,
        mps_available: bool = False,
    ) -> None:
        self.version = SimpleNamespace(cuda=None if hip else "13.0", hip=hip)
        self.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps_available))
        self.mps = SimpleNamespace(recommended_max_memory=lambda: 16 * GIB)
        self._devices = devices
        self._available = available
        module = SimpleNamespace(
            is_initialized=lambda: initialised,
            get_device_properties=lambda index: self._asked(devices[index]),
            mem_get_info=lambda index: self._asked((devices[index].total_memory // 2, devices[index].total_memory)),
            is_bf16_supported=lambda *_, **__: True,
        )
        self.cuda = module
        self.xpu = module
        self.accelerator = SimpleNamespace(
            current_accelerator=lambda: None if built is None else SimpleNamespace(type=built),
            is_available=lambda: self._asked(bool(available)),
            device_count=lambda: self._asked(len(devices)),
            current_device_index=lambda: self._asked(current),
        )

    def get_device_module(self, kind: str) -> SimpleNamespace:
        return getattr(self, kind)

    def _asked(self, answer: Any) -> Any:
        if self._available is None:
            raise AssertionError("the runtime of the accelerator was started")
        return answer


def properties(**changes: Any) -> SimpleNamespace:
    """One fake device as torch describes it."""
    facts = {"name": "NVIDIA A10", "total_memory": 24 * GIB, "major": 8, "minor": 6, "uuid": "aaaa1111-0000"}
    return SimpleNamespace(**{**facts, **changes})


@pytest.fixture
def fakes() -> SimpleNamespace:
    """The fakes: ``Nvml``, ``card``, ``Torch``, ``properties``, ``NvmlError``."""
    return SimpleNamespace(Nvml=FakeNvml, card=card, Torch=FakeTorch, properties=properties, NvmlError=NvmlError)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[Mapping[str, object]], Path]:
    """Write files under a fake root and give that root."""

    def write(files: Mapping[str, object]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return write
