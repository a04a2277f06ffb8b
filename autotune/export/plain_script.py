"""The texts that the plain script is made of; ``<<NAME>>`` stands for what follows from the settings."""

from __future__ import annotations

import re

__all__ = ["BESIDE", "DATA", "MODEL", "OPTIMIZER", "PARTS", "TEMPLATE", "step_of_pair", "training_step"]

BESIDE = "train_parts"
"""Name of the module beside the script, without its ending."""

# As a batch's structure is written: list(float32[*,3,32,32], int64[*]) or dict(input_ids=int64[*,128], ...).
_PAIR = re.compile(r"(list|tuple)\(\w+\[[^\]]*\], \w+\[[^\]]*\]\)")

TEMPLATE = '''"""Trains with settings that torch-autotune measured. Needs torch, and <<PARTS>>.py beside this file.

Written by ``torch-autotune export --to plain``: export again rather than editing it; what is yours is in <<PARTS>>.py.
"""

from __future__ import annotations

import contextlib
import time
<<IMPORTS>>
import torch
from torch import nn
from torch.utils.data import DataLoader

import <<PARTS>> as yours

<<COMMENTS>>DEVICE = <<DEVICE>>
LOADER = <<LOADER>>
STEPS = <<STEPS>>  # batches per optimizer step
MEAN = <<MEAN>>  # the loss is a mean over a batch, not a sum
AUTOCAST = <<DTYPE>>
MAX_GRAD_NORM = <<NORM>>
LR_FACTOR = <<FACTOR>>  # the learning rates are this times those before tuning
WARMUP_STEPS = <<WARMUP>>
CHANNELS_LAST = <<CHANNELS_LAST>>


<<BLOCKS>>def set_switches():
    """Process-wide switches."""
<<SWITCHES>>


def prepare(model):
    """Device, memory format, recomputation, compilation."""
    model.to(DEVICE)
<<PREPARE>>
    return model


def make_optimizer(model):
    """The optimizer, at the tuned learning rate."""
    return <<MAKE_OPTIMIZER>>


def to_device(value):
    """Tensors in lists, tuples and mappings on the device, images laid out as the model is."""
    if isinstance(value, torch.Tensor):
        value = value.to(DEVICE, non_blocking=bool(LOADER.get("pin_memory")))
        image = CHANNELS_LAST and value.dim() == 4 and value.is_floating_point()
        return value.contiguous(memory_format=torch.channels_last) if image else value
    if isinstance(value, dict):
        return {name: to_device(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(to_device, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(to_device, value))
    return value.to(DEVICE) if hasattr(value, "to") else value


class Step:
    """One optimizer step per STEPS batches; a group weighs its batches by their rows, however short it is."""

    def __init__(self, model, optimizer, scheduler=None):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.scaler = torch.amp.GradScaler(DEVICE) if AUTOCAST is torch.float16 else None
        self.updates = self.batches = 0
        self.nominal = self.weights = 0.0
        optimizer.zero_grad(set_to_none=True)

    def __call__(self, batch):
        """The loss of a batch, detached."""
        autocast = torch.autocast(DEVICE, dtype=AUTOCAST) if AUTOCAST else contextlib.nullcontext()
        with autocast:
            loss, weight = yours.training_step(self.model, to_device(batch))
        weighted = loss
        if MEAN and STEPS > 1:
            if self.batches == 0:
                self.nominal = STEPS * (float(weight) or 1.0)
            weighted = loss * (float(weight) / self.nominal) if weight else loss.nan_to_num() * 0.0
        (weighted if self.scaler is None else self.scaler.scale(weighted)).backward()
        self.batches += 1
        self.weights += float(weight)
        if self.batches == STEPS:
            self.flush()
        return loss.detach()

    def flush(self):
        """Close an open group; call it at an epoch's end."""
        if self.batches == 0:
            return
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if MEAN and STEPS > 1 and self.weights not in (0.0, self.nominal):
            torch._foreach_mul_([p.grad for p in parameters], self.nominal / self.weights)
        if MAX_GRAD_NORM is not None:
            nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        updated = self.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.batches, self.weights = 0, 0.0
        if updated:
            self.updates += 1
            if self.scheduler is not None:
                self.scheduler.step()

    def update(self):
        """An optimizer step at the warm-up's rate; whether GradScaler let it happen."""
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        if LR_FACTOR > 1 and self.updates < WARMUP_STEPS:
            share = 1 / LR_FACTOR + (1 - 1 / LR_FACTOR) * self.updates / WARMUP_STEPS
            for group, rate in zip(groups, rates):
                group["lr"] = rate * share
        before = 0.0
        if self.scaler is None:
            self.optimizer.step()
        else:
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        for group, rate in zip(groups, rates):
            group["lr"] = rate
        return self.scaler is None or self.scaler.get_scale() >= before


def main():
    set_switches()
    model = prepare(yours.make_model())
    optimizer = make_optimizer(model)
    step = Step(model, optimizer, yours.make_scheduler(optimizer))
    dataset = yours.make_dataset()
    loader = <<MAKE_LOADER>>
    for epoch in range(yours.EPOCHS):
        model.train()
        began, batches, samples = time.perf_counter(), 0, 0
        total = torch.zeros((), device=DEVICE)
        for batch in loader:
            total += step(batch)
            batches += 1
            samples += yours.rows(batch)
        step.flush()
        loss = float(total) / max(batches, 1)  # waits for the device
        rate = samples / (time.perf_counter() - began)
        print(f"epoch {epoch}: loss {loss:.4f}, {rate:.1f} samples/s", flush=True)
        yours.after_epoch(epoch, model, optimizer)


if __name__ == "__main__":  # loader workers import this file again on macOS and Windows
    main()
'''

