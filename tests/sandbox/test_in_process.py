"""Trials in the caller's own process leave tensors, random states, modes and switches as they were, bit for bit."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, Probe, Rejected
from autotune.sandbox import InProcess
from autotune.sandbox.snapshot import Snapshot
from autotune.task import Task


def _net() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(), nn.Linear(4 * 36, 2))
    model[0].bias.requires_grad_(False)
    model[1].eval()
    return model


def _trained() -> SimpleNamespace:
    """A task caught in the middle of training: gradients, optimizer state, a generator that was used."""
    model = _net()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 3, 8, 8)).sum().backward()
        optimizer.step()
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    return SimpleNamespace(model=model, optimizer=optimizer, generator=generator)


def _bits(task: Any) -> dict[str, Any]:
    model, optimizer = task.model, task.optimizer
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    state = [entry for parameter in optimizer.state for entry in optimizer.state[parameter].items()]
    return {
        "values": [(name, tensor.detach().clone(), tensor.stride()) for name, tensor in tensors.items()],
        "places": {name: (id(tensor), tensor.data_ptr()) for name, tensor in tensors.items()},
        "gradients": [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in model.parameters()],
        "needed": [parameter.requires_grad for parameter in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "state": [(name, value.clone(), id(value)) for name, value in state],
        "options": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "random": (random.getstate(), torch.get_rng_state(), task.generator.get_state(), _numpy_state()),
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cuda.matmul.fp32_precision,
    }


def _numpy_state() -> Any:
    np = pytest.importorskip("numpy")
    return np.random.get_state()[1].tolist(), np.random.get_state()[2]


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    return bool(first == second)


def _train(task: Any) -> None:
    task.model.train()
    task.model.to(memory_format=torch.channels_last)
    task.model(torch.randn(4, 3, 8, 8)).sum().backward()
    task.optimizer.step()


def _replace_tensors(task: Any) -> None:
    task.model.to(torch.float64)
    task.model.zero_grad(set_to_none=True)


def _new_state(task: Any) -> None:
    task.optimizer.load_state_dict(task.optimizer.state_dict())
    task.optimizer.param_groups[0]["lr"] = 5.0
    task.optimizer.param_groups[0]["initial_lr"] = 5.0


def _requires_grad(task: Any) -> None:
    task.model.requires_grad_(False)
    task.model[0].requires_grad_(True)


def _draw_numbers(task: Any) -> None:
    random.random()
    pytest.importorskip("numpy").random.rand()
    torch.manual_seed(1)
    torch.rand(3, generator=task.generator)


def _switch(task: Any) -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True


@pytest.mark.parametrize("change", [_train, _replace_tensors, _new_state, _requires_grad, _draw_numbers, _switch])
def test_everything_is_put_back(change: Callable[[Any], None]) -> None:
    """Values, memory, gradients, optimizer state, modes, random states, threads and switches are what they were."""
    torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
    task = _trained()
    before = _bits(task)
    snapshot = Snapshot.of(task)
    change(task)
    assert not _same(_bits(task), before)
    snapshot.restore()
    after = _bits(task)
    wrong = [key for key in before if not _same(after[key], before[key])]
    assert wrong == []


def test_undecided_start_method_stays_undecided() -> None:
    """Starting workers settles multiprocessing's start method; afterwards the caller may still choose one."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    try:
        snapshot = Snapshot([], [], [])
        multiprocessing.get_start_method()
        snapshot.restore()
        assert multiprocessing.get_start_method(allow_none=True) is None
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_copies_share_no_memory_with_the_model() -> None:
    """The copy to go back to is a copy, in host memory, and tied parameters are copied once.

    Reports: davidtvs/pytorch-lr-finder#1, pytorch/pytorch#25892.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    snapshot = Snapshot([model], [], [])
    states = [slot.state for module in snapshot._modules for slot in module._slots if slot.state is not None]
    live = {tensor.data_ptr() for tensor in model.parameters()}
    assert all(state._copy.data_ptr() not in live and state._copy.device.type == "cpu" for state in states)
    assert len({id(state) for state in states}) == 3


class _Bench:
    """Trains the task's own model, and fails on the second probe."""

    def __init__(self, task: Any, hardware: Hardware, limits: Limits) -> None:
        self.task, self.limits, self.closed = task, limits, 0

    def run(self, probe: Probe) -> Outcome:
        _train(self.task)
        if probe.seed:
            raise KeyboardInterrupt
        return Measured(kind=probe.kind, settings=probe.settings, chunks=())

    def close(self) -> None:
        self.closed += 1


