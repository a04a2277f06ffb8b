"""Outputs without their graph."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import torch

from autotune.build.output import detached

Pair = namedtuple("Pair", ["first", "second"])


class ModelOutput(OrderedDict[str, Any]):
    """As Hugging Face's: keys are attributes too, and ``update`` is refused."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)

    def update(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("not for a ModelOutput")


def test_tensors_in_containers_lose_their_graph_and_keep_their_structure() -> None:
    """Lists, tuples, named tuples, dicts and Hugging Face outputs come back as what they were."""
    tensor = torch.ones(2, requires_grad=True) * 2
    own = ModelOutput()
    own["logits"] = tensor
    found = detached({"a": [tensor, 1], "b": (tensor,), "c": Pair(tensor, "x"), "d": own, "e": None})
    assert type(found["c"]) is Pair
    assert type(found["d"]) is ModelOutput
    leaves = [found["a"][0], found["b"][0], found["c"].first, found["d"]["logits"], found["d"].logits]
    assert not any(leaf.requires_grad for leaf in leaves)
    assert all(leaf.data_ptr() == tensor.data_ptr() for leaf in leaves)
    assert (found["a"][1], found["c"].second, found["e"]) == (1, "x", None)
    assert own.logits.requires_grad


def test_other_objects_come_back_as_they_are() -> None:
    """What is not understood is not touched."""
    thing = object()
    assert detached(thing) is thing
