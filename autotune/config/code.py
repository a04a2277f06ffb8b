"""The settings as a few lines of plain torch, for people who keep their own loop."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch

from autotune.config.saved_task import SavedTask, is_torch_optimizer

__all__ = ["training_code"]

# As a batch's structure is written: list(float32[*,3,32,32], int64[*]) or dict(input_ids=int64[*,128], ...).
_PAIR = re.compile(r"(list|tuple)\(\w+\[[^\]]*\], \w+\[[^\]]*\]\)")
_DICT = re.compile(r"(dict|BatchEncoding)\(\w+=\w+\[[^\]]*\](, \w+=\w+\[[^\]]*\])*\)")


def training_code(document: Mapping[str, Any], saved: SavedTask, batch_signature: str) -> str:
    """At most 15 lines that train as the config does, without the package.

    One thing is left to ``TrainStep``: weighing what is accumulated. Here a group that has fewer rows than usual simply
    counts less, one that is open at an epoch's end goes on in the next, and micro-batches count alike however many of
    their targets are ignored.

    Args:
        document: The config as JSON values.
        saved: The task as JSON can hold it.
        batch_signature: Structure of a batch.

    Returns:
        Python code; its first line names what the reader must have defined.
    """
    batch = _Batch(document, saved, batch_signature)
    before = [_switches(document), _loader(document, saved), _model(document, batch)]
    before += [_recomputed(document), _compiled(document)]
    before += [_optimizer(document), _scheduler(document)]
    before += ["; ".join(filter(None, (_scaler(document), _warmup(document))))]
    return "\n".join([_imports(document, saved, batch), *filter(None, before), *_loop(document, batch)])


class _Batch:
    """How a batch is unpacked, moved and turned into a loss."""

    def __init__(self, document: Mapping[str, Any], saved: SavedTask, signature: str) -> None:
        self.device = saved.device_type
        self.pair = saved.loss in ("loss_fn", "guess") and _PAIR.fullmatch(signature) is not None
        self.mapping = _DICT.fullmatch(signature) is not None
        self.own_loss = saved.loss == "model" and self.mapping
        self.names = "inputs, target" if self.pair else "batch"
        self.effective = document["effective_batch_size"]
        self._steps = document["gradient_accumulation_steps"]
        self._channels_last = document["memory_format"] == "channels_last"
        self._sums = saved.reduction == "sum"
        self._pinned = bool(document["dataloader"].get("pin_memory"))

    def yours(self) -> list[str]:
        """What the reader must bring to move a batch and to get a loss from it."""
        names = [] if self.own_loss else ["loss_fn" if self.pair else "training_step(model, batch)"]
        needs_move = self.device != "cpu" and not (self.pair or self.mapping)
        return [*names, "to_device(batch)"] if needs_move else names

    def moved(self) -> list[str]:
        to = f'"{self.device}", non_blocking=True' if self._pinned else f'"{self.device}"'
        layout = "memory_format=torch.channels_last" if self._channels_last else ""
        if self.device == "cpu":
            return [f"inputs = inputs.to({layout})"] if self.pair and layout else []
        if self.pair:
            return [f"inputs, target = inputs.to({', '.join(filter(None, (to, layout)))}), target.to({to})"]
        if self.mapping:
            return [f"batch = {{name: value.to({to}) for name, value in batch.items()}}"]
        return ["batch = to_device(batch)"]

    def loss(self) -> str:
        if self._steps == 1 or self._sums:
            return self._plain_loss()
        if self.pair and self.effective:
            return f"{self._plain_loss()} * len(target) / {self.effective}"
        return f"{self._plain_loss()} / {self._steps}"

    def _plain_loss(self) -> str:
        if self.pair:
            return "loss_fn(model(inputs), target)"
        return "model(**batch).loss" if self.own_loss else "training_step(model, batch)"


def _imports(document: Mapping[str, Any], saved: SavedTask, batch: _Batch) -> str:
    yours = ["model", "dataset", "epochs", *batch.yours()]
    if not _builds_optimizer(document):
        yours.append("optimizer")
    if _scope(document) == "blocks" or _recomputed(document):
        yours.append("blocks (the model's repeated layers)")
    modules = "import functools, torch, torch.utils.checkpoint" if _recomputed(document) else "import torch"
    return f"{modules}  # and yours: {', '.join(yours + _loader_objects(saved))}"


def _switches(document: Mapping[str, Any]) -> str:
    wanted = document["torch"]
    calls = []
    if wanted["num_threads"] is not None:
        calls.append(f"torch.set_num_threads({wanted['num_threads']})")
    if wanted["cudnn_benchmark"]:
        calls.append("torch.backends.cudnn.benchmark = True")
    if wanted["float32_matmul_precision"] is not None:
        calls.append(f'torch.set_float32_matmul_precision("{wanted["float32_matmul_precision"]}")')
    return "; ".join(calls)


def _loader(document: Mapping[str, Any], saved: SavedTask) -> str:
    arguments = dict(document["dataloader"])
    objects = _loader_objects(saved)
    if "batch_sampler" in objects:
        arguments.pop("batch_size", None)
    text = [f"{name}={value!r}" for name, value in arguments.items()] + [f"{name}={name}" for name in objects]
    grouped = "  # not grouped by length as measured: tuned.dataloader() is" if _grouped(document) else ""
    return f"loader = torch.utils.data.DataLoader({', '.join(['dataset', *text])}){grouped}"


def _grouped(document: Mapping[str, Any]) -> bool:
    return bool(document["settings"].get("length_grouped"))


def _loader_objects(saved: SavedTask) -> list[str]:
    kinds = ("collate_fn", "sampler", "batch_sampler", "generator", "worker_init_fn")
    return [what for what in (entry.partition(":")[0] for entry in saved.not_portable) if what in kinds]


def _model(document: Mapping[str, Any], batch: _Batch) -> str:
    arguments = [] if batch.device == "cpu" else [f'"{batch.device}"']
    if document["memory_format"] == "channels_last":
        arguments.append("memory_format=torch.channels_last")
    return f"model = model.to({', '.join(arguments)})" if arguments else ""


def _compiled(document: Mapping[str, Any]) -> str:
    scope = _scope(document)
    if scope is None:
        return ""
    call = f'compile(mode="{document["compile"]["mode"]}")'
    return f"model.{call}" if scope == "model" else f"for block in blocks: block.{call}"


def _recomputed(document: Mapping[str, Any]) -> str:
    if not document["settings"]["activation_checkpointing"]:
        return ""
    call = "functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)"
    return f"for block in blocks: block.forward = {call}"


def _scope(document: Mapping[str, Any]) -> str | None:
    return document["compile"]["scope"] if document["compile"] else None


def _builds_optimizer(document: Mapping[str, Any]) -> bool:
    optimizer = document["optimizer"]
    return is_torch_optimizer(optimizer["name"]) and not optimizer["param_groups"]


def _optimizer(document: Mapping[str, Any]) -> str:
    optimizer, factor = document["optimizer"], document["learning_rate"]["factor"]
    if not _builds_optimizer(document):
        return f'for group in optimizer.param_groups: group["lr"] *= {factor!r}' if factor != 1 else ""
    arguments = [f"{name}={value!r}" for name, value in _unusual(optimizer["name"], optimizer["kwargs"]).items()]
    was = f"  # lr was {optimizer['base_lr']!r}" if factor != 1 else ""
    return f"optimizer = {optimizer['name']}({', '.join(['model.parameters()', *arguments])}){was}"


def _unusual(name: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without those that are the class's defaults; lr always."""
    cls = getattr(torch.optim, name.rpartition(".")[2], None)
    defaults = {} if cls is None else {p.name: p.default for p in inspect.signature(cls).parameters.values()}
    kept = {}
    for key, value in kwargs.items():
        value = tuple(value) if isinstance(value, list) else value
        if key == "lr" or key not in defaults or defaults[key] != value:
            kept[key] = value
    return kept


