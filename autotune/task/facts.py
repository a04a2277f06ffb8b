"""What is worth knowing about a task once it has run a batch: plain data that crosses to the parent as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autotune.errors import ConfigError
from autotune.task.batches import batch_bytes, batch_rows, batch_signature, batch_tensors
from autotune.task.fingerprint import TaskIdentity, task_identity
from autotune.task.layers import has_channels_last_weights, has_compiled_parts, repeated_blocks
from autotune.task.loader_parts import LoaderParts
from autotune.task.loss import ResolvedLoss
from autotune.task.optimizer_spec import OptimizerSpec, constructor_parameters
from autotune.task.parts import known_parts
from autotune.task.rng import rng_kept
from autotune.task.samples import stacking_refusal
from autotune.task.scan import may_differ
from autotune.task.sharding import one_worker_only
from autotune.task.task import Task
from autotune.task.workers import sharing_warnings, start_method, worker_copy_bytes, workers_refused

__all__ = ["Facts"]

_FUSED_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia")
_SHOWN = 3
_FOREACH_DEVICES = ("cpu", "cuda", "xpu", "mps", "mtia")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about a task."""

    samples: int | None
    """Per epoch; None for streams of unknown length."""
    iterable: bool
    batches_kept: str | None
    """Why the batch size is not ours to choose; None where it is."""
    loader: dict[str, Any]
    """The data's own loader settings as JSON scalars, ``given`` telling whether they are a user's DataLoader's."""
    batch_signature: str
    sample_bytes: int
    """Bytes of one sample's tensors in a batch, rounded up."""
    parameters: int
    """Elements of all parameters, trainable or not."""
    parameter_bytes: int
    model_dtype: str
    """Of most floating parameters, such as ``float32``."""
    has_conv_4d: bool
    """channels_last can matter: convolutions with 4-D weights and none with 5-D."""
    has_batch_norm: bool
    deterministic: bool
    """``torch.use_deterministic_algorithms`` is on."""
    loss: str
    loss_inferred: bool
    optimizer_name: str
    optimizer_kwargs: dict[str, Any]
    """JSON values of the class's own constructor arguments."""
    optimizer_groups: list[dict[str, Any]]
    """Per group its JSON options, ``lr`` and any ``initial_lr`` among them."""
    optimizer_implementations: tuple[str, ...]
    """Supported by constructor and device, of ``for-loop``, ``foreach`` and ``fused``."""
    optimizer_implementation_now: str | None
    """None: torch's default."""
    optimizer_assumed: bool
    workers_refused: str | None
    """Why ``num_workers > 0`` cannot work; None where it can."""
    caller: dict[str, Any]
    """Flags of the process that asked: threads, precision, start method."""
    fingerprint: str
    reduction: Literal["mean", "sum"] = "mean"
    """Whether the loss is the mean or the sum over the samples of a batch."""
    one_worker_only: str | None = None
    """Why this stream may have one worker at most; None for map-style data and streams that shard themselves."""
    batch_tensors: int = 0
    """Tensors in a batch, whatever its size."""
    sample_tensors: int = 0
    """Tensors that each sample adds to a batch, where a collate function leaves samples apart."""
    worker_copy_bytes: int = 0
    """Of the dataset, that each worker holds for itself."""
    warnings: tuple[str, ...] = ()
    """Sentences for the user: what is likely not meant, or could not be found out."""
    has_repeated_blocks: bool = False
    """Blocks that occur more than once: they can be compiled, and their activations recomputed, one by one."""
    has_compiled_parts: bool = False
    """Submodules are results of ``torch.compile``."""
    has_set_epoch: bool = False
    """The dataset is told of each epoch, which workers kept from one epoch to the next would not hear."""
    ragged: bool = False
    """Batches may differ in size: a collate function of the user's own makes them, or they hold texts."""
    order_kept: str | None = None
    """Why samples cannot be put into batches in another order; None where they can."""
    fingerprint_parts: dict[str, str] = dataclasses.field(default_factory=dict)
    """What goes into ``fingerprint``, part by part, for people and to say what differs."""

    @classmethod
    def of(
        cls,
        task: Task,
        model: nn.Module,
        data: LoaderParts,
        batch: Any,
        loss: ResolvedLoss,
        device: torch.device | str,
        *,
        rows: int | None = None,
    ) -> Facts:
        """Gather the facts; nothing is changed, no random number drawn.

        Args:
            task: The task.
            model: Its model, built.
            data: Its data, resolved.
            batch: One batch, as the loader yields it.
            loss: The settled loss.
            device: Where it will be trained.
            rows: Samples that were asked for in ``batch``; None: not known.

        Returns:
            The facts.

        Raises:
            TaskError: The optimizer callable failed, or the number of rows in a batch cannot be told.
        """
        device = torch.device(device)
        with rng_kept(device):
            spec = task.optimizer.resolve(model)
        expected, rows = rows, batch_rows(batch, rows)
        identity = task_identity(task, model, batch, data=data, rows=expected)
        return cls(
            **_data_facts(data, batch, rows),
            **_model_facts(model),
            **_optimizer_facts(spec, model, device),
            **_tensor_counts(batch, expected or rows),
            batch_signature=batch_signature(batch, expected),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            loss=loss.description,
            loss_inferred=loss.inferred,
            reduction=loss.reduction,
            caller={**_caller(data), **task.trains_with},
            fingerprint=identity.fingerprint,
            fingerprint_parts=dict(identity.parts),
            warnings=(*task.notes, *loss.notes, *sharing_warnings(data), *_untrained(task, spec, model)),
        )

    @property
    def identity(self) -> TaskIdentity:
        """The task as it was fingerprinted; of a release that kept no parts, as far as the facts tell them."""
        return TaskIdentity(fingerprint=self.fingerprint, parts=known_parts(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """JSON scalars, lists and dicts; no NaN. Parts that a file from before did not have are not written."""
        lists = {"optimizer_implementations": list(self.optimizer_implementations), "warnings": list(self.warnings)}
        values = {**dataclasses.asdict(self), **lists}
        return values if self.fingerprint_parts else {key: values[key] for key in values if key != "fingerprint_parts"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """The facts ``to_json`` wrote, also that of a release which did not know the fields that have a default.

        Args:
            data: What ``to_json`` gave.

        Returns:
            Equal facts.

        Raises:
            ConfigError: A field is missing or unknown.
        """
        names = {item.name for item in dataclasses.fields(cls)}
        if isinstance(data, Mapping):
            data = {**_OPTIONAL, "fingerprint_parts": {}, **data}
        if not isinstance(data, Mapping) or set(data) != names:
            odd = sorted(names ^ set(data)) if isinstance(data, Mapping) else [type(data).__name__]
            raise ConfigError(f"The facts of a task do not have the fields they must have: {', '.join(odd)}.", "")
        fields = dict(data)
        for name in ("optimizer_implementations", "warnings"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


_OPTIONAL = {item.name: item.default for item in dataclasses.fields(Facts) if item.default is not dataclasses.MISSING}


def _untrained(task: Task, spec: OptimizerSpec, model: nn.Module) -> Iterator[str]:
    """Parameters that the optimizer leaves as they are."""
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    held = {name for names, _ in spec.groups for name in names} if spec.groups else set(trainable)
    left = [name for name in trainable if name not in held]
    if left:
        more = ", …" if len(left) > _SHOWN else ""
        yield (
            f"The optimizer does not hold {len(left)} of the {len(trainable)} trainable parameters, which stay as they "
            f"are: {', '.join(left[:_SHOWN])}{more}."
        )
    own = task.loss_fn.parameters() if isinstance(task.loss_fn, nn.Module) else ()
    held_by_model = {id(parameter) for parameter in model.parameters()}
    if any(parameter.requires_grad and id(parameter) not in held_by_model for parameter in own):
        yield "loss_fn has parameters of its own, which nothing trains: make it a submodule of the model."


def _batches_kept(data: LoaderParts, rows: int) -> str | None:
    # Samples of unequal sizes make batches of one without anyone noticing.
    return data.batches_kept or (stacking_refusal(data) if rows == 1 and data.samples != 1 else None)


def _tensor_counts(batch: Any, rows: int) -> dict[str, Any]:
    tensors = list(batch_tensors(batch))
    stacked = any(tensor.ndim and tensor.shape[0] == rows for tensor in tensors)
    if stacked or len(tensors) < rows:
        return {"batch_tensors": len(tensors), "sample_tensors": 0}
    return {"batch_tensors": 0, "sample_tensors": math.ceil(len(tensors) / max(1, rows))}


def _data_facts(data: LoaderParts, batch: Any, rows: int) -> dict[str, Any]:
    refused = workers_refused(data, batch)
    return {
        "samples": data.samples,
        "iterable": data.iterable,
        "batches_kept": _batches_kept(data, rows),
        "loader": data.to_json(),
        "sample_bytes": math.ceil(batch_bytes(batch) / max(1, rows)),
        "workers_refused": refused,
        "one_worker_only": None if refused else one_worker_only(data),
        "worker_copy_bytes": 0 if refused else worker_copy_bytes(data),
        "ragged": may_differ(data, batch),
        "order_kept": data.order_kept,
        "has_set_epoch": callable(getattr(data.dataset, "set_epoch", None)),
    }


def _model_facts(model: nn.Module) -> dict[str, Any]:
    parameters = list(model.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "parameter_bytes": sum(parameter.nbytes for parameter in parameters),
        "model_dtype": _main_dtype(parameters),
        "has_conv_4d": has_channels_last_weights(model),
        "has_batch_norm": any(isinstance(module, _BatchNorm) for module in model.modules()),
        "has_repeated_blocks": bool(repeated_blocks(model)),
        "has_compiled_parts": has_compiled_parts(model),
    }


def _optimizer_facts(spec: OptimizerSpec, model: nn.Module, device: torch.device) -> dict[str, Any]:
    groups: list[dict[str, Any]] = [options for _, options in spec.groups] or [dict(spec.defaults)]
    return {
        "optimizer_name": spec.name,
        "optimizer_kwargs": _json_values(spec.constructor_kwargs()),
        "optimizer_groups": [_json_values(group) for group in groups],
        "optimizer_implementations": _implementations(spec, model, device),
        "optimizer_implementation_now": _implementation_now(groups),
        "optimizer_assumed": spec.assumed,
    }


def _implementations(spec: OptimizerSpec, model: nn.Module, device: torch.device) -> tuple[str, ...]:
    if spec.unknown_argument is not None:  # another implementation means another construction
        return ()
    accepted = constructor_parameters(spec.cls) if spec.cls is not None else frozenset()
    options = [options for _, options in spec.groups] or [spec.defaults]
    if any(group.get("differentiable") for group in options):
        return ()
    found = ["for-loop"] if "foreach" in accepted else []
    tensor_lr = any(isinstance(group.get("lr"), torch.Tensor) and not group.get("capturable") for group in options)
    if "foreach" in accepted and device.type in _FOREACH_DEVICES and not tensor_lr:
        found.append("foreach")
    floating = all(parameter.is_floating_point() for parameter in model.parameters() if parameter.requires_grad)
    sparse = any(getattr(module, "sparse", False) is True for module in model.modules())  # gradients of embeddings
    if "fused" in accepted and device.type in _FUSED_DEVICES and floating and not sparse:
        found.append("fused")
    return tuple(found)


def _implementation_now(groups: list[dict[str, Any]]) -> str | None:
    if any(group.get("fused") for group in groups):
        return "fused"
    flags = {group.get("foreach") for group in groups}
    if True in flags:
        return "foreach"
    return "for-loop" if False in flags else None


def _json_values(options: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: _json_value(value) for key, value in options.items()}
    return {key: value for key, value in values.items() if value is not _NOT_JSON}


_NOT_JSON = object()


def _json_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_JSON
    if isinstance(value, (list, tuple)):
        items = [_json_value(item) for item in value]
        return _NOT_JSON if any(item is _NOT_JSON for item in items) else items
    return _NOT_JSON


def _main_dtype(parameters: list[nn.Parameter]) -> str:
    elements: dict[str, int] = {}
    for parameter in parameters:
        if parameter.is_floating_point():
            name = str(parameter.dtype).removeprefix("torch.")
            elements[name] = elements.get(name, 0) + parameter.numel()
    return max(elements, key=lambda name: elements[name]) if elements else "none"


def _caller(data: LoaderParts) -> dict[str, Any]:
    return {
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "float32_matmul_precision": _matmul_precision(),
        "start_method": start_method(data),
        "sharing_strategy": torch.multiprocessing.get_sharing_strategy(),  # type: ignore[no-untyped-call]
    }


def _matmul_precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # refused once the newer fp32_precision flags have been used
        return None
