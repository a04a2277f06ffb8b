"""Two processes, one store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_two_processes_that_retune_into_one_store_both_land() -> None:
    """Six alternating re-tunes each, into a folder and into one file: every result and every line is there."""
    command = [sys.executable, str(ROOT / "benchmarks" / "profile_store.py"), "--rounds", "6"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("6 re-tunes, 0 lost") == 2
