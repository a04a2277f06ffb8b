"""Importing the package is cheap and touches nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["torch", "optuna", "numpy", "torchvision", "pynvml", "psutil", "rich", "cloudpickle", "sqlalchemy"]


def loaded_after(code: str) -> list[str]:
    """Those of ``HEAVY`` that a fresh interpreter has loaded after running ``code``."""
    script = f"import sys, json\n{code}\nprint(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=100)
    names: list[str] = json.loads(done.stdout)
    return names


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Neither torch, optuna nor numpy is in ``sys.modules`` after ``import autotune``."""
    assert loaded_after("import autotune") == []


def test_looking_around_loads_nothing_heavy() -> None:
    """``dir`` and the plain records come without torch too."""
    assert loaded_after("import autotune; dir(autotune); autotune.Settings()") == []


def test_the_probe_itself_sees_what_is_loaded() -> None:
    """A module that is imported is reported, so the tests above can fail."""
    assert loaded_after("import autotune, psutil") == ["psutil"]
