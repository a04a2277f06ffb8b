"""Environment variables that torch reads when it is imported."""

from __future__ import annotations

import shlex

from autotune.export.record import Export
from autotune.export.text import comments
from autotune.export.wanted import Wanted

__all__ = ["export"]


def export(wanted: Wanted) -> Export:
    """Variables, to be set before Python starts.

    Args:
        wanted: What the settings ask for.
    """
    variables: dict[str, str] = {}
    threads = wanted.take("num_threads")
    if threads is not None:
        variables |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if wanted.get("precision") == "tf32" and wanted.device == "cuda":
        wanted.take("precision")
        variables["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "1"
    left = wanted.left("torch reads no environment variable for it")
    text = comments(left) + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return Export(
        dialect="env", data={"environment": variables}, text=text, file_name="autotune.env", not_expressed=left
    )
