"""What earlier calls and re-tunes left in the store: answers to this very request, or where a search may start."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.config import TunedConfig
from autotune.config.entries import Entry, Match, matches
from autotune.config.shared_machine import among_others
from autotune.errors import ConfigError
from autotune.profiles import Key, Profiles
from autotune.settings import Settings
from autotune.task.parts import in_words

__all__ = ["Answer", "Start", "answers", "start_from", "unstable_parts"]

_OTHER_KIND = ("accelerator", "accelerator.type", "fingerprint")  # machines of which one says little about the other
_ENOUGH_ALIKE = 3  # stored tasks that differ in the same parts: likely one task whose fingerprint is never the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A stored answer to this very request."""

    config: TunedConfig
    result: Mapping[str, Any]
    """As it is stored."""
    key: Key
    among: str | None
    """Who else used the machine when it was measured; None: nobody, as far as was seen."""

    @property
    def saved(self) -> str:
        """When it was stored."""
        return str(self.result.get("saved") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Settings to begin a search with."""

    settings: Settings
    said: str
    """Whose they are, in one sentence."""


def answers(store: Profiles, key: Key, faults: list[str]) -> list[Answer]:
    """The answers to a request: that of an earlier call, and that of a re-tune that was asked the same.

    Args:
        store: Where they are kept.
        key: Of the call.
        faults: Takes what could not be read.

    Returns:
        Wins measured with the machine to itself first, then the latest; a kept baseline is the first where it is the
        latest, since what it was measured beside is not known.
    """
    found = []
    for one in (key, dataclasses.replace(key, rules="")):
        try:
            entry = store.entry(one)
            if entry is None or (not one.rules and entry.results[0].get("request") != key.rules):
                continue
            config = TunedConfig.from_json(entry.document)
        except ConfigError as error:
            faults.append(error.cause)
            continue
        found.append(Answer(config=config, result=entry.results[0], key=one, among=among_others(config)))
    found.sort(key=lambda answer: answer.saved, reverse=True)
    latest = found[0] if found else None
    kept = [one for one in found if one.config.evidence.kept_baseline and one is not latest]
    return sorted(found, key=lambda answer: answer.among is not None or answer in kept)


def start_from(
    entries: Sequence[Entry], key: Key, hardware: Mapping[str, Any], *, without: Collection[Key] = ()
) -> Start | None:
    """The nearest stored win of this task: of this machine under other rules, or of one of the same kind.

    Args:
        entries: Of the store.
        key: Of the call.
        hardware: This machine's record with its fingerprint.
        without: Entries that do not run here.
    """
    for match in matches((one for one in entries if one.key not in without), hardware, task=key.task):
        if any(one.field in _OTHER_KIND for one in match.differences):
            continue
        try:
            config = TunedConfig.from_json(match.entry.document)
        except ConfigError:
            continue  # of no use as a start; what is wrong with it is said where it is asked for
        if config.settings != config.baseline:
            return Start(settings=config.settings, said=_said(match, key))
    return None


def _said(match: Match, key: Key) -> str:
    entry = match.entry
    if match.differences:
        why = f"found on another machine ({'; '.join(map(str, match.differences))})"
    elif entry.key.rules == key.rules or entry.results[0].get("request") == key.rules:
        why = "not an answer to this call"
    else:
        why = "found under other limits or rules"
    return f"The search started from the answer of {entry.saved[:10] or 'an unknown day'} for this task, {why}."


def unstable_parts(entries: Sequence[Entry], key: Key, name: str, parts: Mapping[str, str]) -> str | None:
    """A sentence where the stored answers look like those of one task that is another at each start; None: they do not.

    Args:
        entries: Of the store.
        key: Of the call.
        name: The task's.
        parts: What goes into its fingerprint.
    """
    alike = Counter(_only_inside(entries, key, name, parts))
    found, count = next(iter(alike.most_common(1)), ("", 0))
    if count < _ENOUGH_ALIKE:
        return None
    return (
        f"{count} answers are stored for tasks that differ from this one in nothing but this: {found}. If you changed "
        "nothing there, the task is another one at each start and no stored answer is ever found: look for a time, a "
        "random number or a temporary path among the attributes, or in what the code uses."
    )


def _only_inside(entries: Sequence[Entry], key: Key, name: str, parts: Mapping[str, str]) -> Iterator[str]:
    for entry in entries:
        same = (entry.key.hardware, entry.key.rules, entry.name) == (key.hardware, key.rules, name)
        if not same or entry.key.task == key.task:
            continue
        differences = entry.unlike(parts)
        if differences and all(one.only_inside for one in differences):
            yield in_words(differences)
