"""A tuned config as rich tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from autotune.config.changes import changes
from autotune.config.summary import facts_and_numbers, headline, knob_changes

if TYPE_CHECKING:
    from autotune.config import TunedConfig

__all__ = ["render"]


def render(config: TunedConfig, console: Console) -> None:
    """Prints a config: the answer, what was measured, the knobs, what changes in training, warnings.

    Args:
        config: A tuned config, loaded or fresh.
        console: Where to print.
    """
    style = "yellow" if config.evidence.kept_baseline else "green"
    console.print(Panel(escape(headline(config)), title="autotune", border_style=style, expand=False))
    console.print(_measured(config))
    if config.baseline.differences(config.settings):
        console.print(_knobs(config))
    _bullets(console, "What changes in your training", changes(config))
    dropped = config.evidence.dropped_knobs.items()
    _bullets(console, "Not varied", [f"{knob}: {reason}" for knob, reason in dropped])
    _bullets(console, "Not in the file, bring it along", list(config.saved.not_portable))
    _bullets(console, "Warnings", list(config.evidence.warnings), style="yellow")


def _measured(config: TunedConfig) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in facts_and_numbers(config):
        table.add_row(f"[bold]{escape(name)}", escape(text))
    if config.evidence.created:
        table.add_row("[bold]tuned on", escape(config.evidence.created))
    return table


def _knobs(config: TunedConfig) -> Table:
    table = Table("setting", "baseline", "tuned", title="Settings", title_justify="left")
    for knob, old, new in knob_changes(config):
        table.add_row(escape(knob), escape(old), f"[bold]{escape(new)}")
    return table


def _bullets(console: Console, title: str, items: list[str], style: str = "") -> None:
    if not items:
        return
    console.print(f"[bold]{escape(title)}")
    table = Table.grid(padding=(0, 1))
    for item in items:
        table.add_row("-", escape(item), style=style)
    console.print(table)
