"""Tests marked ``gpu`` are skipped where there is no accelerator."""

from __future__ import annotations

import os
import signal

import pytest

# No test reads or writes the store of whoever runs it, nor one of another test: a whole call tunes. Programs that tests
# start inherit this; a test of the store names a folder of its own.
os.environ["AUTOTUNE_CACHE_DIR"] = ""
os.environ.pop("AUTOTUNE", None)

# Shells start background jobs with Ctrl-C ignored, which programs started from here would inherit; it is tested here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.accelerator.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an accelerator"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that a test recorded (``record_property("figures", …)``), one line each."""
    for report in (one for found in terminalreporter.stats.values() for one in found):
        figures = dict(getattr(report, "user_properties", ())).get("figures")
        if figures is not None and report.when == "teardown":
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {figures}")
