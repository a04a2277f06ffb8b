"""W3, text of very different lengths: which package of the standard library is this docstring from?

Bytes, cut at 1,024, padded to the longest of the batch; an embedding and three convolutions. Every tenth text is held
out.
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from torch.utils.data import Dataset

from . import Workload
from .cache import prepared
from .stdlib import stdlib_files

__all__ = ["ByteNet", "Texts", "docstrings", "make", "make_optimizer", "pad"]

CLASSES = 16
_SHORTEST, _LONGEST = 40, 1024
_HELD_OUT_EVERY = 10


class Texts(Dataset[tuple[Tensor, int]]):
    """Texts as bytes plus one (0 is padding), and the number of the package they are from."""

    def __init__(self, texts: list[tuple[str, int]]) -> None:
        self.texts = [(text.encode()[:_LONGEST], label) for text, label in texts]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        text, label = self.texts[index]
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).long() + 1, label


class ByteNet(nn.Module):
    """0.1 million parameters; the mean over the text's own positions decides."""

    def __init__(self, width: int = 80, classes: int = CLASSES) -> None:
        super().__init__()
        self.embed = nn.Embedding(257, width, padding_idx=0)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(3))
        self.classify = nn.Linear(width, classes)

    def forward(self, texts: Tensor) -> Tensor:
        there = (texts > 0).unsqueeze(1)
        hidden = self.embed(texts).transpose(1, 2)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden)) * there
        logits: Tensor = self.classify(hidden.sum(2) / there.sum(2))
        return logits


def pad(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """A batch, as long as its longest text."""
    texts, labels = zip(*samples, strict=True)
    return pad_sequence(list(texts), batch_first=True), torch.tensor(labels)


def docstrings(held_out: bool, size: int | None) -> Texts:
    """The dataset; the library is read first where that was not done yet."""
    version = ".".join(map(str, sys.version_info[:3]))
    found = [tuple(one) for one in json.loads(prepared(f"w3-docstrings-{version}.json", _collect).read_text())]
    kept = [one for number, one in enumerate(found) if (number % _HELD_OUT_EVERY == 0) == held_out]
    return Texts(kept[:: max(1, len(kept) // size)][:size] if size else kept)


def make_optimizer(params: Iterable[Any]) -> AdamW:
    return AdamW(params, lr=1e-3)


def make(size: int | None) -> Workload:
    return Workload(
        name="w3",
        summary="docstrings of the standard library as padded bytes, three convolutions",
        model=ByteNet,
        dataset=partial(docstrings, False, size),
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=make_optimizer,
        collate_fn=pad,
        held_out=partial(docstrings, True, size),
    )


def _collect(path: Path) -> None:
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {text: file.relative_to(root).parts[0] for file in stdlib_files() for text in _of_file(file)}  # each once
    largest = [package for package, _ in Counter(found.values()).most_common(CLASSES - 1)]
    labels = {package: number for number, package in enumerate(sorted(largest))}
    path.write_text(json.dumps([(text, labels.get(package, CLASSES - 1)) for text, package in found.items()]))


def _of_file(file: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of the library's own strings
        tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None and len(text) >= _SHORTEST:
                yield text
