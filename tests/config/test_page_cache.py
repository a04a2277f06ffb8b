"""Rates that the page cache flatters are called an upper bound."""

from __future__ import annotations

import pytest

from autotune.config.page_cache import page_cache_doubts
from autotune.measurement import Chunk, Measured, Outcome
from autotune.settings import Settings


def _trial(read: int | None, fetched: int | None) -> Outcome:
    chunks = (Chunk(100, 1.0),)
    return Measured(kind="joint", settings=Settings(), chunks=chunks, read_bytes=read, fetched_bytes=fetched)


@pytest.mark.parametrize(
    ("read", "fetched", "samples", "doubted"),
    [
        (100 * 2**20, 0, 10_000, True),
        (100 * 2**20, 100 * 2**20, 10_000, False),
        (100 * 2**20, 0, 1_000, False),
        (100 * 2**20, 0, None, False),
        (None, None, 10_000, False),
        (0, 0, 10_000, False),
    ],
    ids=["cached", "from storage", "fits RAM", "a stream", "not readable", "nothing read"],
)
def test_only_data_beyond_ram_read_from_the_cache_is_doubted(
    read: int | None, fetched: int | None, samples: int | None, doubted: bool
) -> None:
    """1 MiB a sample against 4 GiB of RAM: 10,000 samples do not fit, 1,000 do."""
    said = list(page_cache_doubts([_trial(read, fetched)], samples=samples, ram_bytes=4 * 2**30))
    assert bool(said) is doubted
    assert not said or ("9.8 GiB" in said[0] and "100%" in said[0] and "upper bound" in said[0])


def test_failed_trials_and_laps_do_not_count() -> None:
    """No rate is doubted by what has none."""
    assert list(page_cache_doubts([], samples=10, ram_bytes=1)) == []
