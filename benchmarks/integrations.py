"""Do a Lightning and a Hugging Face Trainer reach the rate that tuning promised?

    python benchmarks/integrations.py [--time-budget 60] [--rounds 5] [--seconds 10] [--tiny]

Tunes the waves of ``examples/lightning_callback.py`` and the language model of ``examples/hf_trainer.py`` through the
integrations, then trains on through the Trainer, start-up left out: chunks of ``--seconds`` in one fit. Prints real /
promised per library, the median of ``--rounds`` chunks with their spread.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

WARM_UP_S = 3.0


class Chunks:
    """Samples per second in chunks of time, whole accumulation groups each.

    Args:
        rows: Samples per group.
        seconds: Of a chunk.
        rounds: Chunks wanted.
        warm_up_s: Left out at the beginning.
    """

    def __init__(self, *, rows: int, seconds: float, rounds: int, warm_up_s: float = WARM_UP_S) -> None:
        self.rates: list[float] = []
        self._rows, self._seconds, self._rounds, self._warm_up_s = rows, seconds, rounds, warm_up_s
        self._began: float | None = None
        self._start: float | None = None
        self._groups = 0

    def update(self, now: float | None = None) -> bool:
        """Count a group that is done; whether there are enough chunks."""
        now = time.perf_counter() if now is None else now
        if self._began is None:
            self._began = now
        if self._start is None:
            if now - self._began >= self._warm_up_s:
                self._start, self._groups = now, 0
            return False
        self._groups += 1
        if now - self._start >= self._seconds:
            self.rates.append(self._groups * self._rows / (now - self._start))
            self._start, self._groups = now, 0
        return len(self.rates) >= self._rounds


def what_was_set(tuned: Any) -> str:
    """Settings other than the baseline's, and the threads that training really had."""
    import torch

    changed = {name: new for name, (_, new) in tuned.baseline.differences(tuned.settings).items()}
    return f"set {changed or 'nothing (baseline kept)'}; {torch.get_num_threads()} threads"


def lightning_ratio(budget_s: float, rounds: int, seconds: float) -> tuple[float, list[float]]:
    """Promised and real rates through Lightning."""
    import torch
    from lightning.pytorch import Callback, Trainer
    from lightning_callback import WaveModule

    from autotune.integrations import AutotuneCallback

    torch.manual_seed(0)
    tuning = AutotuneCallback(time_budget_s=budget_s)

    class Meter(Callback):
        chunks: Chunks | None = None

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            assert tuning.tuned is not None
            settings = tuning.tuned.settings
            if self.chunks is None:
                rows = settings.effective_batch_size or len(batch[1])
                self.chunks = Chunks(rows=rows, seconds=seconds, rounds=rounds)
            if (batch_idx + 1) % settings.gradient_accumulation_steps == 0:
                trainer.should_stop = self.chunks.update()

    meter = Meter()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_epochs=10_000, callbacks=[tuning, meter], **quiet).fit(WaveModule())
    assert tuning.tuned is not None
    assert meter.chunks is not None
    print(f"lightning: {what_was_set(tuning.tuned)}")
    return tuning.tuned.evidence.samples_per_s or float("nan"), meter.chunks.rates


def hugging_face_ratio(budget_s: float, rounds: int, seconds: float) -> tuple[float, list[float]]:
    """Promised and real rates through Hugging Face's Trainer."""
    from hf_trainer import Counting, make_model
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from autotune.integrations import autotune_trainer

    with tempfile.TemporaryDirectory() as folder:
        quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        args = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=8, learning_rate=1e-3, num_train_epochs=10_000, **quiet
        )
        trainer = Trainer(model=make_model(), args=args, train_dataset=Counting())
        trainer, tuned = autotune_trainer(trainer, time_budget_s=budget_s)
        chunks = Chunks(rows=tuned.settings.effective_batch_size or 8, seconds=seconds, rounds=rounds)

        class Meter(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = chunks.update()

        trainer.add_callback(Meter())
        trainer.train()
        print(f"hf: {what_was_set(tuned)}")
    return tuned.evidence.samples_per_s or float("nan"), chunks.rates


def main() -> None:
    """Runs both and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-budget", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", choices=["lightning", "hf"])
    parser.add_argument("--tiny", action="store_true", help="does it run at all")
    given = parser.parse_args()
    budget_s, rounds, seconds = (15.0, 2, 1.0) if given.tiny else (given.time_budget, given.rounds, given.seconds)
    for name, measured in (("lightning", lightning_ratio), ("hf", hugging_face_ratio)):
        if given.only in (None, name):
            promised, real = measured(budget_s, rounds, seconds)
            ratios = sorted(rate / promised for rate in real)
            spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
            print(
                f"{name}: promised {promised:.0f} samples/s, real/promised {statistics.median(ratios):.3f} ({spread})"
            )


if __name__ == "__main__":
    main()
