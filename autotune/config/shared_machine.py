"""Whether others used the machine while a win was measured: then its numbers are those of a machine under that load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.config.tuned_config import TunedConfig

__all__ = ["DOUBT", "OTHERS_CORES", "among_others", "without_doubts"]

OTHERS_CORES = 0.25
"""CPU cores' worth of others' use below which it hardly shows in the rates."""

DOUBT = "Other processes used"
"""How the warnings of a result begin that say so."""


def among_others(config: TunedConfig) -> str | None:
    """Who else used the machine while the settings won their race, in one clause; None: nobody, as far as was seen.

    Args:
        config: A tuned config, loaded or fresh.
    """
    evidence = config.evidence
    if evidence.kept_baseline:
        return None
    cores = evidence.speedup.others_cores if evidence.speedup is not None else None
    if cores is not None and cores > OTHERS_CORES:
        return f"other processes used up to {cores:.1f} cores"
    there = _processes_on_device(config.hardware)
    return f"other processes ({there}) were on the device" if there else None


def without_doubts(warnings: Iterable[str]) -> tuple[str, ...]:
    """Warnings without those that others' use of the machine had called for.

    Args:
        warnings: Of a result that was measured again.
    """
    return tuple(text for text in warnings if not text.startswith(DOUBT))


def _processes_on_device(hardware: Any) -> int:
    card = hardware.get("accelerator") if isinstance(hardware, Mapping) else hardware.accelerator
    there = card.get("other_processes") if isinstance(card, Mapping) else getattr(card, "other_processes", None)
    return there if isinstance(there, int) else 0
