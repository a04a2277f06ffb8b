"""Batches of any shape."""

from __future__ import annotations

import collections
import dataclasses
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from autotune.errors import TaskError
from autotune.task.batches import batch_bytes, batch_rows, batch_signature, batch_tensors, to_device

META = torch.device("meta")


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Record:
    image: torch.Tensor
    label: torch.Tensor
    made: list[int] = dataclasses.field(default_factory=list, init=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    image: torch.Tensor
    name: str


class Encoding(collections.UserDict[str, Any]):
    """A mapping with its own ``to`` that works in place, as tokenizers return."""

    def __init__(self, data: dict[str, Any] | None = None, note: str = "") -> None:
        super().__init__(data)
        self.note = note

    def to(self, device: Any, *, non_blocking: bool = False) -> Encoding:
        self.data = {key: value.to(device, non_blocking=non_blocking) for key, value in self.data.items()}
        return self


class NamedList(list[Any]):
    name = "unset"


class Graph:
    """An object batch that moves itself and counts its graphs."""

    def __init__(self, x: torch.Tensor, num_graphs: int) -> None:
        self.x = x
        self.num_graphs = num_graphs

    def to(self, device: Any) -> Graph:
        return Graph(self.x.to(device), self.num_graphs)


def image(rows: int = 6) -> torch.Tensor:
    return torch.zeros(rows, 3, 4, 4)


def label(rows: int = 6) -> torch.Tensor:
    return torch.zeros(rows, dtype=torch.int64)


@pytest.mark.parametrize(
    "batch",
    [
        image(),
        [image(), label()],
        (image(), label()),
        Pair(image(), label()),
        {"image": image(), "label": label()},
        collections.OrderedDict(image=image(), label=label()),
        MappingProxyType({"image": image()}),
        Encoding({"image": image()}),
        Record(image(), label()),
        SlotRecord(image=image(), name="a"),
        NamedList([image(), label()]),
        [[image(), image()], {"deep": (label(), ["a"] * 6)}],
        {"ids": image(), "text": ["t"] * 6, "n": 3, "none": None},
        Graph(torch.zeros(40, 2), 6),
        pack_sequence([torch.zeros(3, 2)] * 6),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_every_kind_of_batch_keeps_its_type_and_rows_when_moved(batch: Any) -> None:
    """Moving changes the device of all tensors, and neither the containers' types nor the batch handed over."""
    before = batch_signature(batch)

    moved = to_device(batch, META)

    assert type(moved) is type(batch)
    assert batch_rows(batch) == 6
    assert batch_signature(moved) == before == batch_signature(batch)
    assert batch_tensors(moved)
    assert all(tensor.device == META for tensor in batch_tensors(moved))
    assert all(tensor.device.type == "cpu" for tensor in batch_tensors(batch))


def test_containers_keep_their_attributes_when_moved() -> None:
    """Subclasses of list and dict, and fields outside a dataclass's constructor, keep what they carry."""
    named = NamedList([image()])
    named.name = "mine"
    record = Record(image(), label())
    record.made.append(7)

    assert to_device(named, META).name == "mine"
    assert to_device(Encoding({"image": image()}, note="mine"), META).note == "mine"
    assert to_device(record, META).made == [7]


def test_mapping_attributes_that_shadow_nothing_survive_a_default_dict() -> None:
    """A defaultdict keeps its factory."""
    batch = collections.defaultdict(list, image=image())
    assert to_device(batch, META).default_factory is list


def test_a_container_that_cannot_be_rebuilt_is_named() -> None:
    """A tuple subclass with another constructor gives one clear error."""

    class Odd(tuple[Any, ...]):
        def __new__(cls, first: Any, second: Any) -> Odd:
            return super().__new__(cls, (first, second))

    with pytest.raises(TaskError, match="Odd"):
        to_device(Odd(image(), label()), META)


def test_channels_last_touches_only_floating_tensors_of_four_dimensions() -> None:
    """Labels, integer images and volumes keep their memory format."""
    batch = {"x": torch.rand(2, 3, 4, 4), "u": torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "v": torch.rand(2, 3, 4)}
    batch["volume"] = torch.rand(2, 3, 4, 4, 4)

    moved = to_device(batch, "cpu", channels_last=True)

    assert moved["x"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(moved["x"], batch["x"])
    assert moved["u"] is batch["u"]
    assert moved["v"] is batch["v"]
    assert moved["volume"] is batch["volume"]
    assert batch["x"].is_contiguous()


def test_rows_of_lists_with_one_entry_per_sample() -> None:
    """Detection batches count images, not channels or boxes."""
    images = tuple(torch.zeros(3, 4 + size, 5) for size in range(5))
    targets = tuple({"boxes": torch.zeros(size, 4), "labels": torch.zeros(size)} for size in range(5))
    assert batch_rows((images, targets)) == 5
    assert batch_rows({"images": torch.zeros(5, 3, 8, 8), "targets": list(targets)}) == 5
    assert batch_rows([images, [1, 2, 3, 4, 5]]) == 5


def test_the_first_tensor_decides_where_fields_disagree() -> None:
    """A table that belongs to the whole batch does not change the count; scalars are passed over."""
    assert batch_rows([torch.tensor(2.0), image(6), torch.zeros(9, 2)]) == 6


def test_a_batch_without_anything_to_count_is_an_error() -> None:
    """Rows are never guessed."""
    with pytest.raises(TaskError, match="collate_fn"):
        batch_rows(object())


def test_bytes_are_those_of_all_tensors() -> None:
    """Nested tensors count, other values do not."""
    assert batch_bytes({"a": torch.zeros(2, 3), "b": [torch.zeros(4, dtype=torch.uint8), "text"]}) == 28
    assert batch_bytes("text") == 0


def test_the_signature_does_not_depend_on_the_number_of_rows() -> None:
    """Batches of 4 and 6 have one signature; another width, type or container has another."""
    assert batch_signature([image(4), label(4)]) == batch_signature([image(6), label(6)])
    assert batch_signature([image(), label()]) == "list(float32[*,3,4,4], int64[*])"
    assert batch_signature((image(), label())) != batch_signature([image(), label()])
    assert batch_signature({"x": torch.zeros(4, 5)}) != batch_signature({"x": torch.zeros(4, 6)})


def test_the_signature_of_per_sample_lists_names_one_sample() -> None:
    """A list of images of unequal sizes is one line however many there are."""
    images = [torch.zeros(3, 4 + size, 5) for size in range(5)]
    assert batch_signature((images, ["a"] * 5)) == "tuple(list(* x float32[3,?,5]), list(* x str))"
