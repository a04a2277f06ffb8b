"""From a verdict to the tuned config: learning rates for both answers, and all that is known beside them."""

from __future__ import annotations

import dataclasses
from functools import partial

from autotune.config.evidence import Evidence
from autotune.config.tuned_config import TunedConfig
from autotune.config.verdict import Verdict
from autotune.hardware import Hardware
from autotune.learning_rate import (
    LearningRatePlan,
    LrScaling,
    NoiseScale,
    WeightDecayScaling,
    optimizer_advice,
    scale,
)
from autotune.settings import Settings
from autotune.space import Candidates
from autotune.task import Task

__all__ = ["assemble"]


def assemble(
    verdict: Verdict,
    candidates: Candidates,
    *,
    task: Task,
    hardware: Hardware,
    lr_scaling: LrScaling | None,
    weight_decay_scaling: WeightDecayScaling | None = None,
    noise_scale: NoiseScale | None = None,
) -> TunedConfig:
    """The tuned config of ``verdict``, its same-batch twin included.

    Args:
        verdict: What is returned and why.
        candidates: Baseline, facts and the batch the learning rate was chosen for.
        task: The task, for the builders.
        hardware: Where it was measured.
        lr_scaling: Rule by which learning rates follow the batch.
        weight_decay_scaling: Rule by which weight decay does; None: it stays.
        noise_scale: How large a batch still pays; None: not measured.
    """
    config = partial(
        TunedConfig,
        baseline=candidates.baseline,
        facts=candidates.facts,
        hardware=hardware,
        max_grad_norm=task.max_grad_norm,
        task=task,
    )
    rate = partial(_learning_rate, lr_scaling, weight_decay_scaling, candidates)
    same_batch = config(
        settings=verdict.same_batch_settings,
        learning_rate=rate(verdict.same_batch_settings),
        evidence=_with_advice(verdict.same_batch_evidence, verdict.same_batch_settings, candidates, noise_scale),
    )
    return config(
        settings=verdict.settings,
        learning_rate=rate(verdict.settings),
        evidence=_with_advice(verdict.evidence, verdict.settings, candidates, noise_scale),
        same_batch=same_batch,
    )


def _with_advice(
    evidence: Evidence, settings: Settings, candidates: Candidates, noise_scale: NoiseScale | None
) -> Evidence:
    facts = candidates.facts
    decay = facts.optimizer_kwargs.get("weight_decay")
    advice = optimizer_advice(
        facts.optimizer_name,
        settings.effective_batch_size,
        weight_decay=decay if isinstance(decay, (int, float)) else None,
    )
    return dataclasses.replace(evidence, warnings=(*evidence.warnings, *advice), noise_scale=noise_scale)


def _learning_rate(
    rule: LrScaling | None, weight_decay: WeightDecayScaling | None, candidates: Candidates, settings: Settings
) -> LearningRatePlan:
    if settings == candidates.baseline and settings.effective_batch_size == candidates.facts.loader["batch_size"]:
        return _as_it_is(candidates)
    effective, samples = settings.effective_batch_size, candidates.facts.samples
    return scale(
        base_batch_size=candidates.base_batch_size,
        effective_batch_size=effective,
        rule=rule,
        optimizer_name=candidates.facts.optimizer_name,
        steps_per_epoch=-(-samples // effective) if samples and effective else None,
        reduction=candidates.facts.reduction,
        weight_decay=weight_decay,
    )


def _as_it_is(candidates: Candidates) -> LearningRatePlan:
    """The caller's own settings keep the caller's own learning rate."""
    base, effective = candidates.base_batch_size, candidates.baseline.effective_batch_size
    notes: tuple[str, ...] = ()
    if effective is not None and base != effective:
        notes = (f"The learning rate is said to be for batch {base}; your batch of {effective} keeps it as it is.",)
    return LearningRatePlan(factor=1.0, rule="none", capped=False, warmup_steps=0, notes=notes)
