"""What a process stands in besides its objects: paths, environment, torch's switches, multiprocessing's settings."""

from __future__ import annotations

import getpass
import multiprocessing
import multiprocessing.process
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from autotune.errors import SandboxError
from autotune.sandbox.flags import TorchFlags
from autotune.task.workers import main_refusal

__all__ = ["INSIDE", "Surroundings", "child_environment"]

INSIDE = "AUTOTUNE_INSIDE_SANDBOX"
"""Set in the environment of everything a sandbox starts."""

# Experiment trackers would otherwise open a run per trial. Where there is no full off switch, runs go to the
# private folder.
_TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "COMET_MODE": "DISABLED",
    "COMET_DISABLED": "1",
    "COMET_AUTO_LOG_DISABLE": "1",
    "COMET_START_ONLINE": "false",
    "NEPTUNE_MODE": "debug",
}
_TRACKERS_UNSET = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME", "WANDB_RUN_ID", "WANDB_RESUME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything but the environment variables, which a process must have before it starts."""

    sys_path: list[str]
    argv: list[str]
    working_directory: str
    original_directory: str | None
    """Working directory at the start, to which '' in ``sys_path`` and relative script paths refer."""
    python_path: str | None
    """PYTHONPATH as the caller has it; the child is started with a longer one."""
    flags: dict[str, Any]
    interop_threads: int
    start_method: str | None
    """None: never chosen, the platform's default applies."""
    sharing_strategy: str
    main: dict[str, str]
    """How ``multiprocessing.spawn.prepare`` imports the caller's ``__main__``; empty: it is not imported."""

    @classmethod
    def capture(cls, workers_start_by: str | None = None) -> Surroundings:
        """Those of this process; changes nothing, not even multiprocessing's undecided start method.

        Args:
            workers_start_by: Start method of the loader's workers; None: the process's. Unless it is "fork", the
                child imports ``__main__`` as they will, provided that it may be imported twice.
        """
        original = getattr(multiprocessing.process, "ORIGINAL_DIR", None)
        return cls(
            sys_path=[os.fspath(entry) for entry in sys.path],
            argv=list(sys.argv),
            working_directory=_working_directory(),
            original_directory=original,
            python_path=os.environ.get("PYTHONPATH"),
            flags=TorchFlags.capture().values,
            interop_threads=torch.get_num_interop_threads(),
            start_method=multiprocessing.get_start_method(allow_none=True),
            sharing_strategy=torch.multiprocessing.get_sharing_strategy(),  # type: ignore[no-untyped-call]
            main=_main_preparation(workers_start_by or _default_start_method(), original),
        )

    def to_json(self) -> dict[str, Any]:
        """JSON scalars, lists and objects."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Surroundings:
        """The surroundings ``to_json`` wrote."""
        return cls(**data)

    def apply(self) -> None:
        """Makes this process's surroundings these; for a fresh child, before any user code is imported."""
        if self.python_path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = self.python_path
        TorchFlags(self.flags).apply()
        if torch.get_num_interop_threads() != self.interop_threads:
            torch.set_num_interop_threads(self.interop_threads)
        torch.multiprocessing.set_sharing_strategy(self.sharing_strategy)  # type: ignore[no-untyped-call]
        _prepare(self)


def _prepare(surroundings: Surroundings) -> None:
    from multiprocessing import spawn

    data: dict[str, Any] = {
        "sys_path": surroundings.sys_path,
        "sys_argv": surroundings.argv,
        "dir": surroundings.working_directory,
        "orig_dir": surroundings.original_directory,
    }
    if surroundings.start_method is not None:
        data["start_method"] = surroundings.start_method
    spawn.prepare({**data, **surroundings.main})


def _default_start_method() -> str:
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _main_preparation(start_method: str, original_directory: str | None) -> dict[str, str]:
    """Source: ``multiprocessing.spawn.get_preparation_data``, which may not be called here: it fixes the method."""
    main = sys.modules["__main__"]
    if start_method == "fork" or main_refusal(main, uses_main=True) is not None:
        return {}
    name = getattr(main.__spec__, "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    return {"init_main_from_path": os.path.normpath(os.path.join(original_directory or "", str(main.__file__)))}


def child_environment(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The environment of a child: the caller's, temporary files in ``directory``, experiment trackers off.

    Compiled kernels stay in the caller's own cache, so that what a trial compiled is there for the real training.
    """
    kept = {name: value for name, value in environ.items() if name not in _TRACKERS_UNSET}
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(directory))
    kept.setdefault("TORCHINDUCTOR_CACHE_DIR", _inductor_cache_directory())
    runs = {"MLFLOW_TRACKING_URI": (directory / "mlruns").as_uri(), "COMET_OFFLINE_DIRECTORY": str(directory)}
    return {**kept, **temporary, **_TRACKERS_OFF, **runs, "PYTHONPATH": _python_path(environ), INSIDE: "1"}


def _python_path(environ: Mapping[str, str]) -> str:
    # First: the child must find this very package, whatever else bears its name.
    root = str(Path(__file__).resolve().parents[2])
    given = environ.get("PYTHONPATH")
    return os.pathsep.join([root, given] if given else [root])


def _inductor_cache_directory() -> str:
    """Where Inductor caches by default, which depends on TMPDIR.

    Source: ``torch/_inductor/runtime/cache_dir_utils.py``, ``default_cache_dir``.
    """
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise SandboxError(
            "The current directory no longer exists.", "Change to one that does, and call again."
        ) from error
