"""From a verdict to the tuned config: learning rates for both answers, and all that is known beside them."""

from __future__ import annotations

from functools import partial

from autotune.config.tuned_config import TunedConfig
from autotune.config.verdict import Verdict
from autotune.hardware import Hardware
from autotune.learning_rate import LearningRatePlan, LrScaling, scale
from autotune.settings import Settings
from autotune.space import Candidates
from autotune.task import Task

__all__ = ["assemble"]


def assemble(
    verdict: Verdict, candidates: Candidates, *, task: Task, hardware: Hardware, lr_scaling: LrScaling | None
) -> TunedConfig:
    """The tuned config of ``verdict``, its same-batch twin included.

    Args:
        verdict: What is returned and why.
        candidates: Baseline, facts and the batch the learning rate was chosen for.
        task: The task, for the builders.
        hardware: Where it was measured.
        lr_scaling: Rule by which learning rates follow the batch.
    """
    config = partial(
        TunedConfig,
        baseline=candidates.baseline,
        facts=candidates.facts,
        hardware=hardware,
        max_grad_norm=task.max_grad_norm,
        task=task,
    )
    same_batch = config(
        settings=verdict.same_batch_settings,
        learning_rate=_learning_rate(lr_scaling, candidates, verdict.same_batch_settings),
        evidence=verdict.same_batch_evidence,
    )
    return config(
        settings=verdict.settings,
        learning_rate=_learning_rate(lr_scaling, candidates, verdict.settings),
        evidence=verdict.evidence,
        same_batch=same_batch,
    )


def _learning_rate(rule: LrScaling | None, candidates: Candidates, settings: Settings) -> LearningRatePlan:
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
    )


def _as_it_is(candidates: Candidates) -> LearningRatePlan:
    """The caller's own settings keep the caller's own learning rate."""
    base, effective = candidates.base_batch_size, candidates.baseline.effective_batch_size
    notes: tuple[str, ...] = ()
    if effective is not None and base != effective:
        notes = (f"The learning rate is said to be for batch {base}; your batch of {effective} keeps it as it is.",)
    return LearningRatePlan(factor=1.0, rule="none", capped=False, warmup_steps=0, notes=notes)
