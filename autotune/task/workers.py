"""Whether loader workers can be started for this data, under the start method in force."""

from __future__ import annotations

import ast
import io
import multiprocessing
import pickle
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from autotune.task.batches import batch_tensors
from autotune.task.loader_parts import LoaderParts
from autotune.task.names import qualified_name

__all__ = [
    "daemonic_refusal",
    "main_refusal",
    "sharing_warnings",
    "start_method",
    "worker_copy_bytes",
    "workers_refused",
]

_GUARD = 'protect what the script runs by `if __name__ == "__main__":`'
_SHARED_BY_INHERITANCE = ("multiprocessing.synchronize", "multiprocessing.sharedctypes", "multiprocessing.queues")


def start_method(data: LoaderParts) -> str:
    """The start method that workers would have.

    Args:
        data: The loader's parts.

    Returns:
        The loader's own, else the process's, else the platform's default; asking does not fix it.
    """
    chosen = data.multiprocessing_context or multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def workers_refused(data: LoaderParts, batch: Any = None) -> str | None:
    """Why ``num_workers > 0`` cannot work here.

    Under spawn and forkserver, what a worker gets must pickle: dataset, ``collate_fn`` and ``worker_init_fn`` (samplers
    stay in the training process). Tensors and arrays are not copied to find out. Random generators and open files that
    workers must not share refuse, unless the user's own loader has workers, or a ``worker_init_fn`` that may see to it.

    Args:
        data: Resolved parts.
        batch: One batch as the loader yields it; tensors on an accelerator cannot come out of a worker.

    Returns:
        One sentence with the remedy; None where workers can be started.
    """
    method = start_method(data)
    away = next((tensor.device for tensor in batch_tensors(batch) if tensor.device.type != "cpu"), None)
    if away is not None:
        return f"the dataset returns tensors on {away}, which workers must not use; return CPU tensors instead"
    daemonic = daemonic_refusal()
    if daemonic is not None:
        return daemonic
    if data.num_workers == 0 and data.worker_init_fn is None and _unshareable(data):
        return "; ".join(_unshareable(data))
    return None if method == "fork" else _sending_refusal(data, method)


def sharing_warnings(data: LoaderParts) -> tuple[str, ...]:
    """What goes wrong in the workers that the user's own loader has.

    Args:
        data: Resolved parts.

    Returns:
        One sentence per thing that its workers share and must not; none where a ``worker_init_fn`` may see to it.
    """
    if data.num_workers == 0 or data.worker_init_fn is not None:
        return ()
    return tuple(f"Your DataLoader has workers, but {reason}." for reason in _unshareable(data))


def worker_copy_bytes(data: LoaderParts) -> int:
    """Bytes that each further worker holds of the dataset; tensors are shared, everything else is sent to each.

    Args:
        data: Resolved parts.

    Returns:
        0 under fork, where pages are shared until they are written to, and where the dataset cannot be sent at all.
    """
    if start_method(data) == "fork":
        return 0
    sink = _PickleProbe(sizing=True)
    try:
        sink.dump(data.dataset)
    except Exception:  # whatever a __reduce__ raises: ``workers_refused`` says it
        return 0
    return sink.sent_bytes


def daemonic_refusal() -> str | None:
    """Why this very process may not start workers.

    Returns:
        One sentence with the remedy; None where it may. Ask in the process that will train.
    """
    if not multiprocessing.current_process().daemon:
        return None
    return (
        "this process is daemonic (such as those of a multiprocessing.Pool) and may not have children; "
        "train in a process started with daemon=False to use workers"
    )


def _unshareable(data: LoaderParts) -> list[str]:
    """One reason of each kind; handles and threads only under fork, as elsewhere they are not inherited."""
    kinds = ("generator", "handle", "thread") if start_method(data) == "fork" else ("generator",)
    first = {state.kind: state.reason for state in reversed(data.shared_states)}
    return [first[kind] for kind in kinds if kind in first]


def _sending_refusal(data: LoaderParts, method: str) -> str | None:
    uses_main = False
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        value = getattr(data, name)
        sink = _PickleProbe()
        try:
            sink.dump(value)
        except Exception as error:  # whatever a __reduce__ of the user's raises is the answer
            return (
                f"{name} ({qualified_name(value)}) cannot be sent to workers started by {method} "
                f"({type(error).__name__}: {error}); define it at module level of a file that can be imported, "
                f"not as a lambda or inside a function, and {_GUARD}"
            )
        uses_main = uses_main or sink.uses_main
    refusal = main_refusal(sys.modules["__main__"], uses_main=uses_main)
    return None if refusal is None else f"workers started by {method} {refusal}"


def main_refusal(main: ModuleType, *, uses_main: bool) -> str | None:
    """Why a fresh worker process could not load the main module the way multiprocessing does.

    Args:
        main: The ``__main__`` module.
        uses_main: Whether something defined in it must be found again.

    Returns:
        The end of a sentence with the remedy; None where it can be loaded, or need not be.
    """
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    if spec is not None and (spec.name == "__main__" or spec.name.endswith(".__main__")):
        path = None  # multiprocessing does not load these again
    if path is None:
        cannot = "cannot find what is defined in the main program (a notebook or standard input); move it to a module"
        return cannot if uses_main else None
    if _is_guarded(Path(path)):
        return None
    return f"would run {Path(path).name} again from its top; {_GUARD}"


def _is_guarded(path: Path) -> bool:
    """Whether the file has a main guard at its top level."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # unreadable here means unreadable for a worker
        return False
    return any(isinstance(node, ast.If) and _tests_name(node.test) for node in body)


def _tests_name(test: ast.expr) -> bool:
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    texts = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    return "__name__" in names and "__main__" in texts


class _Sink(io.RawIOBase):
    """Takes everything and keeps nothing but its size."""

    def __init__(self) -> None:
        self.written_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.written_bytes += size
        return size


class _PickleProbe(pickle.Pickler):
    """Pickles to nowhere, big data left out but counted, and notices what would be looked up in ``__main__``.

    Args:
        sizing: Only the size matters, not whether it can be sent: arrays of any class are left out.
    """

    def __init__(self, *, sizing: bool = False) -> None:
        self._sizing = sizing
        self._sink = _Sink()
        super().__init__(self._sink, protocol=pickle.HIGHEST_PROTOCOL)
        self.uses_main = False
        self._array_bytes = 0

    @property
    def sent_bytes(self) -> int:
        """Of what was pickled, arrays in full."""
        return self._sink.written_bytes + self._array_bytes

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return int, ()
        if _is_plain_array(obj, any_class=self._sizing):
            self._array_bytes += obj.nbytes
            return int, ()
        if type(obj).__module__ in _SHARED_BY_INHERITANCE:  # pickles only while a process is being started
            return int, ()
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            self.uses_main = True
        return NotImplemented


def _is_plain_array(obj: Any, *, any_class: bool) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(obj, numpy.ndarray) or obj.dtype.hasobject:
        return False
    return any_class or type(obj) in (numpy.ndarray, numpy.memmap)
