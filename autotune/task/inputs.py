"""How a batch becomes the call of a model: which part is the target, what goes in by position, what by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from autotune.errors import TaskError

__all__ = ["LABEL_KEYS", "Forward", "ModelInputs", "call_model", "split_inputs"]

LABEL_KEYS = ("labels", "label", "target", "targets", "y")
"""Names that mean the target, first match wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """Arguments of one call of a model."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    """Keys of the batch that the model's ``forward`` does not take, left out of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What ``model.forward`` accepts."""

    positional: tuple[str, ...]
    """Parameters that can be given by position, in order."""
    names: frozenset[str]
    """Parameters that can be given by name."""
    required: tuple[str, ...]
    """Parameters without a default."""
    any_positional: bool
    any_keyword: bool

    @classmethod
    def of(cls, model: nn.Module) -> Forward:
        """Read the signature of ``model.forward``, through wrappers such as ``DistributedDataParallel``."""
        try:
            parameters = inspect.signature(_innermost(model).forward).parameters.values()
        except (TypeError, ValueError):  # builtins and scripted modules have no signature: they may take anything
            return cls(positional=(), names=frozenset(), required=(), any_positional=True, any_keyword=True)
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return cls(
            positional=tuple(p.name for p in parameters if p.kind in by_position),
            names=frozenset(p.name for p in parameters if p.kind in by_name),
            required=tuple(p.name for p in parameters if p.kind in (*by_position, *by_name) and p.default is p.empty),
            any_positional=any(p.kind is p.VAR_POSITIONAL for p in parameters),
            any_keyword=any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    @property
    def label(self) -> str | None:
        """The parameter that takes the target, by its name."""
        return next((key for key in LABEL_KEYS if key in self.names), None)


def _innermost(model: nn.Module) -> nn.Module:
    for attribute in ("_orig_mod", "module"):
        inner = getattr(model, attribute, None)
        if isinstance(inner, nn.Module) and type(model).__module__.startswith(("torch.", "accelerate.")):
            return _innermost(inner)
    return model


def split_inputs(
    batch: Any, *, forward: Forward | None = None, keep_labels: bool = False
) -> tuple[ModelInputs, Any | None]:
    """Split a batch into the arguments of the model and the target.

    A mapping or dataclass goes in by name, its label key (``LABEL_KEYS``) being the target; of a tuple or list the
    last item is the target and the others go in by position (a nested tuple as ``*inputs``, a nested mapping as
    ``**inputs``); anything else is the only input and there is no target.

    Args:
        batch: What the loader yields.
        forward: What the model accepts; keys it does not take are left out, and a single input of another name
            goes in by position. Default: the model takes whatever the batch holds.
        keep_labels: Also hand the target to a model whose ``forward`` takes it (models that return their own loss).

    Returns:
        The arguments, and the target or None.

    Raises:
        TaskError: The batch is empty.
    """
    fields = _named_fields(batch)
    if fields is not None:
        return _split_named(fields, batch, forward, keep_labels)
    if isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence):
        return _split_sequence(batch, forward, keep_labels)
    return ModelInputs(args=(batch,)), None


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with what ``split_inputs`` gave.

    Args:
        model: Any callable.
        inputs: A ``ModelInputs``; a tuple goes in by position, a mapping by name, anything else as the only argument.

    Returns:
        The model's output.
    """
    if isinstance(inputs, ModelInputs):
        return model(*inputs.args, **inputs.kwargs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple) and not isinstance(inputs, PackedSequence):
        return model(*inputs)
    return model(inputs)


def _named_fields(batch: Any) -> dict[str, Any] | None:
    if isinstance(batch, Mapping):
        return dict(batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {item.name: getattr(batch, item.name) for item in dataclasses.fields(batch)}
    return None


def _split_named(
    fields: dict[str, Any], batch: Any, forward: Forward | None, keep_labels: bool
) -> tuple[ModelInputs, Any | None]:
    label = next((key for key in LABEL_KEYS if key in fields), None)
    if label is None:
        return _named_inputs(fields, batch, forward), None
    target = fields[label]
    if not _takes_label(label, forward, keep_labels):
        fields = {key: value for key, value in fields.items() if key != label}
    return _named_inputs(fields, batch, forward), target


def _takes_label(label: str, forward: Forward | None, keep_labels: bool) -> bool:
    if forward is None:
        return keep_labels
    if label in forward.names:
        return keep_labels or label in forward.required
    return keep_labels and forward.any_keyword


def _named_inputs(fields: dict[str, Any], batch: Any, forward: Forward | None) -> ModelInputs:
    if forward is None or forward.any_keyword or set(fields) <= forward.names:
        return ModelInputs(kwargs=fields)
    accepted = {key: value for key, value in fields.items() if key in forward.names}
    if accepted and set(forward.required) <= set(accepted):
        return ModelInputs(kwargs=accepted, unused=tuple(sorted(map(str, set(fields) - set(accepted)))))
    if len(forward.required) <= 1 and not accepted and forward.positional:
        # forward(x) with {"image": …} gets the image; forward(batch) with several keys gets the batch as it is.
        return ModelInputs(args=tuple(fields.values()) if len(fields) == 1 else (batch,))
    return ModelInputs(kwargs=fields)


def _split_sequence(
    batch: tuple[Any, ...] | list[Any], forward: Forward | None, keep_labels: bool
) -> tuple[ModelInputs, Any | None]:
    if not batch:
        raise TaskError("The loader yields an empty tuple or list as a batch.", "Check the dataset and collate_fn.")
    if len(batch) == 1:  # TensorDataset(x) yields [x]
        return split_inputs(batch[0], forward=forward, keep_labels=keep_labels)
    at = _target_index(batch)
    inputs = _positional_inputs([*batch[:at], *batch[at + 1 :]], batch[at], forward)
    label = forward.label if forward is not None else None
    if forward is not None and label is not None and label not in inputs.kwargs:
        free = label not in forward.positional[: len(inputs.args)]
        if free and (keep_labels or label in forward.required):
            inputs = dataclasses.replace(inputs, kwargs={**inputs.kwargs, label: batch[at]})
    return inputs, batch[at]


def _target_index(batch: Any) -> int:
    names = getattr(batch, "_fields", ())
    found = next((key for key in LABEL_KEYS if key in names), None)
    return len(batch) - 1 if found is None else names.index(found)


def _positional_inputs(values: list[Any], target: Any, forward: Forward | None) -> ModelInputs:
    only = values[0] if len(values) == 1 else None
    fields = _named_fields(only)
    if fields is not None:
        return _named_inputs(fields, only, forward)
    if isinstance(only, (tuple, list)) and not isinstance(only, PackedSequence) and _takes_all(only, target, forward):
        return ModelInputs(args=tuple(only))
    return ModelInputs(args=tuple(values))


def _takes_all(values: Any, target: Any, forward: Forward | None) -> bool:
    # A model that takes fewer arguments than the nested list has items takes the list itself (images of a detector).
    if _one_per_sample(values, target):
        return False
    return forward is None or forward.any_positional or len(values) <= len(forward.positional)


def _one_per_sample(values: Any, target: Any) -> bool:
    """Whether inputs and target are lists with an entry per sample, and not several inputs and targets of all rows."""
    if not isinstance(target, (tuple, list)) or len(target) != len(values):
        return False
    return len({tuple(getattr(item, "shape", ()))[:1] for item in (*values, *target)}) > 1
