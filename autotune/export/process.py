"""What a process is to do before and after it builds a model, as lines of plain torch, where a library has no argument.

Dialects that are pasted into Python can say these things; files that a launcher reads cannot.
"""

from __future__ import annotations

from typing import Any

from autotune.export.wanted import Wanted

__all__ = ["loader_arguments", "model_lines", "process_lines"]


def process_lines(wanted: Wanted, *, cudnn_benchmark: bool = True, tf32: bool = True) -> list[str]:
    """Switches of the whole process.

    Args:
        wanted: What is asked for; taken.
        cudnn_benchmark: The library has no argument for it.
        tf32: The library has no argument for it.
    """
    lines = []
    threads = wanted.take("num_threads")
    if threads is not None:
        lines.append(f"torch.set_num_threads({threads})")
    if cudnn_benchmark and wanted.take("cudnn_benchmark"):
        lines.append("torch.backends.cudnn.benchmark = True")
    if tf32 and wanted.get("precision") == "tf32":
        wanted.take("precision")
        lines.append('torch.set_float32_matmul_precision("high")')
    return lines


def model_lines(wanted: Wanted, *, compiled: bool = True) -> list[str]:
    """What is done to the model itself; blocks that are compiled one by one are for the user to name.

    Args:
        wanted: What is asked for; taken.
        compiled: The library has no argument for ``torch.compile``.
    """
    lines = []
    if wanted.take("channels_last"):
        lines.append("model.to(memory_format=torch.channels_last)")
    if compiled:
        mode, scope = wanted.take("compile_mode"), wanted.take("compile_scope")
        if mode is not None and scope == "blocks":
            lines.append(f"for block in blocks:  # the model's repeated layers\n    block.compile(mode={mode!r})")
        elif mode is not None:
            lines.append(f"model.compile(mode={mode!r})")
    return lines


def loader_arguments(wanted: Wanted) -> dict[str, Any]:
    """All arguments of torch's DataLoader; taken.

    Args:
        wanted: What is asked for.
    """
    return {name: wanted.take(name) for name in wanted.document["dataloader"]}
