"""Rate of an exported plain script on the demo's job, where ``autotune`` cannot be imported; prints it.

    python benchmarks/exported_script.py FOLDER_WITH_TRAIN_PY FOLDER_OF_CROPS [SECONDS]

Used by ``round_trip.py --exported``. The folder holds ``train.py`` as exported; its parts are the demo's, written here
as a user would.
"""

from __future__ import annotations

import math
import sys
import time
import types
from pathlib import Path
from typing import Any

from plain_training import WARM_UP_S, Crops, network
from torch import nn
from torch.utils.data import DataLoader


def parts() -> types.ModuleType:
    """The user's parts: loss and rows; model and data are made below."""
    module = types.ModuleType("train_parts")

    def training_step(model: nn.Module, batch: Any) -> tuple[Any, int]:
        return nn.functional.cross_entropy(model(batch[0]), batch[1]), len(batch[1])

    module.training_step = training_step  # type: ignore[attr-defined]
    return module


def rate(folder: str, crops: str, seconds: float) -> float:
    """Samples per second of steady training by the script's own step and loader."""
    sys.modules["train_parts"] = parts()
    sys.path.insert(0, folder)
    import train  # type: ignore[import-not-found]

    train.set_switches()
    model = train.prepare(network())
    step = train.Step(model, train.make_optimizer(model))
    loader = DataLoader(Crops(crops), **train.LOADER)
    chunk = math.lcm(train.STEPS, max(1, train.LOADER["num_workers"]))
    done = rows = 0
    began, start = time.perf_counter(), None
    while True:
        for batch in loader:
            step(batch)
            done += 1
            rows += len(batch[1])
            now = time.perf_counter()
            if done % chunk:
                continue
            if start is None and now - began > WARM_UP_S:
                start, rows = now, 0
            elif start is not None and now - start > seconds:
                return rows / (now - start)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.modules["autotune"] = None  # type: ignore[assignment]  # from here on importing it raises
    print(rate(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 8.0))
