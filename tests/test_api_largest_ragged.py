"""``largest_batch()`` on samples of unequal sizes: what it returns must hold for every batch of an epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autotune import Settings, largest_batch
from autotune.batch_size import LargestBatch
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe
from autotune.task import Task
from autotune.trial import Bench

HOST = Hardware.detect(device="cpu")


class Texts(Dataset[Any]):
    """Token ids of given lengths; reading one takes ``read_s`` of its own clock."""

    def __init__(self, lengths: list[int], read_s: float = 0.0) -> None:
        self.lengths, self.read_s = lengths, read_s
        self.now = 0.0
        self.read = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        self.now += self.read_s
        self.read += 1
        return torch.ones(self.lengths[index], dtype=torch.long), index % 2

    def clock(self) -> float:
        return self.now


def padded(samples: list[Any]) -> Any:
    ids = nn.utils.rnn.pad_sequence([sample[0] for sample in samples], batch_first=True)
    return ids, torch.tensor([sample[1] for sample in samples])


class Reader(nn.Module):
    """Runs out of memory above ``limit`` elements in a batch."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(4, 2)
        self.limit = limit
        self.largest = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.largest = max(self.largest, ids.numel())
        if ids.numel() > self.limit:
            raise torch.OutOfMemoryError(f"{ids.numel()} elements")
        return self.embed(ids)


def in_process(model: Any, dataset: Any, **arguments: Any) -> LargestBatch:
    usual = {"loss_fn": nn.functional.cross_entropy, "device": "cpu", "isolate": False, "progress": False}
    return largest_batch(model, dataset, **{**usual, "memory_margin": 0.0, **arguments})


