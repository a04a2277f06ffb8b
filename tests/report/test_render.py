"""A config as rich tables."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from autotune.config import TunedConfig
from autotune.report import render, summary

_DATA = Path(__file__).parents[1] / "config" / "data" / "version_1.json"


def _rendered(config: TunedConfig, width: int = 120) -> str:
    text = io.StringIO()
    render(config, Console(file=text, width=width, force_terminal=False))
    return text.getvalue()


def test_tables_hold_answer_numbers_knobs_and_changes() -> None:
    """What the summary tells, the tables tell."""
    config = TunedConfig.load(_DATA)
    text = _rendered(config)
    for part in (
        "1.74x the baseline", "671.0 samples/s", "batch_size", "32", "64", "What changes in your training",
        "BatchNorm", "compile_mode: no compiler", "busy machine", "loss_fn: torch.nn.modules.loss.CrossEntropyLoss",
    ):  # fmt: skip
        assert part in text
    assert "1.74x the baseline" in summary(config)


def test_text_of_the_user_is_no_markup() -> None:
    """A name or a warning with brackets is shown as it is."""
    document = json.loads(_DATA.read_text("utf-8"))
    document["task"]["name"] = "[bold]my[/] task"
    document["evidence"]["warnings"] = ["list[int] is odd [/red]"]
    text = _rendered(TunedConfig.from_json(document))
    assert "[bold]my[/] task" in text
    assert "list[int] is odd [/red]" in text


def test_narrow_terminal_is_enough() -> None:
    """Nothing is wider than the terminal."""
    text = _rendered(TunedConfig.load(_DATA), width=60)
    assert max(map(len, text.splitlines())) <= 60
