"""The check for people with an accelerator runs as it is, in its tiny form, on any machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu" / "check.py"
NAMES = ["resnet50-in-memory", "resnet50-unpacked", "transformer-12"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    # The checkout under test, whether or not it is the one installed.
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=400, env=env)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_tiny_check_writes_one_file_of_all_it_saw(tmp_path: Path) -> None:
    """Each task is tuned and trained; the race, memory, rates, hardware and versions are in the file."""
    ended = run("--tiny", "--budget", "5", "--out", str(tmp_path / "seen.json"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert list(seen["workloads"]) == NAMES
    assert seen["versions"]["torch"]
    assert seen["hardware"]["torch"]
    for name, result in seen["workloads"].items():
        assert name in ended.stdout
        assert result["training"]["steps"] == 30
        assert result["training"]["samples_per_s"] > 0
        assert result["config"]["dataloader"]["batch_size"] > 0
        assert set(result["race"]) == {"speedup", "speedup_same_batch", "kept_baseline", "reason", "changed"}
        assert result["memory"]["free_before"]["ram_bytes"] > 0
        assert result["memory"]["free_after"]["ram_bytes"] > 0
        assert result["training"]["peak_bytes"]["ram_bytes"] > 0
        assert result["tuning"]["cuda_initialised_by_tuning"] is False


@pytest.mark.slow
def test_a_task_that_fails_is_in_the_file_and_in_the_exit_code(tmp_path: Path) -> None:
    """A budget that cannot be makes the run fail with its reason, not without a trace."""
    ended = run("--tiny", "--only", "transformer-12", "--budget", "-1", "--out", str(tmp_path / "seen.json"))
    assert ended.returncode == 1
    assert "FAILED" in ended.stdout
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert "time_budget_s" in seen["workloads"]["transformer-12"]["error"]
