"""The result box."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from autotune.config import Evidence, TunedConfig
from autotune.config.summary import summary
from autotune.settings import Settings
from tests.config.conftest import evidence

MakeConfig = Callable[..., TunedConfig]


def _kept(reason: str) -> Evidence:
    return Evidence(kept_baseline=True, reason=reason, baseline_samples_per_s=385.5, trials=3, spent_s={"search": 20.0})


def test_win_is_told_with_its_bound_and_rounds(make_config: MakeConfig) -> None:
    """The headline holds the ratio, what it is at least, and how many rounds decided."""
    text = summary(make_config())
    assert "1.74x the baseline's samples/s (95 % sure of 1.61x or more; 6 interleaved rounds). Won the race." in text


def test_box_holds_measurements_settings_changes_and_doubts(make_config: MakeConfig) -> None:
    """All that a reader must know is in it, and plain ASCII so that any terminal shows it."""
    text = summary(make_config())
    for part in (
        "671.0 samples/s", "385.5 samples/s", "760.0 samples/s", "25% of the time", "64 samples ran", "9 trials",
        "gradient_accumulation_steps", "1 -> 4", "What changes in your training", "compile_mode: no compiler",
        "busy machine", "tuned.keep_batch()",
    ):  # fmt: skip
        assert part in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("reason", "headline"),
    [
        ("nothing tried was faster", "Baseline kept: nothing tried was faster."),
        ("baseline kept: interrupted", "Baseline kept: interrupted."),
        ("not tuned: the budget was too short.", "Not tuned: the budget was too short."),
    ],
)
def test_kept_baseline_is_said_once(make_config: MakeConfig, reason: str, headline: str) -> None:
    """The reason stands beside it, and nothing is reported as changed."""
    lines = summary(make_config(Settings(batch_size=16), evidence=_kept(reason))).splitlines()
    assert lines[1] == headline
    assert not any("->" in line for line in lines)


def test_the_gain_with_the_batch_kept_is_shown_only_where_it_was_proven(make_config: MakeConfig) -> None:
    """A lost race of the same-batch settings is no promise: keep_batch() gives the baseline then."""
    config = make_config()
    assert "nothing proven faster with the batch kept" in summary(config)
    same_batch = dataclasses.replace(config, settings=config.baseline.replace(num_threads=1))
    assert "1.20x" in summary(dataclasses.replace(config, same_batch=same_batch))


def test_tokens_and_padding_are_shown_where_lengths_vary(make_config: MakeConfig) -> None:
    """Beside samples/s, with how many samples were read; not for images."""
    shown = summary(make_config(evidence=evidence(tokens_per_sample=30.0, padding_share=0.4, samples_seen=1234)))
    assert "671.0 samples/s, 20,130 tokens/s" in shown
    assert "40% of the baseline's batches (1,234 samples read)" in shown
    assert "tokens" not in summary(make_config())


def test_box_of_a_loaded_config_is_the_same(make_config: MakeConfig) -> None:
    """Nothing in it depends on the task being there."""
    config = make_config()
    assert summary(TunedConfig.from_json(config.to_json())) == summary(config)


def test_a_bound_of_nothing_is_no_share(make_config: MakeConfig) -> None:
    """A file may say so; what people see of it is still shown."""
    text = summary(make_config(evidence=evidence(upper_bound_samples_per_s=0.0)))
    assert "0.0 samples/s, if loader and step never waited for each other" in text
    assert "of it" not in text