PARTS = '''"""Yours: what the settings of the task '<<NAME>>' train.

<<TOLD>>
``torch-autotune export`` never overwrites this file.
"""

from __future__ import annotations

<<IMPORTS>>import torch
from torch import nn

EPOCHS = 1
<<SOURCE>>

# ---- yours: the model -----------------------------------------------------------------------------------------------
<<MODEL>>


# ---- yours: the data ------------------------------------------------------------------------------------------------
<<DATA>>


# ---- yours: the loss ------------------------------------------------------------------------------------------------
<<LOSS>>


def rows(batch):
    """Samples in a batch."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values() if hasattr(batch, "values") else batch))
    return len(batch)


# ---- yours: what else there is --------------------------------------------------------------------------------------
def make_scheduler(optimizer):
    return None  # stepped once per optimizer step


def after_epoch(epoch, model, optimizer):
    pass  # validation, checkpoints


<<NEEDED>>
'''

MODEL = """def make_model():
    raise NotImplementedError("return the model that was tuned")"""

DATA = """def make_dataset():
    raise NotImplementedError("return the dataset that was tuned")"""

OPTIMIZER = """def make_optimizer(model):
    raise NotImplementedError("<<TOLD>>")"""

_LOSS_FN = """def loss_fn(output, target):
    raise NotImplementedError("return the loss; <<MEASURED>>")"""

_STEP_OF_PAIR = '''def training_step(model, batch):
    """The loss, and what it is a mean over: the batch's rows, or the number of targets that count."""
    inputs, target = batch
    return loss_fn(model(inputs), target), len(target)'''

_LOSS_OF_MODEL = '''def training_step(model, batch):
    """The loss, and what it is a mean over: the batch's rows, or the number of targets that count."""
    output = model(**batch) if isinstance(batch, dict) else model(batch)
    return getattr(output, "loss", output), rows(batch)'''

_OWN_STEP = '''def training_step(model, batch):
    """The loss, and what it is a mean over: the batch's rows, or the number of targets that count."""
    raise NotImplementedError("<<MEASURED>>")'''


def step_of_pair(batch_signature: str) -> str | None:
    """The code of a step that calls ``loss_fn``; None where a batch is not inputs and target.

    Args:
        batch_signature: Structure of a batch.
    """
    return _STEP_OF_PAIR if _PAIR.fullmatch(batch_signature) else None


def training_step(source: str, batch_signature: str, measured: str) -> tuple[str, str | None]:
    """The code of a step, and the name of what is left to fill in there; None: nothing is.

    Args:
        source: Where the loss comes from, as in the config's ``task.loss``.
        batch_signature: Structure of a batch.
        measured: With which loss, for people.
    """
    if source == "model":
        return _LOSS_OF_MODEL, None
    step = step_of_pair(batch_signature) if source in ("loss_fn", "guess") else None
    if step is None:
        return _OWN_STEP.replace("<<MEASURED>>", measured), "training_step"
    return f"{_LOSS_FN}\n\n\n{step}".replace("<<MEASURED>>", measured), "loss_fn"
