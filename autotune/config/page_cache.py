"""Whether the page cache made loading look faster than an epoch from storage will be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.measurement import Measured, Outcome

__all__ = ["page_cache_doubts"]

_CACHED_SHARE = 0.5  # of what the trials read: above it, their rates say little about storage


def page_cache_doubts(outcomes: Sequence[Outcome], *, samples: int | None, ram_bytes: int) -> Iterator[str]:
    """A sentence where an epoch reads more than RAM can keep, and the trials read it from there.

    Args:
        outcomes: All outcomes of the run.
        samples: Per epoch; None: not known.
        ram_bytes: RAM, all of which might hold file pages.
    """
    seen = [one for one in outcomes if isinstance(one, Measured) and one.kind == "joint" and one.read_bytes]
    rows = sum(chunk.rows for one in seen for chunk in one.chunks)
    read = sum(one.read_bytes or 0 for one in seen)
    cached = 1 - sum(one.fetched_bytes or 0 for one in seen) / max(1, read)
    if not samples or not rows or read / rows * samples <= ram_bytes or cached < _CACHED_SHARE:
        return
    epoch_gib, ram_gib = read / rows * samples / 2**30, ram_bytes / 2**30
    yield (
        f"An epoch reads about {epoch_gib:,.1f} GiB of files, more than the {ram_gib:,.1f} GiB of RAM can keep, but "
        f"{cached:.0%} of what the trials read came from the page cache: with data from storage the rates are an "
        "upper bound."
    )
