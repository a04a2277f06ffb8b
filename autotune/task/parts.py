"""The parts of a task's fingerprint, each in words and with a hash of its own: which of them differs between two tasks.

A part is one text: what it is called, and behind it in brackets a hash of its code and options where these count. Equal
texts are equal parts, whichever process or release wrote them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["PartDifference", "differing_parts", "in_words", "known_parts", "model_parts", "part_text"]

_HASH = re.compile(r" ?\[[0-9a-f]{16}\]$")
_LABELS: Mapping[str, str] = {
    "model_modules": "model structure",
    "model_parameters": "parameter shapes",
    "model_options": "options of the model's modules",
    "dataset": "dataset",
    "samples": "samples per epoch",
    "collate_fn": "collate_fn",
    "sampler": "sampler",
    "batch_sampler": "batch_sampler",
    "batch": "batch",
    "loss_fn": "loss_fn",
    "training_step": "training_step",
    "optimizer": "optimizer",
}
_KINDS = 6  # of modules that are named
_UNTOLD = "which part of it cannot be told, for it was stored without them"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDifference:
    """One part in which two tasks differ."""

    part: str
    """Such as ``dataset`` or ``model_modules``."""
    there: str
    """What it is in the task that was tuned."""
    here: str
    """What it is in this one; where both are called the same, code or options differ."""

    @property
    def only_inside(self) -> bool:
        """Both are called the same: their code or options differ."""
        return self.there == self.here

    def __str__(self) -> str:
        label = _LABELS.get(self.part, self.part)
        if self.only_inside:
            return f"{label}: {self.here}, with other code or options" if self.here else f"{label} differ"
        return f"{label}: {self.there} there, {self.here} here"

    def to_json(self) -> dict[str, Any]:
        """JSON scalars."""
        return {"part": self.part, "there": self.there, "here": self.here, "only_code_or_options": self.only_inside}


def part_text(shown: str, *content: Any) -> str:
    """A part in words, with a hash of what it is made of.

    Args:
        shown: What it is called.
        content: JSON values that its name does not tell; none: the name is all there is.
    """
    if not content:
        return shown
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return f"{shown} [{digest[:16]}]"


def model_parts(model: nn.Module, modules: Sequence[Sequence[Any]]) -> dict[str, str]:
    """What a model is: its modules, their tensors, and their options.

    Args:
        model: The model.
        modules: Name, type, ``extra_repr``, parameters, buffers and attributes of each, as the fingerprint has them.
    """
    kinds = Counter(type(module).__qualname__ for module in model.modules()).most_common()
    named = ", ".join(f"{count} {name}" for name, count in kinds[:_KINDS])
    elements = sum(parameter.numel() for parameter in model.parameters())
    return {
        "model_modules": part_text(f"{named}{', …' * (len(kinds) > _KINDS)}", [module[:2] for module in modules]),
        "model_parameters": part_text(f"{elements:,} elements", [[one[0], *one[3:5]] for one in modules]),
        "model_options": part_text("", [[one[0], one[2], one[5]] for one in modules]),
    }


def known_parts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The parts that a task's facts tell, also those of a release that did not keep them.

    Args:
        facts: As ``Facts.to_json`` gives them, or from a file.
    """
    kept = facts.get("fingerprint_parts")
    if isinstance(kept, Mapping) and kept:
        return {str(part): text for part, text in kept.items() if isinstance(text, str)}
    told = {"samples": "samples", "batch": "batch_signature", "optimizer": "optimizer_name"}
    return {part: str(facts[name]) for part, name in told.items() if name in facts}


def differing_parts(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[PartDifference, ...]:
    """The parts in which two tasks differ, as far as both are known.

    Args:
        there: Of the task that was tuned.
        here: Of this one.
    """
    return tuple(
        PartDifference(part=part, there=_HASH.sub("", there[part]), here=_HASH.sub("", here[part]))
        for part in here
        if part in there and there[part] != here[part]
    )


def in_words(differences: Sequence[PartDifference]) -> str:
    """One clause that names them all.

    Args:
        differences: Of two tasks whose fingerprints differ.
    """
    return "; ".join(map(str, differences)) or _UNTOLD
