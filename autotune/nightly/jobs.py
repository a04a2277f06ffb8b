"""What to re-tune: the ``[tool.autotune]`` table of a pyproject.toml, or a TOML file of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import ConfigError
from autotune.nightly.retune import Rules
from autotune.profiles import Profiles, user_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Job", "read_jobs"]

_REMEDY = 'For instance: [tool.autotune.tasks.photos] with task = "train.py:task".'
_NUMBERS = ("time_budget_s", "check_budget_s", "memory_margin")
_OF_RULES = {**dict.fromkeys(_NUMBERS, (int, float)), "allow_batch_change": bool, "storage": str, "study_name": str}
_OF_TASK = {"task": str, "out": str, "store": str, **_OF_RULES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One task to re-tune."""

    name: str
    spec: str
    """``path/to/file.py:function``, the path absolute, or ``package.module:function``."""
    store: Profiles
    out: Path | None
    """Plain config that is kept equal to the stored one, for programs that read no store."""
    rules: Rules


def read_jobs(path: Path) -> list[Job]:
    """The tasks of a TOML file.

    Keys beside ``tasks`` hold for each of them: ``store``, ``time_budget_s``, ``check_budget_s``, ``memory_margin``,
    ``allow_batch_change``, ``storage``, ``study_name``; a task has ``task``, ``out``, and any of these for itself.
    Paths are relative to the file.

    Args:
        path: A pyproject.toml, or a file with these keys at its top.

    Raises:
        ConfigError: It cannot be read, holds no tasks, or a key that is not known.
    """
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror or error}.", "Name a TOML file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is no TOML: {error}.", "Mend it.") from error
    table = content.get("tool", {}).get("autotune") if "tool" in content else content
    tasks = table.pop("tasks", None) if isinstance(table, dict) else None
    if not isinstance(tasks, dict) or not tasks:
        raise ConfigError(f"{str(path)!r} holds no tasks to re-tune.", _REMEDY)
    _check(table, {name: kind for name, kind in _OF_TASK.items() if name not in ("task", "out")}, f"{path}")
    return [_job(name, entry, table, path.resolve().parent) for name, entry in tasks.items()]


def _job(name: str, entry: Any, shared: Mapping[str, Any], folder: Path) -> Job:
    if not isinstance(entry, dict) or "task" not in entry:
        raise ConfigError(f"The task {name!r} names no function.", _REMEDY)
    _check(entry, _OF_TASK, f"The task {name!r}")
    wanted = {**shared, **entry}
    if "storage" in wanted and "://" not in wanted["storage"]:
        wanted["storage"] = str(folder / wanted["storage"])
    store, out = _store(wanted.get("store"), folder), folder / wanted["out"] if "out" in wanted else None
    if out is not None and out.resolve() == store.resolve():
        raise ConfigError(f"The task {name!r}: out and store are one file.", 'A folder will do: store = "profiles".')
    return Job(
        name=name,
        spec=_absolute_spec(wanted["task"], folder),
        store=Profiles(store),
        out=out,
        rules=Rules(**{key: wanted[key] for key in _OF_RULES if key in wanted}),
    )


def _check(table: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}.", f"Known are: {', '.join(known)}.")
        kind = known[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{where}: {key}={value!r} is not possible.", "Mend its type.")
        if key in _NUMBERS and not 0 <= value < float("inf"):
            raise ConfigError(f"{where}: {key}={value!r} is not possible.", "Give a number above 0.")


def _store(named: str | None, folder: Path) -> Path:
    if named is not None:
        return folder / Path(named).expanduser()
    own = user_folder()
    if own is None:
        raise ConfigError("There is no store: AUTOTUNE_CACHE_DIR is empty.", 'Name one: store = "profiles".')
    return own


def _absolute_spec(spec: str, folder: Path) -> str:
    where, colon, function = spec.rpartition(":")
    return f"{folder / where}{colon}{function}" if where.endswith(".py") else spec
