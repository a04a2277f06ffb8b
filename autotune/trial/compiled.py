"""What torch.compile keeps behind its callers' backs, made to tell the truth in trials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autotune.settings import Settings

__all__ = ["CompiledState", "recompile_limit_hit", "strict_recompiles"]


class CompiledState:
    """Dynamo's cache holds one compiled setting at a time.

    Its entries belong to code, not to models: a second batch size would be compiled with dynamic shapes, and after
    eight graphs it silently runs eager. So what was compiled for other settings is forgotten first.
    """

    def __init__(self) -> None:
        self._compiled: Settings | None = None

    def enter(self, settings: Settings) -> None:
        """Forgets other settings' graphs, unless these very ones are compiled already."""
        training = settings.replace(num_workers=0, pin_memory=False)
        if training != self._compiled:
            torch._dynamo.reset()
            self._compiled = training


@contextmanager
def strict_recompiles(settings: Settings) -> Iterator[None]:
    """While ``settings`` compile, running out of graphs raises: dynamo's default is to go on eagerly in silence."""
    if settings.compile_mode is None:
        yield
        return
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, suppress_errors=False):
        yield


def recompile_limit_hit(error: BaseException) -> str | None:
    """What to tell people where ``error`` is dynamo's word that it ran out of graphs; None: it is something else."""
    if type(error).__name__ != "FailOnRecompileLimitHit":
        return None
    return (
        f"torch.compile needed more than {torch._dynamo.config.recompile_limit} graphs for this model and its "
        "batches; the rest of the training would run eagerly without a word"
    )
