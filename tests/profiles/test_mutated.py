"""Damaged files: our error or a valid config, never a crash, nothing lost."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "mutated_profiles.py"


def test_mutated_files_load_validly_or_give_our_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundred of the ten thousand that the benchmark loads; it raises at anything else."""
    spec = importlib.util.spec_from_file_location("mutated_profiles", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutated_profiles", script)
    spec.loader.exec_module(script)
    assert script.main(["--count", "300", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert " loaded" in said
    assert " our error" in said
    assert " kept aside" in said
