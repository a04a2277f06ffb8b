"""Reports about channels_last and torch.compile; graphs are counted with a backend that compiles nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.build.loader import build_loader
from autotune.build.model import prepare_model
from autotune.build.train_step import TrainStep
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe
from autotune.planner import CPU, Plan
from autotune.planner.found import Found
from autotune.settings import Settings
from autotune.study import Study
from autotune.task import LoaderParts, StepLoss, Task
from autotune.trial import Bench
from tests.planner.fake_machine import FakeMachine, candidates, hardware


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Graphs that dynamo hands to the compiler."""
    seen: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    def compile_in_place(module: nn.Module, **_: Any) -> None:
        module._compiled_call_impl = torch.compile(module._call_impl, backend=backend)

    monkeypatch.setattr(nn.Module, "compile", compile_in_place)
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def _search(machine: FakeMachine, **values: tuple[Any, ...]) -> Found:
    plan = Plan(
        candidates=candidates(values=values),
        hardware=hardware(),
        pace=CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=600.0,
        started_s=0.0,
    )
    return plan.search()


def test_a_short_last_batch_costs_one_more_graph_at_most(graphs: list[Any]) -> None:
    """70 rows by 16, two epochs: no recompilation for every shape (pytorch/pytorch#105279)."""
    settings = Settings(batch_size=16, compile_mode="default")
    model = prepare_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), settings, "cpu")
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss=lambda model, batch: StepLoss(loss=model(batch[0]).square().mean()),
        settings=settings,
        device="cpu",
    )
    data = LoaderParts.of(TensorDataset(torch.randn(70, 4)))
    for _ in range(2):
        for batch in build_loader(data, settings, has_batch_norm=False):
            step(batch)
        step.flush()
    assert 1 <= len(graphs) <= 2


def test_nothing_holds_a_compiled_model_once_tuning_is_over(graphs: list[Any]) -> None:
    """The bench lets go of it (pytorch/pytorch#119607, #105181)."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    data = TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    machine = Hardware.detect()
    bench = Bench(Task(model, data, loss_fn=nn.CrossEntropyLoss(), device="cpu"), machine, Limits.of(machine))
    outcome = bench.run(Probe(kind="compute", settings=Settings(batch_size=8, compile_mode="default"), steps=3))
    assert isinstance(outcome, Measured)
    assert graphs
    bench.close()
    torch._dynamo.reset()
    graphs.clear()
    gone = weakref.ref(model)
    del model, bench, data
    gc.collect()
    assert gone() is None


def _slower_if(name: str, factor: float) -> Callable[[Settings], float]:
    baseline = candidates().baseline
    return lambda settings: 100.0 / (factor if getattr(settings, name) != getattr(baseline, name) else 1.0)


def test_a_memory_format_that_is_slower_is_not_chosen() -> None:
    """30 times slower convolutions lose like any other setting (pytorch/pytorch#34977)."""
    found = _search(FakeMachine(_slower_if("channels_last", 30.0)), channels_last=(True,))
    assert not any(one.settings.channels_last for one in found.finalists)


@pytest.mark.parametrize(("joint", "chosen"), [(0.8, False), (1.5, True)])
def test_compilation_is_judged_on_real_batches(joint: float, chosen: bool) -> None:
    """On one cached batch it wins; with the loader's padded ones only if it really does (pytorch/pytorch#188150)."""
    machine = FakeMachine(_slower_if("compile_mode", 1 / joint), compute=_slower_if("compile_mode", 1 / 1.5))
    machine.wait_share = 0.0
    found = _search(machine, compile_mode=("default",))
    tried = [probe for probe in machine.probes if probe.settings.compile_mode]
    assert {probe.kind for probe in tried} & {"joint"}
    assert any(one.settings.compile_mode for one in found.finalists) is chosen


def test_time_that_compilation_takes_counts_against_the_budget() -> None:
    """An hour of it is ended at the deadline (pytorch/pytorch#97783)."""
    machine = FakeMachine(lambda settings: 100.0)
    answer = machine.run

    def run(probe: Probe) -> Any:
        if probe.settings.compile_mode:
            machine.now += probe.deadline_s
        return answer(probe)

    plan = Plan(
        candidates=candidates(values={"compile_mode": ("default",)}),
        hardware=hardware(),
        pace=CPU,
        study=Study(),
        run=run,
        clock=machine.clock,
        budget_s=300.0,
        started_s=0.0,
    )
    plan.search()
    assert machine.now <= 1.1 * 300.0
