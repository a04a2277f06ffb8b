"""Fixtures of the chaos tests: those of the sandbox's, and the count of what was injected and survived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sandbox.conftest import hardware, nothing_left, short_folder

__all__ = ["hardware", "nothing_left", "short_folder"]


class Figures:
    """Counts faults by kind; shown in the summary of the test run."""

    def __init__(self) -> None:
        self.injected: Counter[str] = Counter()
        self.survived: Counter[str] = Counter()

    def count(self, kind: str, *, survived: bool = False) -> None:
        """One fault of ``kind`` more; "healthy" is none."""
        if kind != "healthy":
            (self.survived if survived else self.injected)[kind] += 1

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {self.survived[kind]}/{count}" for kind, count in sorted(self.injected.items()))
        return f"{self.injected.total()} faults injected, {self.survived.total()} survived ({kinds})"


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Iterator[Figures]:
    """To be filled in by the test."""
    made = Figures()
    yield made
    record_property("figures", str(made))


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a child import what lies beside this file."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
