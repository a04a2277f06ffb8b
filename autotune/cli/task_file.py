"""A task named on the command line: ``path/to/file.py:function`` or ``package.module:function``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autotune.errors import AutotuneError, SettingsError, TaskError

if TYPE_CHECKING:
    from autotune.task import Task

__all__ = ["load_task", "task_source"]


def load_task(spec: str) -> Task:
    """Import the code that ``spec`` names, call its function, and return the task it makes.

    A file's folder (or, for a module, the working folder) is put first on ``sys.path``, and the file's module is
    registered under its stem, so that its classes are found again by name in child processes.

    Args:
        spec: ``path/to/file.py:function`` or ``package.module:function``; the function takes no arguments.

    Raises:
        SettingsError: ``spec`` is not of that form.
        TaskError: No such file, module or function; it fails; or it returns something else than a Task.
    """
    from autotune.task import Task

    where, name = _split(spec)
    module = _import_file(Path(where)) if _is_file_name(where) else _import_module(where)
    function = _function(module, where, name)
    task = _guarded(function, f"{name}() of {where}", "It must run without arguments and return a Task.")
    if not isinstance(task, Task):
        raise TaskError(
            f"{name}() of {where} returned {_described(task)}, not a Task.",
            "Let it end with: return autotune.Task(model, dataset, loss_fn=..., optimizer=...).",
        )
    return task


def task_source(spec: str) -> tuple[str, str, str]:
    """Folder for ``sys.path``, module and function of a task, as ``load_task`` imports it.

    Args:
        spec: As for ``load_task``.

    Raises:
        SettingsError: ``spec`` is not of that form.
    """
    where, name = _split(spec)
    if not _is_file_name(where):
        return str(Path.cwd()), where, name
    path = Path(where).resolve()
    return str(path.parent), path.stem, name


def _split(spec: str) -> tuple[str, str]:
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise SettingsError(
            f"The task {spec!r} names no function.",
            "Write path/to/file.py:function or package.module:function.",
        )
    return where, name


def _is_file_name(where: str) -> bool:
    return where.endswith(".py") or "/" in where or os.sep in where or Path(where).is_file()


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TaskError(
            f"There is no file {str(path)!r} (looked from {Path.cwd()}).",
            "Check the path in front of the colon; for an installed module write package.module:function.",
        )
    path = path.resolve()
    stem = path.stem
    _check_stem(path)
    module_spec = importlib.util.spec_from_file_location(stem, path)
    if module_spec is None or module_spec.loader is None:
        raise TaskError(f"{str(path)!r} is not a Python file.", "Its name must end in .py.")
    module = importlib.util.module_from_spec(module_spec)
    execute = module_spec.loader.exec_module
    with _Import(str(path.parent), stem, module):
        _guarded(lambda: execute(module), str(path), _IMPORT_REMEDY)
    return module


def _import_module(name: str) -> ModuleType:
    with _Import(str(Path.cwd())):
        module: ModuleType = _guarded(lambda: importlib.import_module(name), f"the module {name}", _IMPORT_REMEDY)
    return module


_IMPORT_REMEDY = (
    "Mend it, or run it once by itself with Python; a file of a package that uses relative imports is named as "
    "package.module:function."
)


class _Import:
    """``sys.path`` and ``sys.modules`` prepared for an import, and put back should it fail."""

    def __init__(self, folder: str, stem: str = "", module: ModuleType | None = None) -> None:
        self.folder, self.stem, self.module = folder, stem, module

    def __enter__(self) -> None:
        self.path_before = list(sys.path)
        self.module_before = sys.modules.get(self.stem)
        if sys.path[:1] != [self.folder]:
            sys.path.insert(0, self.folder)
        if self.module is not None:
            sys.modules[self.stem] = self.module

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            return
        sys.path[:] = self.path_before
        if self.module is not None:
            sys.modules.pop(self.stem, None)
            if self.module_before is not None:
                sys.modules[self.stem] = self.module_before


def _check_stem(path: Path) -> None:
    """Refuse a file that could not be imported again by its name in a child process."""
    stem = path.stem
    loaded = getattr(sys.modules.get(stem), "__file__", None)
    foreign = stem in sys.modules and (loaded is None or Path(loaded).resolve() != path)
    if "." in stem:
        raise TaskError(f"{path.name!r} cannot be imported: there is a dot in its name.", "Rename the file.")
    if foreign or stem in sys.stdlib_module_names:
        raise TaskError(
            f"{path.name!r} has the name of another module ({stem}), which it would hide.",
            f"Rename the file, for instance to my_{stem.strip('_')}.py.",
        )


def _function(module: ModuleType, where: str, name: str) -> Callable[[], Any]:
    function = getattr(module, name, None)
    if function is None:
        own = [key for key, value in vars(module).items() if _is_own_function(module, value)]
        found = f"Functions there: {', '.join(sorted(own))}." if own else "There are no functions in it."
        raise TaskError(f"{where} has no function {name!r}.", found)
    if not callable(function):
        raise TaskError(
            f"{name} of {where} is {_described(function)}, not a function.",
            "Name a function without arguments that returns a Task.",
        )
    return _without_arguments(function, where, name)


def _without_arguments(function: Callable[..., Any], where: str, name: str) -> Callable[[], Any]:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TaskError(
            f"{name}() of {where} cannot be called without arguments: {error}.", "Give each of them a default."
        ) from error
    except ValueError:  # a builtin without a signature; calling it will tell
        pass
    return function


def _is_own_function(module: ModuleType, value: object) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def _guarded(call: Callable[[], Any], what: str, remedy: str) -> Any:
    """``call()``, whatever of the user's goes wrong in it made one TaskError."""
    try:
        return call()
    except AutotuneError:
        raise
    except SystemExit as error:
        raise TaskError(
            f"{what} ended Python with sys.exit({error.code!r}).",
            'Put what reads the command line under: if __name__ == "__main__".',
        ) from error
    except Exception as error:
        raise TaskError(f"{what} failed with {_described_error(error)}.", remedy) from error


def _described_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError):  # its text names file and line
        return described
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if "importlib" not in frame.filename]
    return f"{described} (line {frames[-1].lineno} of {frames[-1].filename})" if frames else described


def _described(value: object) -> str:
    return "None" if value is None else f"a {type(value).__qualname__}"
