"""Hugging Face: a Trainer is tuned as it stands, then trains with what was found.

Run it with ``python examples/hf_trainer.py`` (about 40 s on two cores; nothing is downloaded).
"""

from __future__ import annotations

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from autotune.integrations import autotune_trainer


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Rows of numbers that count up by one step or another, which a language model can learn."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index + torch.arange(32) * (1 + index % 5)) % 64
        return {"input_ids": tokens, "labels": tokens}


def make_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def main(time_budget_s: float = 30.0) -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            num_train_epochs=1,
            report_to="none",
            save_strategy="no",
        )
        trainer = Trainer(model=make_model(), args=args, train_dataset=Counting())
        trainer, tuned = autotune_trainer(trainer, time_budget_s=time_budget_s)
        print(tuned)
        trained = trainer.train()
    promised = tuned.evidence.samples_per_s
    if promised:
        real = trained.metrics["train_samples_per_second"]
        print(f"{real:.0f} samples/s, start-up included; {promised:.0f} were promised")


if __name__ == "__main__":  # the loader's workers import this file again on macOS and Windows
    main(*map(float, sys.argv[1:]))
