"""Batches and steps beyond ``loss_fn(model(x), y)``: graphs, ragged rows, GANs, sparse gradients, whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from autotune.errors import TaskError


def pairs(samples: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(samples, 4, generator=generator), torch.arange(samples) % 2)


@dataclass
class Graphs:
    """Graphs glued into one, as graph libraries collate them."""

    nodes: torch.Tensor
    edges: torch.Tensor
    graph: torch.Tensor
    y: torch.Tensor
    num_graphs: int


class GraphData(Dataset[Any]):
    """Rings of 3 to 6 nodes."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        count = 3 + index % 4
        ring = torch.arange(count)
        return {"nodes": torch.ones(count, 4), "edges": torch.stack([ring, ring.roll(1)]), "y": torch.tensor(index % 2)}


def glued(samples: list[dict[str, torch.Tensor]]) -> Graphs:
    counts = [len(sample["nodes"]) for sample in samples]
    starts = torch.tensor([0, *counts[:-1]]).cumsum(0)
    return Graphs(
        nodes=torch.cat([sample["nodes"] for sample in samples]),
        edges=torch.cat([s["edges"] + start for s, start in zip(samples, starts, strict=True)], dim=1),
        graph=torch.arange(len(samples)).repeat_interleave(torch.tensor(counts)),
        y=torch.stack([sample["y"] for sample in samples]),
        num_graphs=len(samples),
    )


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message, self.read = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, batch: Graphs) -> torch.Tensor:
        hidden = self.message(batch.nodes)
        hidden = hidden.index_add(0, batch.edges[1], hidden[batch.edges[0]])
        return self.read(torch.zeros(batch.num_graphs, 8).index_add(0, batch.graph, hidden))


def graph_step(model: nn.Module, batch: Graphs) -> torch.Tensor:
    return functional.cross_entropy(model(batch), batch.y)


def test_graphs_are_counted_as_graphs_not_as_nodes(desk: Any) -> None:
    """A dataclass of glued graphs: rows are its ``num_graphs``, in every batch."""
    put = desk(GraphNet(), GraphData(), training_step=graph_step, collate_fn=glued)
    assert put.measure(batch_size=6).largest_batch_rows == 6
    assert put.measure(batch_size=8, gradient_accumulation_steps=2).largest_batch_rows == 8


class Reader(nn.Module):
    """An LSTM over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, packed: Any) -> torch.Tensor:
        hidden, lengths = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(hidden[torch.arange(len(lengths)), lengths - 1])


def packed(samples: list[Any]) -> tuple[Any, torch.Tensor]:
    return pack_sequence([x for x, _ in samples], enforce_sorted=False), torch.tensor([y for _, y in samples])


def test_packed_sequences_stay_packed(desk: Any) -> None:
    """Ragged rows packed by the collate function reach the LSTM as they are."""
    rows = [(torch.randn(2 + row % 5, 4), row % 2) for row in range(48)]
    put = desk(Reader(), DataLoader(rows, batch_size=4, collate_fn=packed), loss_fn=nn.CrossEntropyLoss())
    assert put.measure(batch_size=6).largest_batch_rows == 6
    assert put.measure(batch_size=6, num_workers=1).largest_batch_rows == 6


class Gan(nn.Module):
    """Generator and discriminator in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = nn.Linear(2, 4), nn.Linear(4, 1)


def gan_step(model: Gan, batch: Any) -> torch.Tensor:
    """Both losses in one, each with gradients for its own half only."""
    real = batch[0]
    fake = model.generator(torch.randn(len(real), 2))
    told = functional.softplus(-model.discriminator(real)) + functional.softplus(model.discriminator(fake.detach()))
    frozen = {name: parameter.detach() for name, parameter in model.discriminator.named_parameters()}
    fooled = functional.softplus(-torch.func.functional_call(model.discriminator, frozen, (fake,)))
    return (told + fooled).mean()


def test_a_gan_is_one_step_with_two_parameter_groups(desk: Any) -> None:
    """Generator and discriminator at rates of their own, in one optimizer, through ``training_step``."""
    model = Gan()
    optimizer = torch.optim.Adam(
        [
            {"params": model.generator.parameters(), "lr": 1e-4},
            {"params": model.discriminator.parameters(), "lr": 4e-4},
        ],
        betas=(0.0, 0.9),
    )
    put = desk(model, pairs(), training_step=gan_step, optimizer=optimizer)
    assert [group["lr"] for group in put.facts.optimizer_groups] == [1e-4, 4e-4]
    assert put.measure(batch_size=16).largest_batch_rows == 16


@pytest.mark.parametrize("wrapped", [list, tuple, dict])
def test_several_optimizers_are_refused_by_name(desk: Any, wrapped: Any) -> None:
    """A GAN's pair, however it is handed over: the error says how many there are and what to do."""
    model = Gan()
    made = [torch.optim.Adam(part.parameters()) for part in (model.generator, model.discriminator)]
    given = {"g": made[0], "d": made[1]} if wrapped is dict else wrapped(made)
    with pytest.raises(TaskError, match=r"2 optimizers.*parameter group"):
        desk(model, pairs(), training_step=gan_step, optimizer=given)
    with pytest.raises(TaskError, match=r"2 optimizers.*parameter group"):
        desk(model, pairs(), training_step=gan_step, optimizer=lambda params: given)


