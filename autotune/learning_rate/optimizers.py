"""What is worth saying about the optimizer: AdamW over Adam, LARS and LAMB for very large batches. Only advice."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from autotune.learning_rate.rules import is_adaptive

__all__ = ["LAMB_ABOVE", "LARS_ABOVE", "optimizer_advice"]

# With the linear rule and warm-up ResNet-50 loses accuracy beyond 8k samples per step (Goyal et al. 2017, sections 2.1
# and 5.3); with layer-wise rates (LARS) it went up to 32K "without loss in accuracy" (abstract of You et al. 2017,
# "Large Batch Training of Convolutional Networks", arXiv:1708.03888).
LARS_ABOVE = 8192
# You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (arXiv:1904.00962): AdamW
# stops scaling beyond 16K samples per step, LAMB goes on to 32K.
LAMB_ABOVE = 16384

_LAYER_WISE = ("lars", "lamb", "larc")  # within the name, as in FusedLAMB


def optimizer_advice(
    optimizer_name: str,
    effective_batch_size: int | None,
    *,
    weight_decay: float | None = None,
    installed: Callable[[str], bool] = lambda name: find_spec(name) is not None,
) -> tuple[str, ...]:
    """Sentences about another optimizer; nothing is ever switched.

    Args:
        optimizer_name: Class name, qualified or not.
        effective_batch_size: Samples per optimizer step; None: the user's own batches.
        weight_decay: The optimizer's; None: it has none.
        installed: Whether a package can be imported.

    Source: for AdamW, Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization" (arXiv:1711.05101), section 2,
    proposition 2; for the others, the comments above.
    """
    said = []
    if optimizer_name.rpartition(".")[2] == "Adam" and weight_decay:
        said.append(
            "Adam adds weight decay to the gradient, where it is divided by the gradient's own scale; AdamW keeps it "
            "apart (Loshchilov & Hutter 2019). It is another training, so it is for you to choose."
        )
    layer_wise = _layer_wise_advice(optimizer_name, effective_batch_size or 0, installed)
    return (*said, layer_wise) if layer_wise is not None else tuple(said)


def _layer_wise_advice(optimizer_name: str, effective: int, installed: Callable[[str], bool]) -> str | None:
    name = optimizer_name.rpartition(".")[2]
    adaptive = is_adaptive(name)
    above = LAMB_ABOVE if adaptive else LARS_ABOVE
    if effective <= above or any(part in name.lower() for part in _LAYER_WISE):
        return None
    other, source = ("Lamb", "LAMB, You et al. 2020") if adaptive else ("Lars", "LARS, You et al. 2017")
    where = f"timm.optim.{other} has it" if installed("timm") else f"timm.optim.{other} has it, once timm is installed"
    return (
        f"{effective:,} samples per step are beyond the {above:,} up to which {name} with a scaled rate was seen to "
        f"hold its accuracy; layer-wise rates ({source}) went on to 32,768. {where}; nothing was switched. Where there "
        "is no weight decay, it takes always_adapt=True."
    )
