"""Benches that stand in for the real one in the child: each dies in its own way when the probe's seed is FATAL."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from autotune.errors import TaskError
from autotune.measurement import Chunk, Measured, Outcome, OutOfMemory, Probe, Rejected

FATAL = 13


class Healthy:
    """Answers every probe; what it learned about its process comes back as JSON in the warnings."""

    def __init__(self, task: Any, hardware: Any, limits: Any, *, fresh: Any = None) -> None:
        self.task, self.hardware, self.limits, self.fresh = task, hardware, limits, fresh
        self.poisoned = False

    def describe(self) -> None:
        """The child asks for it before each probe."""

    def run(self, probe: Probe) -> Outcome:
        if probe.seed == FATAL:
            return self.die(probe)
        return self.measured(probe, {"pid": os.getpid()})

    def measured(self, probe: Probe, seen: Any) -> Measured:
        chunks = (Chunk(rows=4, seconds=2.0),)
        return Measured(kind=probe.kind, settings=probe.settings, chunks=chunks, warnings=(json.dumps(seen),))

    def die(self, probe: Probe) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        return


class Noting(Healthy):
    """Says how many processes of this run left a note before."""

    def keep_notes_in(self, folder: Path) -> None:
        self.note = folder / "note"

    def run(self, probe: Probe) -> Outcome:
        before = self.note.read_text() if self.note.exists() else ""
        self.note.write_text(before + "x")
        return self.measured(probe, {"before": len(before)})


class Killed(Healthy):
    def die(self, probe: Probe) -> Outcome:
        print("these are my last words")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Segfault(Healthy):
    def die(self, probe: Probe) -> Outcome:
        ctypes.string_at(0)
        raise AssertionError


class Hang(Healthy):
    def die(self, probe: Probe) -> Outcome:
        print("about to hang")
        time.sleep(3600)
        raise AssertionError


class Exit(Healthy):
    def die(self, probe: Probe) -> Outcome:
        os._exit(17)


class BadError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


class Unpicklable(Healthy):
    def die(self, probe: Probe) -> Outcome:
        raise BadError(lambda: None)


class Endless(Dataset[int]):
    """Rows whose loader worker is killed, or sleeps for ever."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if get_worker_info() is not None:
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return index


class WorkerKilled(Healthy):
    def die(self, probe: Probe) -> Outcome:
        try:
            next(iter(DataLoader(Endless("kill"), num_workers=2)))
        except RuntimeError as error:
            return Rejected(kind=probe.kind, settings=probe.settings, phase="loader", reason=str(error))
        raise AssertionError


class WorkerSilent(Healthy):
    def die(self, probe: Probe) -> Outcome:
        next(iter(DataLoader(Endless("sleep"), num_workers=2)))
        raise AssertionError


class Greedy(Healthy):
    def die(self, probe: Probe) -> Outcome:
        held = []
        while True:
            held.append(torch.ones(2**23))
            time.sleep(0.005)


class Flood(Healthy):
    def die(self, probe: Probe) -> Outcome:
        line = "x" * 1000
        ends = time.monotonic() + 1.0
        while time.monotonic() < ends:
            os.write(1, (line + "\n").encode() * 1000)
            print(line, file=sys.stderr)
        print("the last line")
        os._exit(3)


_STUBBORN = """
import os, signal, time
os.setsid()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(3600)
"""


class StubbornGrandchild(Healthy):
    def die(self, probe: Probe) -> Outcome:
        process = subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE)
        process.stdout.readline()  # type: ignore[union-attr]
        os._exit(5)


class SharedMemory(Healthy):
    """Leaves a named segment in shared memory, as a killed worker does."""

    def die(self, probe: Probe) -> Outcome:
        torch.multiprocessing.set_sharing_strategy("file_system")
        reader, writer = multiprocessing.Pipe()
        tensor = torch.ones(1000).share_memory_()
        writer.send_bytes(b"x")
        reader.recv_bytes()
        assert tensor.is_shared()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Poisoned(Healthy):
    def die(self, probe: Probe) -> Outcome:
        self.poisoned = True
        return OutOfMemory(kind=probe.kind, settings=probe.settings, where="allocator", message="full")


class Chatty(Healthy):
    """Prints what looks like the protocol, to every descriptor user code knows of."""

    def run(self, probe: Probe) -> Outcome:
        print('\x00\x00\x00\x02{}{"outcome": 1}')
        os.write(1, b"\x00\x00\x00\x02{}")
        os.write(2, b"\xff\xff\xff\xff")
        return self.measured(probe, {})


class Limited(Healthy):
    """Allocates more than is allowed and survives, where an address space limit turns that into an exception."""

    def run(self, probe: Probe) -> Outcome:
        try:
            held = torch.ones(self.limits.ram_bytes // 4 * 2)
        except RuntimeError as error:
            return self.measured(probe, str(error))
        for _ in range(60):  # long enough to be seen, however busy the machine is
            time.sleep(1)
            held += 1  # idle pages may be taken away by the system
        del held
        return self.measured(probe, "no limit")


class Looking(Healthy):
    """Tells what a process finds around it."""

    def run(self, probe: Probe) -> Outcome:
        import tempfile

        names = ("WANDB_MODE", "MLFLOW_TRACKING_URI", "TORCHINDUCTOR_CACHE_DIR", "MARK", "PYTHONPATH")
        seen = {
            "sys_path": sys.path,
            "argv": sys.argv,
            "cwd": os.getcwd(),
            "tempdir": tempfile.gettempdir(),
            "mode": os.stat(tempfile.gettempdir()).st_mode & 0o777,
            "environ": {name: os.environ.get(name) for name in names},
            "dtype": str(torch.get_default_dtype()),
            "matmul": torch.get_float32_matmul_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "benchmark": torch.backends.cudnn.benchmark,
            "threads": torch.get_num_threads(),
            "start_method": multiprocessing.get_start_method(),
            "sharing": torch.multiprocessing.get_sharing_strategy(),
            "session": os.getsid(0) == os.getpid(),
            "oom_score_adj": Path("/proc/self/oom_score_adj").read_text().strip(),
        }
        return self.measured(probe, seen)


class Trainer(Healthy):
    """Uses the task: two steps, and what came of them."""

    def run(self, probe: Probe) -> Outcome:
        task = self.task
        model = task.model() if not isinstance(task.model, torch.nn.Module) else task.model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = torch.stack([task.dataset[index] for index in range(4)])
        for _ in range(2):
            optimizer.zero_grad()
            loss = task.loss_fn(model(rows))
            loss.backward()
            optimizer.step()
        names = {"model": type(model).__module__, "dataset": type(task.dataset).__module__}
        workers = 0
        if getattr(task, "workers", None) is not None:
            loader = DataLoader(task.dataset, num_workers=1, multiprocessing_context=task.workers)
            workers = sum(len(batch) for batch in loader)
        return self.measured(probe, {**names, "loss": float(loss), "rows": workers})


class Refusing(Healthy):
    """Raises on description."""

    def describe(self) -> Any:
        if self.task.what == "own":
            raise TaskError("loss_fn is missing.", "Pass loss_fn.")
        if self.task.what == "memory":
            raise MemoryError("no room")
        if self.task.what == "exit":
            os._exit(9)
        raise ValueError("shapes do not match")


class BrokenConstructor(Healthy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise KeyError("made on purpose")


class ExitBesideThread(Healthy):
    """``sys.exit`` while a thread of the user's own is still running."""

    def die(self, probe: Probe) -> Outcome:
        threading.Thread(target=time.sleep, args=(3600,)).start()
        sys.exit(6)
