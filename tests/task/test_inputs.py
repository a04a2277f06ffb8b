"""How a batch becomes the call of a model."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from autotune.errors import TaskError
from autotune.task.inputs import Forward, ModelInputs, call_model, split_inputs

X, Z, Y = torch.zeros(4, 2), torch.ones(4, 3), torch.arange(4)


class One(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


class Two(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return a, b


class Language(nn.Module):
    def forward(self, input_ids: Any, mask: Any = None, labels: Any = None) -> Any:
        return input_ids, mask, labels


class Open(nn.Module):
    def forward(self, **batch: Any) -> Any:
        return batch


@dataclasses.dataclass
class Sample:
    input_ids: torch.Tensor
    labels: torch.Tensor


class Targeted(NamedTuple):
    target: torch.Tensor
    x: torch.Tensor


def split(model: nn.Module, batch: Any, *, keep_labels: bool = False) -> tuple[ModelInputs, Any]:
    return split_inputs(batch, forward=Forward.of(model), keep_labels=keep_labels)


def same(value: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return len(value) == len(expected) and all(map(same, value, expected))
    return value is expected


@pytest.mark.parametrize(
    ("batch", "args", "target"),
    [
        (X, (X,), None),
        ([X], (X,), None),
        ((X, Y), (X,), Y),
        ([X, Z, Y], (X, Z), Y),
        (((X, Z), Y), (X, Z), Y),
        ((X, (Y, Z)), (X,), (Y, Z)),
        (Targeted(Y, X), (X,), Y),
    ],
)
def test_sequences_go_in_by_position_and_the_last_is_the_target(batch: Any, args: Any, target: Any) -> None:
    """Nested tuples are spread; a lone tensor has no target; a named target is found by its name."""
    inputs, found = split_inputs(batch)
    assert same(inputs.args, args)
    assert same(found, target)
    assert inputs.kwargs == {}


def test_a_list_longer_than_the_model_takes_stays_one_argument() -> None:
    """Detectors take a list of images as their only input."""
    images = [torch.zeros(3, 4, 4)] * 4
    inputs, _ = split(One(), (images, Y))
    assert inputs.args == (images,)


@pytest.mark.parametrize("label", ["labels", "label", "target", "targets", "y"])
def test_mappings_go_in_by_name_without_the_label(label: str) -> None:
    """Every usual name of a target is taken out."""
    inputs, target = split_inputs({"input_ids": X, label: Y})
    assert set(inputs.kwargs) == {"input_ids"}
    assert target is Y


@pytest.mark.parametrize("batch", [{"input_ids": X, "labels": Y}, Sample(X, Y), ({"input_ids": X}, Y)])
def test_labels_are_kept_for_a_model_that_takes_them(batch: Any) -> None:
    """Whoever computes its own loss gets the target, in whatever form the batch has it."""
    inputs, target = split(Language(), batch, keep_labels=True)
    assert inputs.kwargs["labels"] is Y
    assert target is Y
    assert "labels" not in split(Language(), batch)[0].kwargs


def test_labels_never_go_to_a_model_that_does_not_take_them() -> None:
    """A plain forward gets its inputs only."""
    inputs, _ = split(One(), {"x": X, "labels": Y}, keep_labels=True)
    assert set(inputs.kwargs) == {"x"}


def test_required_labels_are_handed_over_even_beside_a_loss_function() -> None:
    """A decoder that needs the target to run gets it."""

    class Decoder(nn.Module):
        def forward(self, x: Any, target: Any) -> Any:
            return x, target

    inputs, target = split(Decoder(), (X, Y))
    assert same(inputs.args, (X,))
    assert inputs.kwargs == {"target": Y}
    assert target is Y


def test_keys_the_model_does_not_take_are_left_out_and_said() -> None:
    """An index or a path in the batch does not break the call."""
    inputs, _ = split(Language(), {"input_ids": X, "path": ["a"] * 4, "labels": Y})
    assert set(inputs.kwargs) == {"input_ids"}
    assert inputs.unused == ("path",)


def test_one_input_of_another_name_goes_in_by_position() -> None:
    """{"image": …} feeds forward(x)."""
    inputs, target = split(One(), {"image": X, "label": Y})
    assert same(inputs.args, (X,))
    assert target is Y


def test_a_model_of_whole_batches_gets_the_batch() -> None:
    """forward(batch) receives a mapping whose keys it does not name, labels and all."""
    batch = {"image": X, "mask": Z, "label": Y}
    inputs, _ = split(One(), batch)
    assert inputs.args == (batch,)


def test_a_nested_mapping_goes_in_by_name() -> None:
    """(inputs dict, target) is the same as named inputs."""
    inputs, target = split(Two(), ({"a": X, "b": Z}, Y))
    assert set(inputs.kwargs) == {"a", "b"}
    assert target is Y


def test_models_of_any_keyword_get_everything() -> None:
    """**kwargs take all keys."""
    inputs, _ = split(Open(), {"a": X, "b": Z, "labels": Y})
    assert set(inputs.kwargs) == {"a", "b"}


def test_an_empty_batch_is_an_error() -> None:
    """Nothing can be called with nothing."""
    with pytest.raises(TaskError, match="collate_fn"):
        split_inputs([])


def test_wrappers_are_looked_through() -> None:
    """DataParallel accepts what its module accepts."""
    assert Forward.of(nn.DataParallel(Language())).label == "labels"


def test_calls_accept_plain_values() -> None:
    """Tuples, mappings and single values call a model without splitting first."""
    assert same(call_model(Two(), (X, Z)), (X, Z))
    assert same(call_model(Two(), {"a": X, "b": Z}), (X, Z))
    assert call_model(One(), X) is X
    assert call_model(One(), ModelInputs(args=(X,))) is X


@pytest.mark.parametrize("rows", [1, 2])
def test_a_list_with_an_entry_per_sample_is_one_argument(rows: int) -> None:
    """A model of two arguments gets a list of one or two images as one, since the targets are such a list too."""

    class Detector(nn.Module):
        def forward(self, images: Any, targets: Any = None) -> Any:
            return images

    images, targets = (
        tuple(torch.ones(3, 8, 8) for _ in range(rows)),
        tuple({"boxes": torch.ones(1, 4)} for _ in range(rows)),
    )
    inputs, target = split_inputs((images, targets), forward=Forward.of(Detector()), keep_labels=True)
    assert inputs.args == (images,)
    assert inputs.kwargs == {"targets": targets}
    assert target is targets


def test_as_many_inputs_as_targets_are_not_taken_for_samples() -> None:
    """Two inputs and two targets of the same rows go in as two arguments."""
    inputs, _ = split_inputs(((torch.ones(5, 2), torch.ones(5, 3)), (torch.ones(5), torch.ones(5, 1))))
    assert len(inputs.args) == 2
