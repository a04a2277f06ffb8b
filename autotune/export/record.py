"""What an export is: values, text, files, and what is missing from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Export", "NotExpressed", "TaskSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotExpressed:
    """One thing that the settings ask for and a dialect has no words for."""

    what: str
    """Its name, and its value where that is plain."""
    reason: str
    """Why not, and where it goes instead."""

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """The code that a task comes from."""

    folder: str
    """To be put first on ``sys.path``."""
    module: str
    """Name to import it by."""
    function: str
    """Called without arguments, it returns the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Settings in one dialect."""

    dialect: str
    """Its name, as given to ``to``."""
    data: Mapping[str, Any]
    """Plain values, by the object they are arguments of."""
    text: str
    """The same to read, to paste or to write to a file."""
    file_name: str
    """What a file with ``text`` is called where the dialect has a say in it."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Further files that ``text`` needs, by name; they are the user's."""
    fill_in: tuple[str, ...] = ()
    """What is left to fill in in those, each as "name: what belongs there"; empty: they are complete."""
    not_expressed: tuple[NotExpressed, ...]
    """What the settings ask for and the dialect cannot say."""

    @property
    def files(self) -> dict[str, str]:
        """All files by name, that of ``text`` first."""
        return {self.file_name: self.text, **self.beside}

    def to_json(self) -> dict[str, Any]:
        """The export as JSON values."""
        return {
            "dialect": self.dialect,
            "data": dict(self.data),
            "files": self.files,
            "fill_in": list(self.fill_in),
            "not_expressed": [{"what": one.what, "reason": one.reason} for one in self.not_expressed],
        }
