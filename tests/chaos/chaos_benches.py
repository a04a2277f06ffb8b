"""A bench and a task that misbehave in every way a user's code can; which way is told by the probe's seed."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.measurement import Chunk, Measured, Outcome, OutOfMemory, Probe
from autotune.settings import Settings

HARMLESS = (
    "healthy",
    "sleeps",
    "prints a flood",
    "prints what looks like an answer",
    "leaves a file",
    "leaves descriptors",
    "leaves a process",
    "leaves a segment",
    "leaves a thread",
    "kills its worker",
    "allocates and gives back",
    "changes directory and signals",
)
FATAL = (
    "exits",
    "raises SystemExit",
    "is killed",
    "segfaults",
    "aborts",
    "hangs",
    "stops itself",
    "hangs deaf to signals",
    "allocates wildly",
    "raises MemoryError",
    "raises what has no text",
    "poisons its process",
    "closes its descriptors",
    "writes into every descriptor",
)

FATES = {
    **dict.fromkeys(HARMLESS, "measured"),
    **dict.fromkeys(FATAL, "crashed"),
    "hangs": "timed out",
    "stops itself": "timed out",
    "hangs deaf to signals": "timed out",
    "allocates wildly": "out of memory",
    "raises MemoryError": "out of memory",
    "poisons its process": "out of memory",
    "raises what has no text": "rejected",
}
"""What each way must be answered with."""

_FATAL_SHARE = 0.03


def fault(seed: int) -> str:
    """The way in which trial ``seed`` misbehaves: every fatal one once, then at random."""
    if seed < len(FATAL):
        return FATAL[seed]
    draw = random.Random(seed)
    return draw.choice(FATAL if draw.random() < _FATAL_SHARE else HARMLESS)


def rate(settings: Settings) -> float:
    """The true speed of a setting."""
    return 100.0 + (settings.batch_size or 1) + 10.0 * settings.num_workers


class Chaos:
    """Misbehaves, then measures correctly, if it still can."""

    def __init__(self, task: Any, hardware: Any, limits: Any, *, fresh: Any = None) -> None:
        self.poisoned = False
        self.held: list[Any] = []

    def describe(self) -> None:
        """Nothing to say."""

    def run(self, probe: Probe) -> Outcome:
        answer = self.misbehave(fault(probe.seed), probe)
        if answer is not None:
            return answer
        chunks = (Chunk(rows=1000, seconds=1000 / rate(probe.settings)),) * 2
        return Measured(kind=probe.kind, settings=probe.settings, chunks=chunks, first_loss=1.0, loss_error=0.0)

    def misbehave(self, kind: str, probe: Probe) -> Outcome | None:
        if kind == "poisons its process":
            self.poisoned = True
            return OutOfMemory(kind=probe.kind, settings=probe.settings, where="allocator", message="full")
        _WAYS[kind](self.held)
        return None

    def close(self) -> None:
        return


class ChaosOfSettings(Chaos):
    """Each setting misbehaves in a way of its own, the first one (the baseline) never."""

    def run(self, probe: Probe) -> Outcome:
        source = random.Random(repr((probe.kind, probe.settings)))
        ways = ("healthy", "healthy", "healthy", "sleeps", "is killed", "exits", "raises what has no text")
        way = "healthy" if probe.settings == Settings(batch_size=32, num_threads=2) else source.choice(ways)
        _WAYS[way](self.held)
        chunks = (Chunk(rows=1000, seconds=1000 / rate(probe.settings)),) * 2
        return Measured(kind=probe.kind, settings=probe.settings, chunks=chunks, first_loss=1.0, loss_error=0.0)


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def _flood(_: list[Any]) -> None:
    for _line in range(2000):
        os.write(1, b"x" * 999 + b"\n")


def _look_alike(_: list[Any]) -> None:
    print('\x00\x00\x00\x02{}{"outcome": 1}')
    os.write(2, b"\xff\xff\xff\xff{}")


def _leave_file(_: list[Any]) -> None:
    handle, _name = tempfile.mkstemp()
    os.write(handle, b"x" * 2**20)
    os.close(handle)
    (Path(tempfile.mkdtemp()) / "deep").mkdir()


def _leave_descriptors(held: list[Any]) -> None:
    held += [os.pipe(), os.open(os.devnull, os.O_RDONLY)]


def _leave_process(_: list[Any]) -> None:
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
        os._exit(0)


def _leave_segment(_: list[Any]) -> None:
    Path(f"/dev/shm/torch_{os.getpid()}_chaos_0").write_bytes(b"x" * 4096)  # as torch names them


def _leave_thread(_: list[Any]) -> None:
    threading.Thread(target=time.sleep, args=(3600,)).start()


def _kill_worker(_: list[Any]) -> None:
    worker = os.fork()
    if worker == 0:
        time.sleep(3600)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)


def _give_back(_: list[Any]) -> None:
    bytearray(2**25)


def _change(_: list[Any]) -> None:
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _exit(_: list[Any]) -> None:
    os._exit(17)


def _system_exit(_: list[Any]) -> None:
    raise SystemExit(3)


def _hang(_: list[Any]) -> None:
    time.sleep(3600)


def _hang_deaf(_: list[Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    while True:
        time.sleep(3600)


def _allocate(held: list[Any]) -> None:
    while True:
        held.append(b"x" * 2**25)
        time.sleep(0.005)


def _memory_error(_: list[Any]) -> None:
    raise MemoryError("made on purpose")


def _wordless(_: list[Any]) -> None:
    raise Wordless(lambda: None)


def _close_all(_: list[Any]) -> None:
    os.closerange(3, 256)


def _write_all(_: list[Any]) -> None:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\x00\x00\xff\xff nonsense")
        except OSError:
            continue
    os._exit(4)


_WAYS: dict[str, Callable[[list[Any]], object]] = {
    "healthy": lambda held: None,
    "sleeps": lambda held: time.sleep(0.02),
    "prints a flood": _flood,
    "prints what looks like an answer": _look_alike,
    "leaves a file": _leave_file,
    "leaves descriptors": _leave_descriptors,
    "leaves a process": _leave_process,
    "leaves a segment": _leave_segment,
    "leaves a thread": _leave_thread,
    "kills its worker": _kill_worker,
    "allocates and gives back": _give_back,
    "changes directory and signals": _change,
    "exits": _exit,
    "raises SystemExit": _system_exit,
    "is killed": lambda held: os.kill(os.getpid(), signal.SIGKILL),
    "segfaults": lambda held: ctypes.string_at(0),
    "aborts": lambda held: os.abort(),
    "hangs": _hang,
    "stops itself": lambda held: os.kill(os.getpid(), signal.SIGSTOP),
    "hangs deaf to signals": _hang_deaf,
    "allocates wildly": _allocate,
    "raises MemoryError": _memory_error,
    "raises what has no text": _wordless,
    "closes its descriptors": _close_all,
    "writes into every descriptor": _write_all,
}
