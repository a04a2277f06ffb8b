"""What a caller asks of a search, as one digest: equal requests may share an answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from autotune.api.options import Options
from autotune.hardware import Hardware, Limits
from autotune.space import Candidates, Space
from autotune.task import Facts, Task

__all__ = ["request_digest", "request_of"]

_OF_CALL = (
    *("max_batch_size", "max_effective_batch_size", "lr_scaling", "weight_decay_scaling", "isolate"),
    "effective_batch_size",
)


def request_digest(call: Options, candidates: Candidates, task: Task) -> str:
    """Everything of a call that changes its answer, beside the task itself and the machine.

    Args:
        call: How to tune.
        candidates: What may be tried, and the baseline.
        task: What is trained.
    """
    rules: dict[str, Any] = {
        "baseline": candidates.baseline.to_json(),
        "base_batch_size": candidates.base_batch_size,
        **{name: getattr(call, name) for name in _OF_CALL},
        "memory_margin": float(call.memory_margin),
        "space": repr(candidates.space),
        "max_grad_norm": task.max_grad_norm,
        "deterministic": candidates.facts.deterministic,
    }
    if call.effective_batch_size == "keep":  # the same as its number
        rules["effective_batch_size"] = candidates.baseline.effective_batch_size
    text = json.dumps(rules, sort_keys=True, separators=(",", ":"), default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def request_of(task: Task, facts: Facts, hardware: Hardware, limits: Limits, options: Mapping[str, Any]) -> str:
    """The digest of a search that was run, as a later call computes it.

    Args:
        task: What was trained.
        facts: What was found out about it.
        hardware: Where.
        limits: Of that machine.
        options: As ``Options`` takes them.
    """
    call = Options(**options)
    return request_digest(
        call, Candidates.of(facts, hardware, limits, call.batch_rules(task), call.space or Space()), task
    )
