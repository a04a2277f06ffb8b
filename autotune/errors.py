"""Every error this package raises, with its cause, its remedy and its exit code.

The tree::

    AutotuneError                exit 1   anything below, for one ``except``
    ├── SettingsError            exit 2   an argument or a knob has a value that cannot be (also a ValueError)
    ├── TaskError                exit 3   the model, data, loss or optimizer cannot be trained as handed over
    ├── ConfigError              exit 4   a JSON config is damaged, too new, or lacks what is asked of it
    ├── SandboxError             exit 5   the isolated process could not be started or kept alive
    ├── DoesNotFitError          exit 6   not even the smallest allowed batch fits in memory
    ├── MissingPackageError      exit 7   an optional package is needed for what was asked
    └── BusyError                exit 8   other work runs on the device or its cores, so nothing can be measured

The command adds some of its own: 2 for wrong usage (argparse), 10 to 13 for what ``check`` found, 130 for Ctrl-C.
"""

from __future__ import annotations

__all__ = [
    "AutotuneError",
    "BusyError",
    "ConfigError",
    "DoesNotFitError",
    "MissingPackageError",
    "SandboxError",
    "SettingsError",
    "TaskError",
]


class AutotuneError(Exception):
    """Base of all errors of this package.

    Args:
        cause: What is wrong, in one sentence, with the offending value in it.
        remedy: What to do about it, in one sentence.
    """

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".strip()


class SettingsError(AutotuneError, ValueError):
    """An argument or a knob has a value that cannot be."""

    exit_code = 2


class TaskError(AutotuneError):
    """The model, data, loss or optimizer cannot be trained as handed over."""

    exit_code = 3


class ConfigError(AutotuneError):
    """A JSON config is damaged, too new, or lacks what is asked of it."""

    exit_code = 4


class SandboxError(AutotuneError):
    """The isolated process could not be started or kept alive."""

    exit_code = 5


class DoesNotFitError(AutotuneError):
    """Not even the smallest allowed batch fits in memory."""

    exit_code = 6


class MissingPackageError(AutotuneError):
    """An optional package is needed for what was asked."""

    exit_code = 7


class BusyError(AutotuneError):
    """Other work runs on the device or its cores, so nothing can be measured."""

    exit_code = 8