def test_interrupted_run_is_put_back_as_well(
    hardware: Hardware, limits: Limits, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a trial goes through, and everything is as before it."""
    monkeypatch.setattr("autotune.trial.Bench", _Bench)
    task: Any = _trained()
    before = _bits(task)
    with InProcess(task, hardware, limits) as sandbox:
        assert isinstance(sandbox.run(probe), Measured)
        with pytest.raises(KeyboardInterrupt):
            sandbox.run(dataclasses.replace(probe, seed=1))
    assert _same(_bits(task), before)


def test_nothing_is_compiled_and_the_result_says_so(
    hardware: Hardware, limits: Limits, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled setting is rejected, half of the memory is offered, and the limits of this way are told."""
    monkeypatch.setattr("autotune.trial.Bench", _Bench)
    settings = probe.settings.replace(compile_mode="default")
    task: Any = _trained()
    with InProcess(task, hardware, limits) as sandbox:
        outcome = sandbox.run(dataclasses.replace(probe, settings=settings))
        assert sandbox._bench.limits.ram_bytes == limits.ram_bytes // 2
        assert (sandbox.starts, sandbox.start_s) == (0, 0.0)
    assert isinstance(outcome, Rejected)
    assert outcome.phase == "compile"
    assert "nothing was compiled" in sandbox.warnings[0]


def test_real_bench_leaves_the_model_as_it_was(
    hardware: Hardware, limits: Limits, probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real bench trains the caller's model in place; weights, statistics and modes come back.

    Report: Lightning-AI/pytorch-lightning#6675.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = _net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    data = TensorDataset(torch.ones(32, 3, 8, 8), torch.zeros(32, dtype=torch.int64))
    task = Task(model, data, loss_fn=nn.functional.cross_entropy, device="cpu")
    with InProcess(task, hardware, limits) as sandbox:
        assert sandbox.describe().has_batch_norm
        outcome = sandbox.run(dataclasses.replace(probe, window_s=0.05, settings=probe.settings.replace(batch_size=8)))
    assert isinstance(outcome, Measured), outcome
    assert outcome.cost_s > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


def test_environment_and_warning_filters_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set, changed and removed variables; filters added, and the list exchanged for another."""
    monkeypatch.setenv("AUTOTUNE_TEST_KEPT", "before")
    monkeypatch.setenv("AUTOTUNE_TEST_LOST", "before")
    monkeypatch.delenv("AUTOTUNE_TEST_NEW", raising=False)
    environment, filters, the_list = dict(os.environ), list(warnings.filters), warnings.filters
    snapshot = Snapshot.of(SimpleNamespace())
    os.environ.update(AUTOTUNE_TEST_KEPT="after", AUTOTUNE_TEST_NEW="after")
    del os.environ["AUTOTUNE_TEST_LOST"]
    warnings.simplefilter("ignore")
    warnings.filters = []
    snapshot.restore()
    assert dict(os.environ) == environment
    assert warnings.filters is the_list
    assert list(warnings.filters) == filters
    with pytest.raises(UserWarning, match="as errors again"):
        warnings.warn("as errors again", UserWarning, stacklevel=1)


class _MakesItsParts(nn.Module):
    """Makes a layer and a parameter in the first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layer: Any = None
        self.offset: Any = None
        self.register_buffer("wide", torch.ones(1).expand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.layer is None:
            self.layer, self.offset = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))
        return self.layer(self.first(x * self.wide)) + self.offset


def test_what_a_forward_pass_made_is_gone_and_made_again() -> None:
    """A model that makes its parts lazily must neither keep a trial's parts nor lose the attribute it tests."""
    model = _MakesItsParts()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    snapshot = Snapshot.of(SimpleNamespace(model=model))
    model(torch.randn(3, 4)).sum().backward()
    snapshot.restore()
    assert model.layer is None
    assert model.offset is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert set(model.state_dict()) == set(before)
    assert model(torch.randn(3, 4)).shape == (3, 2)
