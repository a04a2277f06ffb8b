"""The table of reports in ``tests/README.md`` is true: its tests exist and name their reports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROW = re.compile(r"^\|(?P<reports>[^|]*#\d[^|]*)\|(?P<tests>[^|]*)\|(?P<note>[^|]*)\|$", re.MULTILINE)
ROWS = [
    (re.findall(r"[\w.-]+/[\w.-]+#\d+", row["reports"]), re.findall(r"`([^`]+)`", row["tests"]), row["note"].strip())
    for row in ROW.finditer((TESTS / "README.md").read_text())
]


def _docstrings(path: Path) -> dict[str, str]:
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return {function.name: ast.get_docstring(function) or "" for function in functions}


def test_the_table_is_read() -> None:
    """At least the first nine kinds, of seven rows and more each."""
    assert len(ROWS) >= 80


@pytest.mark.parametrize(("reports", "tests", "note"), ROWS, ids=[row[0][0] for row in ROWS])
def test_every_row_has_its_tests_or_says_why_not(reports: list[str], tests: list[str], note: str) -> None:
    """Each test exists, and each report stands in the docstring of one of them; a row without any has a note."""
    assert tests or note
    said = []
    for test in tests:
        name, _, function = test.partition("::")
        found = _docstrings(TESTS / name)
        assert function in found, test
        said.append(found[function])
    if tests:
        assert [report for report in reports if not any(report in text for text in said)] == []
