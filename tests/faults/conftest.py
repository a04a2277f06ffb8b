"""Searches in this process collect garbage after each size; what the test session holds need not be looked through."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """Freezes what is there already."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small models gain nothing from threads and lose much to busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
