"""Which of several stored configs is for this machine, and for this task."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from autotune.config.entries import LARGEST_BYTES, Match, Shelf, is_shelf, matches, no_match, read_entries
from autotune.config.file import parse_json, read_content, read_document
from autotune.config.handed_over import identity_of
from autotune.errors import ConfigError
from autotune.hardware import Hardware
from autotune.task import Task
from autotune.task.parts import in_words

__all__ = ["document_for_here"]


def document_for_here(where: str, task: Task | None) -> dict[str, Any]:
    """The config in a file; of a file or folder of several, the one measured on a machine like this one.

    Args:
        where: Path.
        task: The task it is for; None: there must be one only.

    Raises:
        ConfigError: It cannot be read, or there is none for this machine (the message lists the nearest and how they
            differ) or for this task.

    Warns:
        UserWarning: It was measured under another patch release of torch.
    """
    if not os.path.isdir(where) and not is_shelf(parse_json(read_content(where, largest_bytes=LARGEST_BYTES), where)):
        return read_document(where)
    shelf = read_entries(where)
    hardware = Hardware.detect(device=None if task is None else task.device)
    here = {**hardware.to_json(), "fingerprint": hardware.fingerprint}
    return _chosen(where, shelf, here, task)


def _chosen(where: str, shelf: Shelf, here: Mapping[str, Any], task: Task | None) -> dict[str, Any]:
    found = matches(shelf.entries, here)
    usable = [one for one in found if one.exact] or [one for one in found if one.near]
    tasks = {one.entry.key.task for one in usable}
    unlike = ""
    if task is not None and (len(tasks) > 1 or isinstance(task.model, nn.Module)):
        wanted = identity_of(task, task.build_model())
        unlike = _unlike(usable, wanted.parts)
        usable = [one for one in usable if one.entry.key.task == wanted.fingerprint]
        found = [one for one in found if one.entry.key.task == wanted.fingerprint]
    elif len(tasks) > 1:
        raise _ambiguous(where, usable)
    if not usable:
        raise no_match(where, shelf, found, None if task is None else task.name, unlike=unlike)
    best = usable[0]
    if not best.exact:
        _warn_near(best)
    return best.entry.document


def _unlike(usable: Sequence[Match], parts: Mapping[str, str]) -> str:
    """What distinguishes the task given from the nearest one that was tuned on such a machine."""
    known = [(one.entry.name, differences) for one in usable if (differences := one.entry.unlike(parts))]
    name, differences = min(known, key=lambda one: len(one[1]), default=("", ()))
    return f"The nearest task of this machine, {name}, differs: {in_words(differences)}." if differences else ""


def _ambiguous(where: str, usable: Sequence[Match]) -> ConfigError:
    names = sorted({one.entry.name for one in usable})
    return ConfigError(
        f"{where!r} holds configs of several tasks for this machine: {', '.join(names)}.",
        "Say which one: TunedConfig.load(path, task=Task(...)).",
    )


def _warn_near(match: Match) -> None:
    said = "; ".join(map(str, match.differences))
    warnings.warn(
        f"The config was measured under another patch release ({said}): `torch-autotune check` tells whether it still "
        "holds.",
        UserWarning,
        stacklevel=5,
    )
