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
    """Function name -> its docstring and its module's."""
    module = ast.parse(path.read_text())
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    return {one.name: f"{ast.get_docstring(module)}\n{ast.get_docstring(one)}" for one in functions}


def _named(report: str, text: str) -> bool:
    """Whether the text names the repository and the number, whether it calls it an issue or a pull request."""
    repository, _, number = report.partition("#")
    return repository in text and re.search(rf"#{number}\b", text) is not None


def test_the_table_is_read() -> None:
    """At least the first nine kinds, of six rows and more each."""
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
        assert [report for report in reports if not any(_named(report, text) for text in said)] == []
