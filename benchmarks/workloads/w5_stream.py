"""W5, a stream: the standard library's source through ``tokenize``, files shared out among workers.

A sample is 129 tokens that follow each other; causal convolutions say each one from those before it.
"""

from __future__ import annotations

import tokenize
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.utils.data import IterableDataset, get_worker_info

from . import Workload
from .stdlib import stdlib_files

__all__ = ["CausalNet", "TokenStream", "make", "make_optimizer", "tokens"]

WORDS = 256
"""Few enough for the model not to hide the loading."""

_LENGTH = 128


class TokenStream(IterableDataset[tuple[Tensor, Tensor]]):
    """Tokens of source files, in pieces; each worker reads its own share of the files."""

    def __init__(self, files: list[Path]) -> None:
        self.files = [str(file) for file in files]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for file in self.files[first::step]:
            words = [zlib.crc32(word.encode()) % WORDS for word in _words(file)]
            for start in range(0, len(words) - _LENGTH, _LENGTH):
                piece = torch.tensor(words[start : start + _LENGTH + 1])
                yield piece[:-1], piece[1:]


class CausalNet(nn.Module):
    """0.1 million parameters; every position sees itself and what came before it."""

    def __init__(self, width: int = 64, layers: int = 3, kernel: int = 5) -> None:
        super().__init__()
        self.before = kernel - 1
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, kernel) for _ in range(layers))
        self.predict = nn.Conv1d(width, WORDS, 1)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embed(words).transpose(1, 2)
        for layer in self.layers:
            hidden = hidden + torch.relu(layer(functional.pad(hidden, (self.before, 0))))
        logits: Tensor = self.predict(hidden)
        return logits


def tokens(files: int | None) -> TokenStream:
    """The dataset; ``files`` is how many, None all."""
    return TokenStream(stdlib_files()[:files])


def make_optimizer(params: Iterable[Any]) -> AdamW:
    return AdamW(params, lr=1e-3)


def make(size: int | None) -> Workload:
    return Workload(
        name="w5",
        summary="stream: source of the standard library through tokenize, sharded by worker, causal convolutions",
        model=CausalNet,
        dataset=partial(tokens, size),
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=make_optimizer,
        shuffle=False,
    )


def _words(file: str) -> Iterator[str]:
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            yield token.string
