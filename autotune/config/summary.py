"""The result as a text box: the answer, how sure it is, what changes, and what to watch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autotune.config.changes import changes

if TYPE_CHECKING:
    from autotune.config.evidence import Evidence, Speedup
    from autotune.config.tuned_config import TunedConfig

__all__ = ["facts_and_numbers", "headline", "knob_changes", "summary"]

_WIDTH = 110


def summary(config: TunedConfig) -> str:
    """The result box as plain ASCII-framed text, without a trailing newline.

    Args:
        config: A tuned config, loaded or fresh.
    """
    sections = [
        ("", [headline(config)]),
        ("Measured", [f"{name:<16} {value}" for name, value in facts_and_numbers(config)]),
        ("Settings", [f"{knob:<28} {old} -> {new}" for knob, old, new in knob_changes(config)]),
        ("What changes in your training", changes(config)),
        ("Not varied", [f"{knob}: {reason}" for knob, reason in config.evidence.dropped_knobs.items()]),
        ("Warnings", list(config.evidence.warnings)),
    ]
    lines = []
    for title, items in sections:
        if items:
            lines += [title] if title else []
            lines += _wrapped(items, "  " if title else "")
    rule = "-" * _WIDTH
    return "\n".join([rule, *lines, rule])


def headline(config: TunedConfig) -> str:
    """The answer in one or two sentences."""
    evidence = config.evidence
    if evidence.kept_baseline:
        said = evidence.reason.lower().startswith(("baseline kept", "not tuned"))
        return _sentence(evidence.reason if said else f"baseline kept: {evidence.reason}")
    speed = f"{_speedup(evidence.speedup)}. " if evidence.speedup else ""
    return f"{speed}{_sentence(evidence.reason)}".strip()


def facts_and_numbers(config: TunedConfig) -> list[tuple[str, str]]:
    """What was measured, as name and text, in the order of showing."""
    evidence = config.evidence
    rows: list[tuple[str, str | None]] = [
        ("task", config.saved.name or None),
        ("speed", _speed(evidence)),
        ("baseline", _rate(evidence.baseline_samples_per_s)),
        ("upper bound", _upper_bound(evidence)),
        ("waiting for data", _share(evidence.data_wait_share)),
        ("padding", _padding(evidence)),
        ("same batch", _same_batch(config)),
        ("largest batch", None if evidence.largest_batch is None else f"{evidence.largest_batch} samples ran"),
        ("batch", _batches(config)),
        ("time", _spent(config)),
    ]
    return [(name, text) for name, text in rows if text is not None]


def knob_changes(config: TunedConfig) -> list[tuple[str, str, str]]:
    """Knobs that differ from the baseline: name, baseline's value, chosen value."""
    pairs = config.baseline.differences(config.settings)
    return [(knob, _shown(old), _shown(new)) for knob, (old, new) in pairs.items()]


def _speedup(speedup: Speedup) -> str:
    return (
        f"{speedup.median:.2f}x the baseline's samples/s (95 % sure of {speedup.low:.2f}x or more; "
        f"{speedup.rounds} interleaved rounds)"
    )


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) or not text else ".")


def _same_batch(config: TunedConfig) -> str | None:
    speedup = config.evidence.speedup_same_batch
    if speedup is None or config.settings.effective_batch_size == config.baseline.effective_batch_size:
        return None
    if config.keep_batch().settings == config.baseline:
        return "nothing proven faster with the batch kept: tuned.keep_batch() gives the baseline"
    return f"{_speedup(speedup)}: tuned.keep_batch()"


def _batches(config: TunedConfig) -> str | None:
    """Where the noise scale was measured: what fits, what is fastest, what still pays."""
    noise, fastest = config.evidence.noise_scale, config.settings.effective_batch_size
    if noise is None or fastest is None:
        return None
    useful = noise.useful_batch(config.baseline.effective_batch_size or 1)
    still = f"above {noise.large_batch:,}" if useful is None else f"{useful:,}"
    fits = "" if config.evidence.largest_batch is None else f"fits {config.evidence.largest_batch:,} or more · "
    return f"{fits}fastest {fastest:,} · still useful {still}. {str(noise)[:1].upper()}{str(noise)[1:]}"


def _upper_bound(evidence: Evidence) -> str | None:
    bound = evidence.upper_bound_samples_per_s
    if bound is None:
        return None
    share = f"; you are at {evidence.samples_per_s / bound:.0%} of it" if evidence.samples_per_s and bound else ""
    return f"{bound:,.1f} samples/s, if loader and step never waited for each other{share}"


def _rate(samples_per_s: float | None) -> str | None:
    return None if samples_per_s is None else f"{samples_per_s:,.1f} samples/s"


def _speed(evidence: Evidence) -> str | None:
    rate = _rate(evidence.samples_per_s)
    return rate if rate is None or evidence.tokens_per_s is None else f"{rate}, {evidence.tokens_per_s:,.0f} tokens/s"


def _padding(evidence: Evidence) -> str | None:
    share, seen = evidence.padding_share, evidence.samples_seen
    read = "" if seen is None else f" ({seen:,} samples read)"
    return None if share is None else f"{share:.0%} of the baseline's batches{read}"


def _share(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%} of the time"


def _spent(config: TunedConfig) -> str | None:
    evidence = config.evidence
    if not evidence.spent_s:
        return None
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in evidence.spent_s.items())
    return f"{sum(evidence.spent_s.values()):.0f} s, {evidence.trials} trials ({parts})"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _wrapped(items: Iterable[str], indent: str) -> list[str]:
    lines = []
    for item in items:
        lines += textwrap.wrap(item, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ") or [indent]
    return lines
