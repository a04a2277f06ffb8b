"""What is worth knowing about a task."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.errors import ConfigError
from autotune.task import Facts, Task, first_batch, resolve_loss


class Heights(list[Any]):
    """Images of unequal heights with labels."""

    def __init__(self) -> None:
        super().__init__((torch.zeros(3, 8 + size, 8), 0) for size in range(6))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def conv(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def data(samples: int = 50) -> TensorDataset:
    return TensorDataset(torch.rand(samples, 4), torch.zeros(samples, dtype=torch.int64))


def facts(
    model: Any = None, dataset: Any = None, *, device: str = "cpu", rows: int | None = None, **options: Any
) -> Facts:
    task = Task(net() if model is None else model, data() if dataset is None else dataset, **options)
    built, parts = task.build_model(), task.data.resolve()
    batch = first_batch(parts, rows=rows)
    loss = resolve_loss(loss_fn=task.loss_fn, training_step=task.training_step, model=built, batch=batch)
    return Facts.of(task, built, parts, batch, loss, device)


def test_the_facts_of_a_plain_task() -> None:
    """Counts, types and what was assumed."""
    found = facts()
    assert found.samples == 50
    assert not found.iterable
    assert found.batches_kept is None
    assert found.batch_signature == "list(float32[*,4], int64[*])"
    assert found.sample_bytes == 4 * 4 + 8
    assert found.parameters == 4 * 8 + 8 + 16 + 8 * 2 + 2
    assert found.parameter_bytes == 4 * found.parameters
    assert found.model_dtype == "float32"
    assert found.has_batch_norm
    assert not found.has_conv_4d
    assert found.loss_inferred
    assert found.optimizer_name == "torch.optim.AdamW"
    assert found.optimizer_assumed
    assert found.optimizer_kwargs == {"lr": 1e-3}
    assert found.optimizer_groups == [{"lr": 1e-3}]
    assert found.loader["given"] is False
    assert found.caller["num_threads"] == torch.get_num_threads()
    assert found.fingerprint.startswith("sha256:")


def test_facts_survive_json() -> None:
    """Strict JSON, no NaN, equal after the round trip, also with odd optimizer options."""
    model = net()
    optimizer = torch.optim.Adam(
        [
            {"params": model[0].parameters(), "lr": torch.tensor(0.5), "odd": object()},
            {"params": model[2].parameters()},
        ],
        lr=1e-2,
        betas=(0.8, 0.9),
        foreach=False,
    )
    optimizer.param_groups[1]["limit"] = math.inf
    found = facts(model, DataLoader(data(), batch_size=8, shuffle=True), optimizer=optimizer)
    text = json.dumps(found.to_json(), allow_nan=False)
    assert Facts.from_json(json.loads(text)) == found
    assert found.optimizer_groups[0]["lr"] == 0.5
    assert found.optimizer_kwargs["betas"] == [0.8, 0.9]
    assert "odd" not in found.optimizer_groups[0]
    assert "limit" not in found.optimizer_groups[1]
    assert found.loader["batch_size"] == 8
    assert not found.optimizer_assumed


@pytest.mark.parametrize("change", [{"more": 1}, {"samples": ...}, None])
def test_facts_of_another_shape_are_refused(change: dict[str, Any] | None) -> None:
    """A missing or unknown field is named."""
    written = facts().to_json()
    for key, value in (change or {}).items():
        if value is ...:
            del written[key]
        else:
            written[key] = value
    with pytest.raises(ConfigError, match=r"more|samples|list"):
        Facts.from_json([] if change is None else written)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(3, 2, 1), True),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 2, 1)), True),
        (nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 2, 1), nn.Unflatten(2, (-1, 1))), False),
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.Unflatten(1, (2, 1)), nn.Conv3d(2, 2, 1), nn.Flatten(1, 2)), False),
    ],
)
def test_channels_last_matters_for_two_dimensional_convolutions_only(layer: nn.Module, expected: bool) -> None:
    """Conv1d has nothing to gain, Conv3d breaks."""
    images = TensorDataset(torch.zeros(8, 3, 8, 8), torch.zeros(8, dtype=torch.int64))
    assert facts(conv(layer), images).has_conv_4d is expected


@pytest.mark.parametrize(
    ("optimizer", "device", "expected"),
    [
        (torch.optim.AdamW, "cpu", ("for-loop", "foreach", "fused")),
        (torch.optim.RMSprop, "cpu", ("for-loop", "foreach")),
        (torch.optim.SparseAdam, "cpu", ()),
        (lambda params: torch.optim.AdamW(params, differentiable=True), "cpu", ()),
        (torch.optim.AdamW, "meta", ("for-loop",)),
        (lambda params: torch.optim.Adam(params, lr=torch.tensor(0.1)), "cpu", ("for-loop", "fused")),
    ],
)
def test_implementations_are_those_that_constructor_and_device_support(
    optimizer: Any, device: str, expected: tuple[str, ...]
) -> None:
    """What would raise is not offered."""
    assert facts(optimizer=optimizer, device=device).optimizer_implementations == expected


@pytest.mark.parametrize(
    ("options", "now"),
    [({}, None), ({"foreach": True}, "foreach"), ({"foreach": False}, "for-loop"), ({"fused": True}, "fused")],
)
def test_the_implementation_in_use_is_read_off_the_optimizer(options: dict[str, bool], now: str | None) -> None:
    """None where the user left the choice to torch."""
    assert facts(optimizer=lambda params: torch.optim.SGD(params, **options)).optimizer_implementation_now == now


def test_samples_of_unequal_sizes_keep_batches_of_one() -> None:
    """Training with batches of one goes on; larger ones are ruled out with the sizes and the remedy."""
    model = conv(nn.Conv2d(3, 2, 1))
    found = facts(model, DataLoader(Heights(), batch_size=1))
    assert "collate_fn" in str(found.batches_kept)
    assert "float32[3,8,8]" in str(found.batches_kept)
    equal = TensorDataset(torch.zeros(8, 3, 8, 8), torch.zeros(8, dtype=torch.int64))
    assert facts(model, DataLoader(equal, batch_size=1)).batches_kept is None


def test_the_dtype_is_that_of_most_parameters() -> None:
    """One odd layer does not decide."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).bfloat16()
    model[0].bias = nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    images = TensorDataset(torch.zeros(8, 4, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.int64))
    assert facts(model, images).model_dtype == "bfloat16"