def _scaler(document: Mapping[str, Any]) -> str:
    scaler = document["grad_scaler"]
    return f'scaler = torch.amp.GradScaler("{scaler["device"]}")' if scaler["enabled"] else ""


def _warmup(document: Mapping[str, Any]) -> str:
    steps, factor = document["optimizer"]["warmup_steps"], document["learning_rate"]["factor"]
    if not _has_warmup(document):
        return ""
    return f"warmup = torch.optim.lr_scheduler.LinearLR(optimizer, {1 / factor!r}, total_iters={steps})"


def _has_warmup(document: Mapping[str, Any]) -> bool:
    """A schedule that starts low is warm-up enough."""
    schedule = document["scheduler"]
    starts_low = schedule is not None and (schedule["kind"] in ("onecycle", "cyclic") or bool(schedule["schedulers"]))
    return bool(document["optimizer"]["warmup_steps"]) and not starts_low


def _scheduler(document: Mapping[str, Any]) -> str:
    schedule = document["scheduler"]
    if schedule is None:
        return ""
    parts = [_call(part["name"], ["optimizer"], part["kwargs"]) for part in schedule["schedulers"]]
    given = ["optimizer", f"[{', '.join(parts)}]"] if parts else ["optimizer"]
    by_hand = "" if schedule["interval"] == "step" else "  # scheduler.step(figure) after each epoch"
    return f"scheduler = {_call(schedule['name'], given, schedule['kwargs'])}{by_hand}"


def _call(name: str, given: list[str], kwargs: Mapping[str, Any]) -> str:
    return f"{name}({', '.join([*given, *(f'{key}={value!r}' for key, value in kwargs.items())])})"


def _loop(document: Mapping[str, Any], batch: _Batch) -> list[str]:
    scaled, steps = document["grad_scaler"]["enabled"], document["gradient_accumulation_steps"]
    autocast = document["autocast"]
    loss = [f"loss = {batch.loss()}"]
    if autocast["enabled"]:
        header = f'with torch.autocast("{autocast["device_type"]}", dtype=torch.{autocast["dtype"]}):'
        loss = [header, f"    {loss[0]}"]
    body = [*batch.moved(), *loss, "scaler.scale(loss).backward()" if scaled else "loss.backward()"]
    update = _update(document)
    if steps == 1:
        head = ["for epoch in range(epochs):", f"    for {batch.names} in loader:"]
        return head + [f"        {line}" for line in body + update]
    names = f"({batch.names})" if batch.pair else batch.names
    head = [f"for i, {names} in enumerate((b for _ in range(epochs) for b in loader), start=1):"]
    return head + [f"    {line}" for line in [*body, f"if i % {steps} == 0:", *(f"    {line}" for line in update)]]


def _update(document: Mapping[str, Any]) -> list[str]:
    scaled, norm = document["grad_scaler"]["enabled"], document["max_grad_norm"]
    clip = []
    if norm is not None:
        clip = ["scaler.unscale_(optimizer)"] if scaled else []
        clip.append(f"torch.nn.utils.clip_grad_norm_(model.parameters(), {norm!r})")
    step = ["scaler.step(optimizer)", "scaler.update()"] if scaled else ["optimizer.step()"]
    step.append("optimizer.zero_grad(set_to_none=True)")
    if _has_warmup(document):
        step.append("warmup.step()")
    if document["scheduler"] is not None and document["scheduler"]["interval"] == "step":
        step.append("scheduler.step()")
    return [line for line in ("; ".join(clip), "; ".join(step)) if line]
