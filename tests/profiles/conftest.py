"""A good config document, and variants of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_DATA = Path(__file__).parents[1] / "config" / "data" / "version_1.json"

RECORD: dict[str, Any] = {
    "cores": 4,
    "cpu_model": "Example CPU",
    "torch": "2.14.1+cpu",
    "cuda": None,
    "cudnn": None,
    "accelerator": None,
}
"""The part of a machine's record that decides about speed."""


@pytest.fixture
def record() -> dict[str, Any]:
    """Of a machine, what decides about speed."""
    return dict(RECORD)


@pytest.fixture
def document() -> dict[str, Any]:
    """As ``TunedConfig.save`` once wrote it."""
    loaded: dict[str, Any] = json.loads(_DATA.read_text("utf-8"))
    return loaded


@pytest.fixture
def made(document: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """``made(task, machine, number, **hardware)``: a document of a task on a machine, told apart by a number."""

    def make(task: str = "t", machine: str = "m", number: int = 0, **hardware: Any) -> dict[str, Any]:
        one = copy.deepcopy(document)
        one["task"] |= {"name": f"task {task}", "fingerprint": f"sha256:{task}"}
        one["facts"]["fingerprint"] = f"sha256:{task}"
        one["hardware"] = {**one["hardware"], **RECORD, **hardware, "fingerprint": f"sha256:{machine}"}
        one["evidence"]["trials"] = number
        return one

    return make
