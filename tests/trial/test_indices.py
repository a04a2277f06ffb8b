"""Each trial reads other samples than the ones before it."""

from __future__ import annotations

from autotune.trial.indices import ContinuedSampler


def test_two_trials_read_disjoint_parts_until_the_data_is_used_up() -> None:
    """The second sampler starts where the first one stopped reading."""
    first = list(ContinuedSampler(100, offset=0, shuffle=True, seed=1))[:40]
    second = list(ContinuedSampler(100, offset=40, shuffle=True, seed=1))[:60]
    assert not set(first) & set(second)


def test_an_epoch_holds_every_sample_once_wherever_it_starts() -> None:
    """Wrapping around loses and repeats nothing."""
    assert sorted(ContinuedSampler(10_000, offset=9_999, shuffle=True, seed=0)) == list(range(10_000))


def test_without_shuffling_the_natural_order_is_kept() -> None:
    """Sequential reading stays sequential, from the offset on."""
    assert list(ContinuedSampler(5, offset=3, shuffle=False, seed=0)) == [3, 4, 0, 1, 2]
