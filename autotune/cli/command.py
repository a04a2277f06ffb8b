"""The commands ``demo``, ``tune``, ``show`` and ``lr``, with their arguments; ``export`` and ``living`` have others."""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli import living
from autotune.cli.arguments import INTERRUPTED, build_parser
from autotune.cli.export import export_config
from autotune.cli.output import Output
from autotune.cli.ownership import check_ownership
from autotune.cli.task_file import load_task
from autotune.errors import AutotuneError, MissingPackageError, SettingsError

if TYPE_CHECKING:
    from autotune.config import TunedConfig
    from autotune.task import Task

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments; None is those of the process.

    Returns:
        The exit code; ``torch-autotune --help`` lists them.
    """
    argv = sys.argv[1:] if argv is None else argv
    output = Output(as_json="--json" in argv, quiet="--quiet" in argv)
    try:
        args = build_parser(_version()).parse_args(argv)
        check_ownership()
        with redirect_stdout(output.stderr):  # what the user's code prints must not mix with the result
            return _COMMANDS[args.command](args, output)
    except AutotuneError as error:
        output.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        output.interrupted(_found(output), INTERRUPTED)
        return INTERRUPTED
    finally:
        output.close()


def _demo(args: argparse.Namespace, output: Output) -> int:
    out = None if args.out is None else _writable(args.out)
    from autotune.demo.run import DEFAULT_TIME_BUDGET_S, run_demo
    from autotune.report.interrupt import noticing_interrupt

    with noticing_interrupt() as interrupted:

        def tuned(config: TunedConfig) -> None:
            if interrupted():  # tuning ended in good order; what would follow is not wanted any more
                raise KeyboardInterrupt
            if out is not None:
                config.save(out)
                output.wrote = args.out
                output.say(f"Wrote {args.out}.")

        comparison = run_demo(
            time_budget_s=args.time_budget or DEFAULT_TIME_BUDGET_S,
            cache_dir=args.cache_dir,
            progress=output.progress(),
            say=output.say,
            tuned=tuned,
        )
    output.result(str(comparison), {**comparison.to_json(), "out": args.out})
    return 0


def _tune(args: argparse.Namespace, output: Output) -> int:
    out = _writable(args.out)
    task = load_task(args.task)
    if args.device is not None:
        task = _on_device(task, args.device)
    from autotune import api
    from autotune.report.interrupt import noticing_interrupt

    with noticing_interrupt() as interrupted:
        config = api.tune(task, progress=output.progress(), **_tune_options(args))
    if interrupted() and config.evidence.kept_baseline:  # no reason to replace an older file by it
        raise KeyboardInterrupt
    try:
        config.save(out)
    except AutotuneError:
        output.say(str(config))  # what the time was spent on is not lost with the file
        raise
    output.wrote = args.out
    output.result(str(config), config.to_json())
    output.say(
        f"Wrote {args.out}." if not interrupted() else f"Interrupted; wrote to {args.out} what was proven until then."
    )
    return INTERRUPTED if interrupted() else 0


def _tune_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "time_budget_s": args.time_budget,
        "effective_batch_size": args.effective_batch_size,
        "max_batch_size": args.max_batch_size,
        "max_effective_batch_size": args.max_effective_batch_size,
        "memory_margin": args.memory_margin,
        "lr_scaling": None if args.lr_scaling == "none" else args.lr_scaling,
        "weight_decay_scaling": None if args.weight_decay_scaling == "none" else args.weight_decay_scaling,
        "storage": args.storage,
        "study_name": args.study_name,
        "seed": args.seed,
        "isolate": not args.no_isolate,
    }


def _show(args: argparse.Namespace, output: Output) -> int:
    from rich.console import Console

    from autotune.config import TunedConfig
    from autotune.report import render

    config = TunedConfig.load(args.file)
    text = StringIO()
    terminal = output.stdout.isatty()
    width = None if terminal else 120
    render(config, Console(file=text, force_terminal=terminal, width=width))
    output.result(text.getvalue().rstrip("\n"), config.to_json())
    return 0


def _lr(args: argparse.Namespace, output: Output) -> int:
    plot = None if args.plot is None else _writable(args.plot, "--plot")
    if plot is not None and find_spec("matplotlib") is None:
        raise MissingPackageError("--plot needs matplotlib.", "Run: pip install 'torch-autotune[plot]'.")
    task = load_task(args.task)
    from autotune.config import TunedConfig
    from autotune.config.measuring import find_lr

    output.say(f"Sweeping {args.seeds} times from {args.low:g} to {args.high:g}; nothing of yours is changed.")
    sweep = {name: getattr(args, name) for name in ("low", "high", "steps", "seeds")}
    sweep |= {"time_budget_s": args.time_budget, "isolate": not args.no_isolate}
    if args.config is None:
        found = find_lr(task, None, **sweep)
    else:
        found = TunedConfig.load(args.config, task=task).find_lr(**sweep)
    if plot is not None:
        found.plot(plot)
        output.say(f"Wrote {args.plot}.")
    output.result(str(found), found.to_json())
    return 0


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, Output], int]] = {
    "demo": _demo,
    "tune": _tune,
    "show": _show,
    "lr": _lr,
    "export": export_config,
    "check": living.check,
    "retune": living.retune,
    "rollback": living.rollback,
}


def _writable(out: str, option: str = "--out") -> Path:
    """``out`` as a path, checked before time is spent on what is to be written there."""
    path = Path(out).absolute()
    if path.is_dir():
        raise SettingsError(f"{option} {out!r} is a folder.", "Name a file in it, for instance tuned.json.")
    if not path.parent.is_dir():
        raise SettingsError(f"{option} {out!r} cannot be written: there is no folder {path.parent}.", "Make it first.")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(
            f"{option} {out!r} cannot be written: no permission in {path.parent}.", "Name another folder."
        )
    return path


def _on_device(task: Task, device: str) -> Task:
    """A copy of the task on another device."""
    import torch

    try:
        name = str(torch.device(device))
    except RuntimeError as error:
        raise SettingsError(f"--device {device!r} is not possible.", "For instance: cpu, cuda, cuda:1, mps.") from error
    moved = copy.copy(task)
    moved.device = name
    return moved


def _found(output: Output) -> str:
    last, file = output.last_progress, f"Written: {output.wrote}." if output.wrote else "No file was written."
    if last is None:
        return f"Nothing was measured yet. {file}"
    if last.best_samples_per_s is None:
        return f"In {last.elapsed_s:.0f} s no setting was measured to its end. {file}"
    return f"In {last.elapsed_s:.0f} s the best seen, not proven, was {last.best_samples_per_s:,.0f} samples/s. {file}"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch-autotune")
    except PackageNotFoundError:
        return "(not installed: running from source)"
