"""Other packages, asked through their public API; runs in the interpreter that has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.side_by_side.answers import Answer, Request, load

__all__ = [
    "accelerate",
    "batch_answer",
    "knobs_of_loadtune",
    "knobs_of_trial",
    "lightning",
    "loadtune",
    "pytorch_autotune",
]

FIT_STEPS = 3
"""Steps by which a batch is seen to fit: Lightning's default."""
_TINY_BUDGET_S = 12  # pytorch-autotune measures nothing with less than 8

Changes = tuple[dict[str, Any], list[str]]


@dataclass(slots=True)
class Counted:
    """An optimizer factory that counts the steps of all it made."""

    make: Callable[[Any], torch.optim.Optimizer]
    steps: int = 0

    def __call__(self, params: Any) -> torch.optim.Optimizer:
        optimizer = self.make(params)
        optimizer.register_step_post_hook(self._count)
        return optimizer

    def _count(self, *_: Any) -> None:
        self.steps += 1


def loadtune(request: Request) -> Answer:
    """``loadtune.tune(Workload(...))``: it takes no budget and knows no batch but the given one by default."""
    from loadtune import Workload, tune

    job = load(request)
    data, optimizer = job.dataset(), Counted(job.optimizer)
    task = Workload(
        name=job.name,
        make_dataset=lambda: data,
        make_model=job.model,
        train_step=_step_of(job),
        make_optimizer=lambda model: optimizer(model.parameters()),
        default_batch_size=job.batch_size,
        collate_fn=job.collate_fn,
    )
    began = time.perf_counter()
    result = tune(task, verbose=False, **({"steps": 5, "warmup": 1} if request.tiny else {}))
    tuning_s = time.perf_counter() - began
    if result.baseline.error:
        raise RuntimeError(f"its baseline failed: {result.baseline.error}")
    failed = [trial for trial in result.trials if not trial.ok]
    notes = [f"{len(failed)} of its {len(result.trials)} trials failed"] if failed else []
    changes: dict[str, Any] = {}
    if result.best is None:
        notes.append(f"proposed nothing: {result.diagnosis}")
    elif result.speedup <= 1.0:
        # Its own command line keeps the defaults then; ``result.best`` is set all the same.
        notes.append(f"its best trial, {result.best.knobs.label()}, ran at {result.speedup:.2f} of the defaults: kept")
    else:
        changes, said = knobs_of_loadtune(result.best.knobs.to_dict(), cuda=torch.cuda.is_available())
        notes += said
    return Answer(
        peer="loadtune",
        fate="answered",
        changes=changes,
        call="loadtune.tune(Workload(...))",
        version=version("loadtune"),
        tuning_s=tuning_s,
        steps=optimizer.steps,
        trials=len(result.trials),
        claimed_ratio=max(1.0, result.speedup),
        notes=tuple(notes),
    )


def knobs_of_loadtune(knobs: dict[str, Any], *, cuda: bool) -> Changes:
    """loadtune's knobs in the names of ``Settings``, and what these cannot say."""
    changes: dict[str, Any] = {}
    notes: list[str] = []
    if knobs["num_workers"]:
        changes.update(num_workers=knobs["num_workers"], prefetch_factor=knobs["prefetch_factor"] or 2)
        changes["persistent_workers"] = knobs["persistent_workers"]
    if knobs["pin_memory"]:
        changes["pin_memory"] = cuda
    for name in ("batch_size", "num_threads"):
        if knobs[name] is not None:
            changes[name] = knobs[name]
    if knobs["compile"]:
        changes["compile_mode"] = "default"
    if knobs["amp"]:
        changes["precision"] = "fp16-mixed" if cuda else "bf16-mixed"
        if cuda:
            notes.append("its fp16 has no GradScaler; raced with one")
    if knobs["non_blocking"]:
        notes.append("non_blocking copies: raced so wherever memory is pinned")
    return changes, notes


def pytorch_autotune(request: Request) -> Answer:
    """``pytorch_autotune.autotune(model, batch, ...)`` on one batch of the loader."""
    from pytorch_autotune import autotune

    job = load(request)
    batch = tuple(next(iter(job.loader())))
    optimizer = Counted(job.optimizer)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    budget_s = max(_TINY_BUDGET_S, int(request.budget_s))
    model = job.model()
    began = time.perf_counter()
    result = autotune(
        model,
        batch,
        loss_fn=job.loss_fn,
        optimizer=optimizer,
        budget=budget_s,
        device=device,
        cache=False,
        verbose=False,
    )
    tuning_s = time.perf_counter() - began
    trials = result.report.trials
    changes, notes = knobs_of_trial(result.config.to_dict(), cuda=device == "cuda")
    unusable = [f"{one.config.label} ({one.note})" for one in trials if one.status == "disqualified"]
    notes += [f"disqualified: {', '.join(unusable)}"] if unusable else []
    winner = result.report.winner
    return Answer(
        peer="pytorch-autotune",
        fate="answered",
        changes=changes,
        call=f"pytorch_autotune.autotune(model, batch, loss_fn=, optimizer=, budget={budget_s}, device={device!r})",
        version=version("pytorch-autotune"),
        tuning_s=tuning_s,
        steps=optimizer.steps,
        trials=sum(one.ms_per_step is not None for one in trials),
        claimed_ratio=(winner.speedup if winner else None) or 1.0,
        notes=("its claim is of the step alone, on one batch in memory", *notes),
    )


