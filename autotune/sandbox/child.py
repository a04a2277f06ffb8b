"""The child's side: answers the parent's requests one after the other until the parent closes the pipe.

Everything heavy is imported after the caller's import path is in place. Requests are JSON objects with a key "do":
"prepare" (surroundings), "start" (load the task, make the bench), "describe", "run". An answer is what was asked
for, or {"error": …}. The child ends without Python's own clean-up: the user's exit handlers belong to the caller.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError
from autotune.sandbox.frames import FrameReader, write_frame

__all__ = ["SURROUNDINGS", "error_to_json", "main"]

SURROUNDINGS = "surroundings.json"
"""File in the private folder with what the parent captured of its own surroundings."""

_PREFERRED_BY_OOM_KILLER = "800"  # of 1000; the caller's own process has 0 by default


def main() -> None:
    """Serves the pipes named on the command line: requests, answers, and the parent's process id."""
    requests, answers = (_descriptor(text) for text in sys.argv[1:3])
    _tie_to(int(sys.argv[3]))
    _show_last_words()
    desk = Desk(Path.cwd())
    reader = FrameReader(requests)
    code = 1
    try:
        with suppress(EOFError, BrokenPipeError):  # the parent is done, or gone
            while not desk.done:
                write_frame(answers, desk.answer(_required(reader.read())))
        desk.close()
        code = 0
    except SystemExit as error:  # of the user's code
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)  # Python's own way out would wait for every thread that the user's code left running


class Desk:
    """Answers requests.

    Args:
        directory: The private folder of the sandbox.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bench: Any = None
        self._hardware: dict[str, Any] = {}
        self._limit: Callable[[Any], AbstractContextManager[object]] = nullcontext
        self.done = False
        """No further request may be answered by this process."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to ``request``; an exception becomes {"error": …}."""
        try:
            match request["do"]:
                case "prepare":
                    return self._prepare()
                case "start":
                    return self._start(request)
                case "describe":
                    return {"facts": self._bench.describe().to_json(), "hardware": self._hardware}
                case _:
                    return self._run(request)
        except Exception as error:
            return {"error": error_to_json(error)}

    def close(self) -> None:
        """Closes the bench."""
        if self._bench is not None:
            self._bench.close()

    def _prepare(self) -> dict[str, Any]:
        data = json.loads((self._directory / SURROUNDINGS).read_text())
        os.chdir(data["working_directory"])
        sys.path[:] = data["sys_path"]
        from autotune.sandbox.surroundings import Surroundings

        Surroundings.from_json(data).apply()
        return {}

    def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from autotune.hardware import Hardware, Limits
        from autotune.sandbox import arrival
        from autotune.sandbox.address_space import AddressSpace

        hardware = Hardware.from_json(request["hardware"]).completed()  # here the device may be initialised
        limits = Limits.from_json(request["limits"])
        task = arrival.load(self._directory)
        bench = _attribute(request["bench"])
        self._hardware = hardware.to_json()
        self._bench = bench(task, hardware, limits, fresh=lambda: arrival.load(self._directory))
        keep_notes_in = getattr(self._bench, "keep_notes_in", None)
        if keep_notes_in is not None:
            keep_notes_in(self._directory)
        device = getattr(task, "device", None) or hardware.device
        self._limit = AddressSpace(device, limits.ram_bytes).limited
        return {}

    def _run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from autotune.measurement import Probe

        probe = Probe.from_json(request["probe"])
        self._bench.describe()  # what that loads for good must not count against the probe
        with self._limit(probe):
            outcome = self._bench.run(probe)
        self.done = bool(getattr(self._bench, "poisoned", False))
        return {"outcome": outcome.to_json(), "last": self.done}


def error_to_json(error: Exception) -> dict[str, Any]:
    """What the parent needs to raise ``error`` itself; never fails, whatever the exception's methods do."""
    from autotune.oom import memory_failure

    own = isinstance(error, AutotuneError)
    return {
        "type": f"{type(error).__module__}.{type(error).__qualname__}" if not own else type(error).__name__,
        "own": own,
        "cause": str(getattr(error, "cause", "")) if own else "",
        "remedy": str(getattr(error, "remedy", "")) if own else "",
        "message": _text(error),
        "traceback": "".join(traceback.format_exception(error)),
        "memory": memory_failure(error),
    }


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception as second:
        return f"(no message: its __str__ raised {type(second).__name__})"


def _attribute(path: str) -> Any:
    from importlib import import_module

    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _required(message: dict[str, Any] | None) -> dict[str, Any]:
    if message is None:
        raise EOFError
    return message


def _descriptor(text: str) -> int:
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(int(text), os.O_BINARY)
    descriptor = int(text)
    os.set_inheritable(descriptor, False)
    return descriptor


def _tie_to(parent: int) -> None:
    """Dies with the parent, and before it when the kernel runs out of memory (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # died before the line above
        os._exit(1)
    try:
        Path("/proc/self/oom_score_adj").write_text(_PREFERRED_BY_OOM_KILLER)
    except OSError:  # not allowed in some containers: then the kernel chooses by size alone
        return


def _show_last_words() -> None:
    """What is printed reaches the parent's file before a crash, and a crash names its place."""
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