def test_workers_and_determinism_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """What restricts the search is in the facts."""
    loader = DataLoader(data(), num_workers=1, multiprocessing_context="spawn", collate_fn=lambda samples: samples)
    task = Task(net(), loader)
    batch = [torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)]
    loss = resolve_loss(model=task.build_model(), batch=batch)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    found = Facts.of(task, task.build_model(), task.data, batch, loss, "cpu")
    assert "collate_fn" in str(found.workers_refused)
    assert found.deterministic
    assert found.caller["start_method"] == "spawn"


def test_gathering_changes_nothing() -> None:
    """Weights, optimizer options and random states stay; facts are frozen."""
    model, dataset = net(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.get_rng_state(), [parameter.clone() for parameter in model.parameters()]
    found = facts(model, dataset, optimizer=optimizer)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(map(torch.equal, model.parameters(), before[1]))
    assert optimizer.param_groups[0]["lr"] == 0.1
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.samples = 3  # type: ignore[misc]


def test_reduction_and_notes_of_the_loss_are_facts() -> None:
    """A hidden sum is found, and survives JSON."""
    found = facts(net(), loss_fn=lambda output, target: nn.functional.cross_entropy(output, target, reduction="sum"))
    assert found.reduction == "sum"
    assert found.warnings == ()
    assert Facts.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_facts_of_an_older_release_are_read() -> None:
    """Without the newer fields the loss is a mean and there is nothing to warn of."""
    stored = facts(net()).to_json()
    del stored["reduction"], stored["warnings"]
    found = Facts.from_json(stored)
    assert (found.reduction, found.warnings) == ("mean", ())


def test_parameters_left_out_by_the_optimizer_are_named() -> None:
    """A callable may take some of them only."""
    found = facts(net(), optimizer=lambda params: torch.optim.SGD(list(params)[:1], lr=0.1))
    (warning,) = found.warnings
    assert "does not hold 5 of the 6 trainable parameters" in warning
    assert "0.bias, 1.weight, 1.bias, …" in warning


def test_parameters_of_the_loss_that_nothing_trains_are_said() -> None:
    """They would silently stay as they are."""

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(output * self.weight, target)

    (warning,) = facts(net(), loss_fn=Weighted()).warnings
    assert "loss_fn has parameters of its own" in warning


def test_workers_sharing_state_are_warned_of() -> None:
    """The user's own loader has workers, so they are not refused."""
    dataset = Heights()
    dataset.rng = torch.Generator()
    loader = DataLoader(dataset, num_workers=1, batch_size=1, multiprocessing_context="fork")
    model = conv(nn.Conv2d(3, 2, 1))
    found = facts(model, loader, loss_fn=nn.CrossEntropyLoss())
    assert found.workers_refused is None
    assert "dataset.rng" in found.warnings[0]


def test_an_optimizer_only_its_callable_can_make_has_one_implementation() -> None:
    """Another one would need to know all of its arguments."""

    class Own(torch.optim.SGD):
        def __init__(self, params: Any, secret: float, foreach: bool | None = None) -> None:
            super().__init__(params, lr=secret, foreach=foreach)

    assert facts(net(), optimizer=lambda params: Own(params, 0.1)).optimizer_implementations == ()


def test_time_first_batches_are_counted_by_the_rows_asked_for() -> None:
    """Bytes per sample and signature follow."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.score(x[-1])

    task = Task(Last(), data(), loss_fn=nn.CrossEntropyLoss())
    batch = torch.zeros(5, 3, 4), torch.zeros(3, dtype=torch.int64)
    loss = resolve_loss(loss_fn=task.loss_fn, model=task.model, batch=batch)
    found = Facts.of(task, task.model, task.data, batch, loss, "cpu", rows=3)
    assert found.batch_signature == "tuple(float32[5,3,4], int64[*])"
    assert found.sample_bytes == 5 * 4 * 4 + 8


class Told(TensorDataset):
    """Data that is told of each epoch."""

    def set_epoch(self, epoch: int) -> None:
        """For instance, to shuffle anew."""


def test_whether_batches_may_differ_and_their_order_may_change_is_noted() -> None:
    """A collate function of the user's own, or texts, on the one hand; a fixed order on the other."""
    plain = facts()
    assert not plain.ragged
    assert plain.order_kept is None
    own = facts(dataset=list(data()), collate_fn=torch.utils.data.default_collate)
    assert own.ragged
    texts = [("some words", torch.rand(4), 0), ("more", torch.rand(4), 1)] * 4
    assert facts(dataset=texts, training_step=lambda model, batch: model(batch[1]).sum()).ragged
    assert not facts(collate_fn=torch.utils.data.default_collate).ragged  # a TensorDataset
    assert "shuffle=False" in str(facts(shuffle=False).order_kept)


def test_what_decides_about_blocks_compilation_and_persistent_workers_is_noted() -> None:
    """Repeated blocks, parts compiled by the user, and data that wants to be told of epochs."""
    plain = facts()
    assert not (plain.has_repeated_blocks)
    assert not (plain.has_compiled_parts)
    assert not (plain.has_set_epoch)
    block = nn.Sequential(nn.Linear(4, 4))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    assert facts(nn.Sequential(Block(), Block(), nn.Linear(4, 2))).has_repeated_blocks
    assert facts(nn.Sequential(torch.compile(block, backend="eager"), nn.Linear(4, 2))).has_compiled_parts
    assert facts(dataset=Told(*data().tensors)).has_set_epoch