def knobs_of_trial(config: dict[str, Any], *, cuda: bool) -> Changes:
    """pytorch-autotune's ``TrialConfig`` in the names of ``Settings``, and what these cannot say."""
    changes: dict[str, Any] = {}
    notes: list[str] = []
    precision = config["precision"]
    if precision == "tf32" and not cuda:
        notes.append('its "tf32" changes nothing without CUDA: raced as fp32')
    elif precision != "fp32_default":
        changes["precision"] = {"tf32": "tf32", "amp_bf16": "bf16-mixed", "amp_fp16": "fp16-mixed"}[precision]
    if cuda and precision != "fp32_default":
        changes["cudnn_benchmark"] = True
    if config["compile"] == "max-autotune":
        changes["compile_mode"] = "max-autotune-no-cudagraphs"
        notes.append("its max-autotune uses CUDA graphs; raced without")
    elif config["compile"] != "off":
        changes["compile_mode"] = config["compile"]
    if config["channels_last"]:
        changes["channels_last"] = True
    if config["fused_opt"]:
        notes.append("its fused optimizer applies to optimizers it makes itself, not to the one given")
    return changes, notes


def lightning(request: Request) -> Answer:
    """``Tuner(trainer).scale_batch_size(module, mode="power", max_val=cap)``."""
    import lightning.pytorch as pl

    from benchmarks.largest_batch import scaled

    job = load(request)
    data, optimizer = job.dataset(), Counted(job.optimizer)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = job.model(), job.batch_size

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            loss: Tensor = job.loss_fn(self.model(batch[0]), batch[1])
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.parameters())

        def train_dataloader(self) -> DataLoader[Any]:
            return _loader(job, data, self.batch_size)

    began = time.perf_counter()
    found = scaled(Module(), mode="power", max_val=request.cap, accelerator="auto")
    call = f'Tuner(trainer).scale_batch_size(module, mode="power", max_val={request.cap})'
    return batch_answer("lightning", found, call, time.perf_counter() - began, optimizer.steps)


def accelerate(request: Request) -> Answer:
    """``find_executable_batch_size(starting_batch_size=cap)`` around a few training steps."""
    from accelerate.utils import find_executable_batch_size

    from benchmarks.largest_batch import counts

    job = load(request)
    data, optimizer = job.dataset(), Counted(job.optimizer)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, step = job.model().to(device), _step_of(job)
    tried: list[list[Any]] = []

    @find_executable_batch_size(starting_batch_size=request.cap)  # type: ignore[untyped-decorator]
    def trial(batch_size: int) -> int:
        tried.append([batch_size, "out of memory"])
        stepping = optimizer(model.parameters())
        for _, batch in zip(range(FIT_STEPS), _loader(job, data, batch_size), strict=False):
            step(model, stepping, batch, device)
        tried[-1][1] = "measured"
        return batch_size

    began = time.perf_counter()
    found = counts(trial, tried)
    call = f"find_executable_batch_size(starting_batch_size={request.cap})"
    return batch_answer("accelerate", found, call, time.perf_counter() - began, optimizer.steps)


def batch_answer(peer: str, found: dict[str, Any], call: str, tuning_s: float, steps: int) -> Answer:
    """The answer of a finder of batch sizes; a size that it never ran is said."""
    size = found["batch_size"]
    if size is None:
        raise RuntimeError(f"no size after {found['probes']} probes: {found.get('crash')}")
    ran = [rows for rows, fate in found["tried"] if fate == "measured"]
    notes = [] if size in ran else [f"returned {size}, a size it never ran ({', '.join(map(str, ran))})"]
    return Answer(
        peer=peer,
        fate="answered",
        changes={"batch_size": size},
        call=call,
        version=version(peer),
        tuning_s=tuning_s,
        steps=steps,
        trials=found["probes"],
        notes=tuple(notes),
    )


def _loader(job: Any, data: Any, batch_size: int) -> DataLoader[Any]:
    return DataLoader(data, batch_size=batch_size, shuffle=job.shuffle, collate_fn=job.collate_fn)


def _step_of(job: Any) -> Callable[[Any, torch.optim.Optimizer, Any, torch.device], Tensor]:
    """A plain training step."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Any, device: torch.device) -> Tensor:
        inputs, targets = batch
        optimizer.zero_grad()
        loss: Tensor = job.loss_fn(model(inputs.to(device)), targets.to(device))
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    return step
