"""What the tests of a whole call look at: tasks, every bit of the caller's state, and what a call leaves behind."""

from __future__ import annotations

import ctypes
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import psutil
import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from autotune import TunedConfig

FEATURES = 8

# torch makes this folder, by default among the temporary files, as soon as anybody constructs an optimizer.
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class Rows(Dataset):
    """Rows whose label is the sign of their first feature; what workers do on top of that is up to ``in_worker``."""

    def __init__(self, count: int = 4096, in_worker: Callable[[], object] | None = None) -> None:
        self.inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))
        self.in_worker = in_worker

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.in_worker is not None and get_worker_info() is not None:
            self.in_worker()
        row = self.inputs[index]
        return row, (row[0] > 0).long()


class UnpicklableError(Exception):
    """Holds a lock, which no pickle can."""

    def __init__(self) -> None:
        super().__init__("too many rows")
        self.lock = threading.Lock()


def segfault() -> None:
    ctypes.string_at(0)


def exit_with_3() -> None:
    os._exit(3)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(3600)


def fail() -> None:
    raise UnpicklableError


class Mortal(nn.Module):
    """A linear layer that comes to an end above so many rows: most rows -> what happens."""

    def __init__(self, ends: Mapping[int, Callable[[], object]]) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 2)
        self.ends = dict(ends)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        passed = [most for most in self.ends if len(rows) > most]
        if passed:
            self.ends[max(passed)]()
        return self.layer(rows)


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def bits(value: Any) -> Any:
    """``value`` in a form whose ``==`` compares bit for bit, NaN and strides included."""
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad, data
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return value


def state_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, generators: list[torch.Generator]
) -> dict[str, Any]:
    """Everything a call may not change, by name."""
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    return {
        "tensors": bits(tensors),
        "gradients": [None if p.grad is None else bits(p.grad) for p in model.parameters()],
        "modes": [(name, module.training) for name, module in model.named_modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "optimizer": bits(optimizer.state_dict()),
        "scheduler": bits({name: v for name, v in scheduler.state_dict().items() if not callable(v)}),
        "python random": random.getstate(),
        "numpy random": bits(np.random.get_state()),
        "torch random": bits(torch.get_rng_state()),
        "generators": [bits(generator.get_state()) for generator in generators],
        **{f"switch {name}": read() for name, read in _SWITCHES.items()},
    }


def places_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
    """Identity and memory of every tensor a training loop holds."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    moments = [v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, torch.Tensor)]
    return [(id(tensor), tensor.data_ptr()) for tensor in [*model.parameters(), *model.buffers(), *gradients, *moments]]


_SWITCHES: dict[str, Callable[[], Any]] = {
    "threads": torch.get_num_threads,
    "interop threads": torch.get_num_interop_threads,
    "default dtype": torch.get_default_dtype,
    "grad mode": torch.is_grad_enabled,
    "matmul precision": torch.get_float32_matmul_precision,
    "cuda matmul": lambda: torch.backends.cuda.matmul.fp32_precision,
    "cudnn conv": lambda: torch.backends.cudnn.conv.fp32_precision,
    "cudnn enabled": lambda: torch.backends.cudnn.enabled,
    "cudnn benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn deterministic": lambda: torch.backends.cudnn.deterministic,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "deterministic warns": torch.is_deterministic_algorithms_warn_only_enabled,
    "start method": lambda: torch.multiprocessing.get_start_method(allow_none=True),
    "accelerator": torch.cuda.is_initialized,
    "interrupt": lambda: signal.getsignal(signal.SIGINT),
    "folder": os.getcwd,
    "path": lambda: list(sys.path),
    "environment": lambda: dict(os.environ),
}


@contextmanager
def unusual_switches() -> Iterator[None]:
    """Switches set to what is not their default, so that resetting to defaults would be noticed."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    benchmark, deterministic = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    torch.set_num_threads(threads + 1)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic


@contextmanager
def nothing_left_behind() -> Iterator[Path]:
    """An empty working folder; afterwards no file, process, descriptor, thread or shared segment may be new."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as root:
        temporary, working = Path(root, "tmp"), Path(root, "cwd")
        temporary.mkdir()
        working.mkdir()
        before_folder, before_tempdir = os.getcwd(), tempfile.tempdir
        descriptors, children, segments = _descriptors(), _children(), _segments()
        threads = set(threading.enumerate())
        cache = os.environ.get(_CACHE)
        os.chdir(working)
        tempfile.tempdir = str(temporary)
        os.environ[_CACHE] = str(Path(root, "cache"))
        try:
            yield working
        finally:
            os.chdir(before_folder)
            tempfile.tempdir = before_tempdir
            os.environ.pop(_CACHE)
            os.environ.update({} if cache is None else {_CACHE: cache})
        left = [str(path) for folder in (working, temporary) for path in folder.rglob("*")]
        assert left == []
        assert _descriptors() == descriptors
        assert _children() == children
        assert _mentioning(root) == []
        assert {thread for thread in threading.enumerate() if thread.is_alive()} <= threads
        assert _lasting(segments) == set()


def _descriptors() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        try:
            found.add(f"{fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:  # the listing's own
            continue
    return {entry for entry in found if "/proc/" not in entry}


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def _lasting(before: set[str]) -> set[str]:
    """New segments that stay and whose maker is gone (other processes have segments of their own meanwhile)."""
    deadline = time.monotonic() + 5
    while made := {name for name in _segments() - before if not _maker_lives(name)}:
        if time.monotonic() > deadline:
            return made
        time.sleep(0.05)
    return set()


def _maker_lives(segment: str) -> bool:
    found = re.match(r"torch_(\d+)_", segment)
    return found is not None and int(found[1]) != os.getpid() and psutil.pid_exists(int(found[1]))


def _mentioning(folder: str) -> list[int]:
    """Other living processes whose temporary files would go below ``folder``."""
    marker, found = f"={folder}/".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")) if sys.platform == "linux" else ():
        try:
            if int(name) != os.getpid() and marker in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
        except OSError:  # gone meanwhile, or another user's
            continue
    return found


def trials_of(storage: Any) -> list[Any]:
    """All trials of the only study in ``storage``."""
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).get_trials()


def check_proven(tuned: TunedConfig, trials: list[Any]) -> None:
    """What was returned is the baseline, or it ran at least five laps of a race that it won by more than 5 %."""
    evidence = tuned.evidence
    if evidence.kept_baseline:
        assert tuned.settings == tuned.baseline
        return
    laps = [t for t in trials if t.user_attrs["kind"] == "lap" and t.user_attrs["fate"] == "measured"]
    raced = [t for t in laps if all(t.params.get(knob) == value for knob, value in _simple_knobs(tuned).items())]
    assert evidence.speedup is not None
    assert len(raced) >= len(evidence.speedup.laps) >= 5
    assert evidence.speedup.low > 1.05


def _simple_knobs(tuned: TunedConfig) -> dict[str, Any]:
    names = ("batch_size", "gradient_accumulation_steps", "num_workers", "precision", "channels_last", "pin_memory")
    return {name: value for name in names if (value := getattr(tuned.settings, name)) is not None}