def whole_epoch(model: nn.Module, dataset: Any, collate: Callable[..., Any], batch_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(dataset, batch_size, shuffle=True, collate_fn=collate, generator=generator)
    for batch in loader:
        model(batch[0])


@pytest.mark.parametrize("others", ["equal", "unequal"])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_rare_late_long_sample_does_not_break_an_epoch(others: str, seed: int) -> None:
    """One of 4,000 samples is 20 times as long, somewhere late: the size holds in the batch that has it, just."""
    chance = random.Random(seed)
    lengths = [20 if others == "equal" else chance.randrange(5, 20) for _ in range(4000)]
    lengths[chance.randrange(2000, 4000)] = 400
    data, model = Texts(lengths), Reader(limit=400 * 30)
    result = in_process(model, data, collate_fn=padded)
    assert result.batch_size == 30
    assert result.data is not None
    assert (result.data.seen, result.data.samples, result.data.longest) == (4000, 4000, 400)
    assert not any("were read" in text for text in result.warnings)
    for epoch in range(3):
        whole_epoch(model, data, padded, result.batch_size, epoch)


class Boxes(Dataset[Any]):
    """Images with 0 to 100 objects."""

    def __init__(self, count: int) -> None:
        chance = random.Random(0)
        self.objects = [chance.randrange(101) if chance.random() < 0.3 else chance.randrange(10) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 4, 4), torch.ones(self.objects[index], 4)


def joined(samples: list[Any]) -> Any:
    images = torch.stack([sample[0] for sample in samples])
    rows = [torch.cat([torch.full((len(boxes), 1), float(at)), boxes], 1) for at, (_, boxes) in enumerate(samples)]
    return images, torch.cat(rows)


class Detector(nn.Module):
    """Runs out of memory above 400 objects in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)
        self.most = 0

    def forward(self, batch: Any) -> torch.Tensor:
        images, targets = batch
        self.most = max(self.most, len(targets))
        if len(targets) > 400:
            raise torch.OutOfMemoryError(f"{len(targets)} objects")
        return self.layer(targets).sum() + images.sum()


def test_many_objects_that_meet_in_one_batch_do_not_break_an_epoch() -> None:
    """The images with most objects, all in one batch, stay within 400; one more image would not."""
    data, model = Boxes(1500), Detector()
    result = in_process(model, data, collate_fn=joined, loss_fn=None, training_step=lambda model, batch: model(batch))
    most = sorted(data.objects, reverse=True)
    assert sum(most[: result.batch_size]) <= 400 < sum(most[: result.batch_size + 1])
    generator = torch.Generator().manual_seed(0)
    for batch in DataLoader(data, result.batch_size, shuffle=True, collate_fn=joined, generator=generator):
        model(batch)


def test_a_large_model_input_length_that_no_sample_has_does_not_count() -> None:
    """Texts of at most 16 tokens, 1,024 elements in memory: 64 of them fit, whatever the model could take."""
    assert in_process(Reader(limit=1024), Texts([4, 16, 9, 12] * 200), collate_fn=padded).batch_size == 64


def test_a_stream_is_run_on_the_longest_of_what_was_read() -> None:
    """A stream of 300 texts is read to its end, so its longest one counts."""

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            for place in range(300):
                yield torch.ones(200 if place == 250 else 10, dtype=torch.long), 0

    result = in_process(Reader(limit=200 * 12), Stream(), collate_fn=padded)
    assert result.batch_size == 12
    assert result.data is not None
    assert (result.data.seen, result.data.longest) == (300, 200)


def bench_of(model: Any, data: Texts) -> Bench:
    task = Task(model, data, collate_fn=padded, loss_fn=nn.functional.cross_entropy, device="cpu")
    bench = Bench(task, HOST, Limits.of(HOST), clock=data.clock)
    bench.describe()
    return bench


def measured(bench: Bench, size: int, *, deadline_s: float = 1000.0) -> Measured:
    probe = Probe(kind="compute", settings=Settings(batch_size=size), steps=2, deadline_s=deadline_s)
    outcome = bench.run(probe)
    assert isinstance(outcome, Measured), outcome
    return outcome


def test_data_that_is_slow_to_read_is_looked_at_for_its_share_and_that_is_said() -> None:
    """A second a sample and a tenth of 200 s: 13 samples of 5,000, both ends among them, and a sentence."""
    data = Texts([10] * 4999 + [300], read_s=1.0)
    model = Reader(limit=10**9)
    bench = bench_of(model, data)
    before = data.now
    outcome = measured(bench, 2, deadline_s=200.0)
    assert data.now - before == 20 + 2  # seven of them to see whether batches are padded, and the batch itself
    assert model.largest == 2 * 300
    assert outcome.data is not None
    assert (outcome.data.seen, outcome.data.samples, outcome.data.whole) == (13, 5000, False)
    assert any("13 samples of 5,000 were read" in text for text in outcome.warnings)


def test_samples_are_looked_at_once(tmp_path: Any) -> None:
    """Neither for the next size, nor by the next process, which finds the notes of the one before."""
    data = Texts([5, 9, 2] * 100)
    bench = bench_of(Reader(10**9), data)
    bench.keep_notes_in(tmp_path)
    measured(bench, 4)
    after = data.read
    first = measured(bench, 4)
    assert data.read - after == 4
    again = Texts([5, 9, 2] * 100)
    other = bench_of(Reader(10**9), again)
    other.keep_notes_in(tmp_path)
    before = again.read
    second = measured(other, 4)
    assert again.read - before == 4
    assert first.data == second.data is not None


def test_padding_is_reported_with_the_lengths() -> None:
    """Half of the samples four times as long: in batches of four, the share on paper."""
    outcome = measured(bench_of(Reader(10**9), Texts([10, 40] * 50)), 4)
    assert outcome.data is not None
    assert outcome.data.padding_share == pytest.approx(1 - 25 / (10 / 16 + 40 * 15 / 16))
    assert outcome.data.mean_length == 25


def test_several_worst_batches_are_each_stepped_on() -> None:
    """Long sources and long targets are different samples: two steps are asked for, three are taken."""

    class Pairs(Texts):
        def __getitem__(self, index: int) -> Any:
            target = self.lengths[-1 - index]
            return torch.ones(self.lengths[index], dtype=torch.long), torch.ones(target, dtype=torch.long)

    def both(samples: list[Any]) -> Any:
        return tuple(nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*samples, strict=True))

    seen: list[tuple[int, int]] = []

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append((batch[0].shape[1], batch[1].shape[1]))
        return model(batch[0]).sum()

    task = Task(Reader(10**9), Pairs([100, 90, *[10] * 96, 20, 30]), collate_fn=both, training_step=step, device="cpu")
    bench = Bench(task, HOST, Limits.of(HOST))
    bench.describe()
    seen.clear()
    outcome = measured(bench, 2)
    assert set(seen) == {(100, 100), (100, 30), (30, 100)}
    assert outcome.steps == 3
