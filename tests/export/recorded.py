"""What libraries accept that the tests do not install, recorded from their sources."""

from __future__ import annotations

import argparse
from typing import Any

from timm.utils import ParseKwargs

__all__ = ["DEEPSPEED", "FASTAI_LOADER", "TORCHTITAN_02", "TORCHTITAN_03", "timm_parser"]

# huggingface/pytorch-image-models, train.py at aa4b5850c1543fa488abf260f18390eda46cf85d: the options that concern us.
_TIMM: dict[str, dict[str, Any]] = {
    **{name: {"type": int} for name in ("--batch-size", "--workers", "--grad-accum-steps", "--warmup-epochs")},
    **{name: {"action": "store_true"} for name in ("--pin-mem", "--amp", "--channels-last", "--grad-checkpointing")},
    **{name: {"type": str} for name in ("--device", "--amp-dtype", "--torchcompile-mode", "--clip-mode", "--opt")},
    **{name: {"type": float} for name in ("--clip-grad", "--opt-eps", "--momentum", "--weight-decay", "--lr")},
    "--torchcompile": {"type": str, "nargs": "?", "const": "inductor"},
    "--opt-betas": {"type": float, "nargs": "+"},
    "--opt-kwargs": {"nargs": "*", "default": {}, "action": ParseKwargs},
}

# DeepSpeed 0.19.8, deepspeed/runtime/constants.py and config.py.
DEEPSPEED = {
    "train_batch_size": int,
    "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int,
    "gradient_clipping": float,
    "bf16": dict,
    "fp16": dict,
    "optimizer": dict,
    "scheduler": dict,
}

# fastai 2.8.12, fastai/data/load.py: DataLoader.__init__.
FASTAI_LOADER = {"bs", "num_workers", "pin_memory", "timeout", "shuffle", "drop_last", "persistent_workers"}

# torchtitan 0.2.2, torchtitan/config/job_config.py.
TORCHTITAN_02 = {
    "training": {"local_batch_size", "global_batch_size", "max_norm", "mixed_precision_param"},
    "training.dataloader": {"num_workers", "persistent_workers", "pin_memory", "prefetch_factor"},
    "optimizer": {"name", "lr", "beta1", "beta2", "eps", "weight_decay", "implementation"},
    "lr_scheduler": {"warmup_steps"},
    "compile": {"enable", "components"},
}

# torchtitan 0.3.0, torchtitan/config/configs.py, components/dataloader.py, optimizer/optimizer.py, lr_scheduler.py.
TORCHTITAN_03 = {
    *(f"--training.{name}" for name in TORCHTITAN_02["training"]),
    *(f"--dataloader.{name}" for name in TORCHTITAN_02["training.dataloader"]),
    *(f"--dataloader.no_{name}" for name in ("persistent_workers", "pin_memory")),
    *("--optimizer.implementation", "--lr_scheduler.warmup_steps"),
    *("--compile.enable", "--compile.no_enable", "--compile.components"),
}


def timm_parser() -> argparse.ArgumentParser:
    """The part of timm's parser that was recorded; anything else is an error."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name, options in _TIMM.items():
        parser.add_argument(name, **options)
    return parser
