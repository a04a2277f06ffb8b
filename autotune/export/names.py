"""The names of the dialects; nothing is loaded to know them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DIALECTS"]

DIALECTS: Mapping[str, str] = {
    "plain": "a training script in plain PyTorch",
    "lightning": "arguments of Lightning's Trainer and of the DataLoader",
    "hf": "arguments of Hugging Face's TrainingArguments",
    "accelerate": "a configuration file of Accelerate",
    "deepspeed": "a configuration file of DeepSpeed",
    "timm": "arguments of timm's train.py",
    "fastai": "arguments of fastai's DataLoaders and callbacks of its Learner",
    "torchtitan": "a configuration file of torchtitan 0.2 and arguments of 0.3",
    "env": "environment variables",
}
"""What each one gives."""
