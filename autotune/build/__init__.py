"""``Settings`` made into live objects: loader, model, optimizer, process-wide switches and the train step.

Trials and the user's own training go through the same builders, so that what was measured is what is shipped.
"""

from __future__ import annotations

from autotune.build.loader import build_loader, drops_last_batch, loader_arguments
from autotune.build.model import prepare_model
from autotune.build.optimizer import apply_to, build_optimizer, implementation_of
from autotune.build.rate import SlowTrainingWarning
from autotune.build.switches import apply_switches, switches
from autotune.build.train_step import TrainStep

__all__ = [
    "SlowTrainingWarning",
    "TrainStep",
    "apply_switches",
    "apply_to",
    "build_loader",
    "build_optimizer",
    "drops_last_batch",
    "implementation_of",
    "loader_arguments",
    "prepare_model",
    "switches",
]
