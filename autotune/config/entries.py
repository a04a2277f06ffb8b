"""Several configs in one place: a file or a folder of entries, and the one that is for this machine.

A file of entries is ``{"profiles_version": 1, "entries": [{"key": {…}, "results": [{"saved", "why", "document"}]}]}``,
the result in force first, earlier ones behind it. A folder holds such files, each with one entry; a plain config counts
as an entry of its own, so that a folder of ``TunedConfig.save`` files is one too. What cannot be read is named and
passed over, never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.config.file import NewerConfigError, check_document, parse_json, read_content
from autotune.errors import ConfigError
from autotune.hardware.nearness import Difference, is_patch_release, speed_differences
from autotune.task.parts import PartDifference, differing_parts, known_parts

__all__ = [
    "LARGEST_BYTES",
    "PROFILES_VERSION",
    "Entry",
    "Key",
    "Match",
    "Shelf",
    "folder_file",
    "is_shelf",
    "matches",
    "no_match",
    "parse_shelf",
    "read_entries",
    "read_shelf",
    "shelf_document",
]

# History: 0, a plain config; 1, entries with results. A release reads all versions up to its own.
PROFILES_VERSION = 1

# A result has some 10 KB, and twenty are kept of each entry.
LARGEST_BYTES = 256 * 2**20

_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a result is for."""

    task: str
    """Fingerprint of the task."""
    hardware: str
    """Fingerprint of the machine."""
    rules: str = ""
    """Digest of the caller's own rules; empty where results are kept whatever these were."""

    def to_json(self) -> dict[str, str]:
        """JSON scalars."""
        return {"task": self.task, "hardware": self.hardware, "rules": self.rules}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key and its results."""

    key: Key
    results: tuple[Mapping[str, Any], ...]
    """The one in force first."""
    where: str
    """File it was read from."""

    @property
    def document(self) -> dict[str, Any]:
        """The config in force, checked.

        Raises:
            ConfigError: It is damaged, or of a newer release.
        """
        return check_document(self.results[0]["document"], self.where)

    @property
    def name(self) -> str:
        """The task's name, for people."""
        return str(_within(self.results[0]["document"], "task", "name"))

    @property
    def hardware(self) -> Mapping[str, Any]:
        """The record of the machine it was measured on."""
        found = _within(self.results[0]["document"], "hardware")
        return found if isinstance(found, Mapping) else {}

    @property
    def saved(self) -> str:
        """When the result in force was put there."""
        return str(self.results[0].get("saved") or "")

    def unlike(self, parts: Mapping[str, str]) -> tuple[PartDifference, ...]:
        """The parts in which its task differs from another, as far as both are known.

        Args:
            parts: Of the other task.
        """
        facts = _within(self.results[0]["document"], "facts")
        return differing_parts(known_parts(facts if isinstance(facts, Mapping) else {}), parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What was read of one place."""

    entries: tuple[Entry, ...] = ()
    faults: tuple[str, ...] = ()
    """What could not be read, one sentence each."""
    kept: tuple[Any, ...] = ()
    """Members of the file's list that are no entries of this release, as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An entry, seen from one machine."""

    entry: Entry
    differences: tuple[Difference, ...] = field(default=())

    @property
    def exact(self) -> bool:
        """It was measured on such a machine."""
        return not self.differences

    @property
    def near(self) -> bool:
        """Nothing but torch's patch release differs."""
        return is_patch_release(self.differences)

    def __str__(self) -> str:
        said = "; ".join(map(str, self.differences)) or "the same hardware"
        return f"{self.entry.name} ({self.entry.saved[:10] or 'no date'}): {said}"


def is_shelf(value: object) -> bool:
    """Whether a JSON value is a file of entries, of whatever version."""
    return isinstance(value, dict) and "profiles_version" in value


def read_entries(where: str) -> Shelf:
    """Everything in a file or a folder.

    Args:
        where: Path of a file of entries, a plain config, or a folder of either.

    Raises:
        ConfigError: The path cannot be read at all; of a file, also that it is damaged throughout.
    """
    if not os.path.isdir(where):
        return read_shelf(where)
    try:
        names = sorted(name for name in os.listdir(where) if name.endswith(".json") and not name.startswith("."))
    except OSError as error:
        raise ConfigError(f"The folder {where!r} cannot be read: {error.strerror or error}.", "Check it.") from error
    shelves = [_tolerant(os.path.join(where, name)) for name in names]
    return Shelf(
        entries=tuple(entry for shelf in shelves for entry in shelf.entries),
        faults=tuple(fault for shelf in shelves for fault in shelf.faults),
    )


def read_shelf(where: str) -> Shelf:
    """What a file holds.

    Args:
        where: Path of a file of entries, or of a plain config.

    Raises:
        ConfigError: It is missing, damaged as a whole, or of a newer release.
    """
    return parse_shelf(read_content(where, largest_bytes=LARGEST_BYTES), where)


def parse_shelf(content: bytes, where: str) -> Shelf:
    """What a file's content is.

    Args:
        content: All of it.
        where: Names it in messages.

    Raises:
        ConfigError: It is damaged as a whole, or of a newer release.
    """
    value = parse_json(content, where)
    if not is_shelf(value):
        document = check_document(value, where)
        key = Key(task=str(document["task"]["fingerprint"]), hardware=str(document["hardware"]["fingerprint"]))
        result = {"saved": document["evidence"]["created"], "why": "a plain config", "document": document}
        return Shelf(entries=(Entry(key=key, results=(result,), where=where),))
    version = value["profiles_version"]
    if type(version) is int and version > PROFILES_VERSION:
        said = f"The profiles {where!r} are of version {version}; this release reads up to {PROFILES_VERSION}."
        raise NewerConfigError(said, "Update with `pip install -U torch-autotune`; nothing was changed.")
    members = value.get("entries")
    if version != PROFILES_VERSION or type(version) is not int or not isinstance(members, list):
        raise ConfigError(f"The profiles {where!r} are damaged: there is no list of entries.", "Tune again.")
    return _shelf(members, where)


def _shelf(members: Sequence[Any], where: str) -> Shelf:
    entries, kept, faults = [], [], []
    for number, member in enumerate(members):
        entry = _entry(member, where)
        if entry is None:
            kept.append(member)
            faults.append(f"Entry {number} of {where!r} is damaged and was passed over.")
        else:
            entries.append(entry)
    return Shelf(entries=tuple(entries), faults=tuple(faults), kept=tuple(kept))


def matches(entries: Iterable[Entry], hardware: Mapping[str, Any], *, task: str | None = None) -> list[Match]:
    """The entries as seen from one machine: exact ones first, then near ones, then by the number of differences.

    Among equals the one saved last comes first.

    Args:
        entries: What was read.
        hardware: This machine's record with its fingerprint.
        task: Fingerprint of the task wanted; None: any.
    """
    wanted = [entry for entry in entries if task is None or entry.key.task == task]
    found = [Match(entry=entry, differences=_differences(entry, hardware)) for entry in wanted]
    found.sort(key=lambda one: one.entry.saved, reverse=True)
    return sorted(found, key=lambda one: (not one.exact, not one.near, len(one.differences)))


def no_match(
    where: str, shelf: Shelf, found: Sequence[Match], task_name: str | None = None, *, unlike: str = ""
) -> ConfigError:
    """The error for a place that holds nothing for this machine.

    Args:
        where: The place.
        shelf: What was read of it.
        found: Entries of other machines, nearest first.
        task_name: Task that was wanted; None: any.
        unlike: What distinguishes the task of this machine's nearest entry, in one sentence.
    """
    what = "this machine" if task_name is None else f"the task {task_name!r} on this machine"
    nearest = " | ".join(map(str, found[:_SHOWN]))
    others = sorted({entry.name for entry in shelf.entries})
    seen = f" Nearest are: {nearest}." if found else f" It holds tasks: {', '.join(others)}." if others else ""
    faults = f" {' '.join(shelf.faults[:_SHOWN])}" if shelf.faults else ""
    return ConfigError(
        f"{where!r} holds no config for {what}.{seen}{unlike and f' {unlike}'}{faults}",
        "Tune here: `torch-autotune retune`, or `torch-autotune tune FILE:FUNC --out tuned.json`.",
    )


def _differences(entry: Entry, hardware: Mapping[str, Any]) -> tuple[Difference, ...]:
    if entry.key.hardware == hardware.get("fingerprint"):
        return ()
    return speed_differences({**entry.hardware, "fingerprint": entry.key.hardware}, hardware)


def _tolerant(where: str) -> Shelf:
    try:
        return read_shelf(where)
    except ConfigError as error:
        return Shelf(faults=(error.cause,))


def _entry(member: Any, where: str) -> Entry | None:
    """The entry a member of the list is; None where it is none that this release can tell apart."""
    key, results = _within(member, "key"), _within(member, "results")
    if not isinstance(key, dict) or not isinstance(results, list) or not results:
        return None
    names = ("task", "hardware", "rules")
    if set(key) != set(names) or not all(isinstance(key[name], str) for name in names):
        return None
    if not all(isinstance(one, dict) and isinstance(one.get("document"), dict) for one in results):
        return None
    return Entry(key=Key(**key), results=tuple(results), where=where)


def _within(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def shelf_document(entries: Iterable[Entry], kept: Iterable[Any] = ()) -> dict[str, Any]:
    """The JSON of a file of entries.

    Args:
        entries: All of them.
        kept: Members that are no entries of this release, written as they were.
    """
    members = [{"key": entry.key.to_json(), "results": list(entry.results)} for entry in entries]
    return {"profiles_version": PROFILES_VERSION, "entries": [*members, *kept]}


def folder_file(folder: Path, key: Key) -> Path:
    """The file of a folder that holds a key's entry."""
    digest = hashlib.sha256(json.dumps([key.task, key.hardware, key.rules]).encode()).hexdigest()
    return folder / f"profile-{digest[:24]}.json"
