"""The rate that the benchmark of the integrations reports, on a clock of its own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_FILE = Path(__file__).parent.parent / "benchmarks" / "integrations.py"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark as a module; the path it adds is taken away again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("benchmark_integrations", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rate_is_that_of_steady_groups(benchmark: ModuleType) -> None:
    """A slow start is left out; each chunk is samples over its own seconds, until there are enough."""
    chunks = benchmark.Chunks(rows=32, seconds=1.0, rounds=2, warm_up_s=3.0)
    now, ends = 0.0, []
    for group in range(60):
        now += 1.0 if group < 4 else 0.125
        ends.append(chunks.update(now))
    assert chunks.rates[:2] == pytest.approx([256.0, 256.0])
    assert ends.index(True) == 3 + 16
