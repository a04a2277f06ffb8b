"""Which part of a task differs from another's."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from autotune.task import Facts, Task, resolve_loss, task_identity
from autotune.task.parts import differing_parts, in_words, known_parts


class Rows(torch.utils.data.Dataset[Any]):
    """Nothing but an attribute."""

    def __init__(self, size: int, rows: int = 9) -> None:
        self.size = size
        self._rows = rows

    def __len__(self) -> int:
        return self._rows


def data(rows: int = 12) -> TensorDataset:
    """Labelled noise."""
    return TensorDataset(torch.rand(rows, 4), torch.zeros(rows, dtype=torch.int64))


def net(activation: Any = nn.ReLU, width: int = 8, dropout: float = 0.1) -> nn.Module:
    """A small one."""
    return nn.Sequential(nn.Linear(4, width), activation(), nn.Dropout(dropout), nn.Linear(width, 2))


def parts(model: nn.Module | None = None, dataset: Any = None, batch: Any = None, **options: Any) -> dict[str, str]:
    """Of a task."""
    model = net() if model is None else model
    batch = [torch.zeros(3, 4), torch.zeros(3)] if batch is None else batch
    task = Task(model, data() if dataset is None else dataset, **options)
    return dict(task_identity(task, model, batch).parts)


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (
            {"model": net(nn.Tanh)},
            {"model": net(nn.Sigmoid)},
            "model structure: 2 Linear, 1 Sequential, 1 Tanh, 1 Dropout there, ",
        ),
        ({}, {"model": net(dropout=0.2)}, "options of the model's modules differ"),
        ({"dataset": Rows(3)}, {"dataset": Rows(4)}, "dataset: Rows, with other code or options"),
        ({"dataset": Rows(3)}, {"dataset": Rows(3, rows=8)}, "samples per epoch: 9 there, 8 here"),
        ({}, {"collate_fn": lambda samples: samples}, "collate_fn: none there, <lambda> here"),
        (
            {"loss_fn": functional.cross_entropy},
            {"loss_fn": nn.CrossEntropyLoss()},
            "loss_fn: cross_entropy there, CrossEntropyLoss here",
        ),
        ({}, {"batch": [torch.zeros(3, 5), torch.zeros(3)]}, "batch: list(float32[*,4], float32[*]) there, "),
        (
            {"optimizer": torch.optim.SGD},
            {"optimizer": torch.optim.Adam},
            "optimizer: torch.optim.SGD there, torch.optim.Adam here",
        ),
    ],
)
def test_the_part_that_differs_is_named_alone(one: dict[str, Any], other: dict[str, Any], named: str) -> None:
    """In words that say how, where its name tells."""
    (found,) = differing_parts(parts(**one), parts(**other))
    assert str(found).startswith(named)
    json.dumps(found.to_json(), allow_nan=False)
    assert differing_parts(parts(**one), parts(**one)) == ()


def test_a_wider_layer_is_another_shape_and_other_options() -> None:
    """Of modules of the same kinds."""
    found = [one.part for one in differing_parts(parts(), parts(net(width=9)))]
    assert found == ["model_parameters", "model_options"]


def test_facts_hold_the_parts_and_survive_json() -> None:
    """As the fingerprint was taken; those of a release without parts tell what they can."""
    model, loader = net(), DataLoader(data(), batch_size=4)
    task = Task(model, loader, loss_fn=nn.CrossEntropyLoss(), device="cpu")
    batch = next(iter(loader))
    loss = resolve_loss(loss_fn=task.loss_fn, model=model, batch=batch)
    facts = Facts.of(task, model, task.data, batch, loss, "cpu")
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))).identity == facts.identity
    old = {name: value for name, value in facts.to_json().items() if name != "fingerprint_parts"}
    before = Facts.from_json(old).identity
    assert before.fingerprint == facts.fingerprint
    assert differing_parts(before.parts, facts.identity.parts) == ()
    assert set(before.parts) == {"samples", "batch", "optimizer"}


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    """Neither a fault nor an empty bracket."""
    assert "cannot be told" in in_words(differing_parts({}, parts()))
    assert known_parts({"fingerprint_parts": {"batch": 3, "dataset": "x"}}) == {"dataset": "x"}
    assert known_parts({"fingerprint_parts": "damaged"}) == {}