class SelfTrained(Gan):
    """Holds its optimizers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.generator, self.discriminator)]


def alternating_step(model: SelfTrained, batch: Any) -> torch.Tensor:
    """The textbook loop of a GAN, moved into the step as it is."""
    real, noise = batch[0], torch.randn(len(batch[0]), 2)
    told = functional.softplus(-model.discriminator(real)).mean()
    fooled = functional.softplus(-model.discriminator(model.generator(noise))).mean()
    for loss, optimizer in zip((told, fooled), reversed(model.steps), strict=True):
        optimizer.zero_grad()
        loss.backward(retain_graph=loss is told)
    for optimizer in model.steps:
        optimizer.step()
    return fooled


def half_trained_step(model: SelfTrained, batch: Any) -> torch.Tensor:
    """Trains the discriminator itself and returns the generator's loss, still to be differentiated."""
    told = functional.softplus(-model.discriminator(batch[0])).mean()
    model.steps[1].zero_grad()
    told.backward()
    model.steps[1].step()
    return functional.softplus(-model.discriminator(model.generator(torch.randn(len(batch[0]), 2)))).mean()


def test_a_step_that_has_run_its_own_backward_pass_is_told_what_to_return(desk: Any) -> None:
    """Not torch's word on graphs that were freed, out of the first trial; a step that leaves the last pass is fine."""
    with pytest.raises(TaskError, match=r"backward pass of the loss that it returns.*\n?.*parameter group"):
        desk(SelfTrained(), pairs(), training_step=alternating_step, optimizer=torch.optim.Adam)
    put = desk(SelfTrained(), pairs(), training_step=half_trained_step, optimizer=torch.optim.Adam)
    assert put.measure(batch_size=16).largest_batch_rows == 16


class Words(nn.Module):
    """An embedding whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(100, 8, sparse=True), nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens).mean(1))


def sentences(samples: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randint(100, (samples, 6), generator=generator), torch.arange(samples) % 2)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # said once, by torch's own Adagrad
def test_sparse_gradients_are_stepped_by_adagrad(desk: Any) -> None:
    """Every kind of probe, accumulation with its weighted sums of sparse gradients included."""
    put = desk(Words(), sentences(), loss_fn=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.Adagrad(p, lr=0.1))
    assert put.facts.optimizer_name == "torch.optim.Adagrad"
    assert put.measure(batch_size=8).largest_batch_rows == 8
    assert put.measure(batch_size=8, gradient_accumulation_steps=3).largest_batch_rows == 8
    assert put.measure("compute", batch_size=16).samples_per_s > 0


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
def test_an_implementation_is_offered_only_where_it_takes_sparse_gradients(desk: Any, implementation: Any) -> None:
    """What the facts offer for such a model runs."""
    put = desk(Words(), sentences(), loss_fn=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.Adagrad(p, lr=0.1))
    assert (implementation in put.facts.optimizer_implementations) == (implementation != "fused")
    if implementation != "fused":
        assert put.measure(batch_size=8, optimizer_implementation=implementation).samples_per_s > 0


def test_an_optimizer_that_refuses_sparse_gradients_says_so(desk: Any) -> None:
    """AdamW cannot step them: the rejection carries torch's own words."""
    put = desk(Words(), sentences(), loss_fn=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.AdamW(p))
    with pytest.raises(AssertionError, match="does not support sparse gradients"):
        put.measure(batch_size=8)


class WholeBatches(IterableDataset[Any]):
    """Batches of 4 to 7 rows, as a database cursor gives them."""

    def __iter__(self) -> Iterator[Any]:
        for batch in range(12):
            rows = 4 + batch % 4
            yield torch.full((rows, 4), float(batch)), torch.arange(rows) % 2


class IndexedBatches(Dataset[Any]):
    """The same by index."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((4, 4), float(index)), torch.arange(4) % 2


@pytest.mark.parametrize(("data", "largest"), [(WholeBatches(), 7), (IndexedBatches(), 4)])
def test_whole_batches_are_kept_and_their_rows_counted(desk: Any, data: Any, largest: int) -> None:
    """``DataLoader(batch_size=None)``, as a stream or by index: samples/s count rows, whatever a batch holds."""
    net = nn.Linear(4, 2)
    put = desk(net, DataLoader(data, batch_size=None), loss_fn=nn.CrossEntropyLoss())
    assert put.facts.batches_kept == "batch_size=None: the dataset yields whole batches"
    assert put.measure().largest_batch_rows == largest
    assert put.measure(num_workers=1, gradient_accumulation_steps=2).largest_batch_rows == largest
