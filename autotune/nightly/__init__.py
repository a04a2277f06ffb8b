"""The life of a tuned config: is it still true here, and is there something faster by now?

``here`` opens the task on this machine, ``check`` compares a stored config with it, ``remeasure`` renews its figures,
``retune`` searches again where that is called for, ``jobs`` reads what to re-tune from a TOML file, ``retuned`` is what
became of it, and ``journal`` writes that down.
"""

from __future__ import annotations

from autotune.nightly.check import Check, check
from autotune.nightly.here import Here, device_lock, opened, others_at_work
from autotune.nightly.jobs import Job, read_jobs
from autotune.nightly.journal import note
from autotune.nightly.retune import Rules, retune
from autotune.nightly.retuned import Retuned

__all__ = [
    "Check",
    "Here",
    "Job",
    "Retuned",
    "Rules",
    "check",
    "device_lock",
    "note",
    "opened",
    "others_at_work",
    "read_jobs",
    "retune",
]
