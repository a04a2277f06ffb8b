"""What can be written on the command line, and the help that explains it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NoReturn

from autotune import errors
from autotune.cli.export import add_export
from autotune.errors import AutotuneError, SettingsError

__all__ = ["CHECK_CODES", "INTERRUPTED", "build_parser"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 + SIGINT."""

CHECK_CODES = {
    10: "check: what is stored has drifted",
    11: "check: it is for another machine or task",
    12: "check: it does not run here",
    13: "check: the race was too noisy or too short to tell",
}
"""Exit codes of what ``check`` found; 0 where it holds."""

_TASK_HELP = (
    "path/to/file.py:function or package.module:function; called without arguments, it returns an autotune.Task"
)


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage as an error like any other, instead of printing and leaving."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message[:1].upper()}{message[1:]}.", f"See: {self.prog} --help.")


def build_parser(version: str) -> argparse.ArgumentParser:
    """The parser of ``torch-autotune``; the parsed ``command`` is one of those listed below.

    Args:
        version: What ``--version`` prints.
    """
    parser = _Parser(
        prog="torch-autotune",
        description="Finds the fastest training settings it can prove on this machine.",
        epilog=exit_code_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"torch-autotune {version}", help="print the version and leave"
    )
    names = "demo|tune|show|export|check|retune|rollback|lr"
    commands = parser.add_subparsers(dest="command", required=True, metavar=names)
    _add_demo(commands)
    _add_tune(commands)
    _add_show(commands)
    add_export(commands, _command)
    _add_check(commands)
    _add_retune(commands)
    _add_rollback(commands)
    _add_lr(commands)
    return parser


def exit_code_table() -> str:
    """One line for each exit code: the error's first sentence in ``autotune.errors``."""
    classes = [getattr(errors, name) for name in errors.__all__]
    rows = {AutotuneError.exit_code: "any other error"}
    rows.update((cls.exit_code, _first_sentence(cls)) for cls in classes if cls is not AutotuneError)
    rows.update(CHECK_CODES)
    lines = [f"  {0:>3}  done", *(f"  {code:>3}  {text}" for code, text in sorted(rows.items()))]
    lines.append(f"  {INTERRUPTED:>3}  stopped with Ctrl-C")
    return "\n".join(["exit codes:", *lines])


def _first_sentence(cls: type[AutotuneError]) -> str:
    text = (cls.__doc__ or "").strip().split("\n")[0].rstrip(".")
    return text[:1].lower() + text[1:]


def _add_demo(commands: Any) -> None:
    demo = _command(commands, "demo", "tune a small training job on shipped photos, then train it both ways")
    demo.add_argument("--time-budget", type=_seconds, default=None, metavar="S", help="seconds of tuning (55)")
    demo.add_argument("--out", metavar="FILE", help="write the tuned configuration to this file")
    demo.add_argument("--cache-dir", metavar="DIR", help="where the demo's crops are kept (the user's cache folder)")


def _add_tune(commands: Any) -> None:
    tune = _command(commands, "tune", "tune a task of your own and write the configuration to a file")
    tune.add_argument("task", metavar="FILE:FUNC", help=_TASK_HELP)
    tune.add_argument("--out", required=True, metavar="FILE", help="where to write the tuned configuration (JSON)")
    tune.add_argument("--time-budget", type=_seconds, default=120.0, metavar="S", help="seconds of tuning (120)")
    batch = tune.add_argument_group("batch size and learning rate")
    batch.add_argument(
        "--effective-batch-size", type=_count_or_keep, metavar="N|keep", help="lock the samples per optimizer step"
    )
    batch.add_argument("--max-batch-size", type=_count, metavar="N", help="most samples per micro-batch")
    batch.add_argument(
        "--max-effective-batch-size",
        type=_count_or_noise,
        metavar="N|noise-scale",
        help="most samples per optimizer step, or what the gradient noise scale says",
    )
    batch.add_argument(
        "--memory-margin", type=_share, default=0.05, metavar="X", help="memory left free, 0 to 1 (0.05)"
    )
    batch.add_argument(
        "--lr-scaling", choices=["linear", "sqrt", "auto", "none"], default="linear", help="learning rate rule (linear)"
    )
    batch.add_argument(
        "--weight-decay-scaling",
        choices=["none", "timescale"],
        default="none",
        help="whether weight decay follows the batch (none)",
    )
    study = tune.add_argument_group("study")
    study.add_argument("--storage", metavar="URL", help="Optuna storage, for instance sqlite:///study.db (in memory)")
    study.add_argument("--study-name", metavar="NAME", help="study to create or continue in the storage")
    study.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the search (0)")
    where = tune.add_argument_group("where to run")
    where.add_argument(
        "--device", metavar="DEVICE", help="for instance cpu or cuda:1 (the task's own, or the best here)"
    )
    where.add_argument(
        "--no-isolate", action="store_true", help="measure in this process, not in a child that may fail"
    )


def _add_show(commands: Any) -> None:
    show = _command(commands, "show", "print a tuned configuration and its evidence")
    show.add_argument("file", metavar="FILE", help="what 'tune --out' or TunedConfig.save wrote")


def _add_check(commands: Any) -> None:
    check = _command(commands, "check", "tell whether a tuned configuration still holds on this machine")
    check.add_argument("file", metavar="FILE", help="a tuned configuration, or a store of several")
    check.add_argument("--task", required=True, metavar="FILE:FUNC", help=_TASK_HELP)
    check.add_argument("--time-budget", type=_seconds, default=20.0, metavar="S", help="seconds of racing (20)")


def _add_retune(commands: Any) -> None:
    retune = _command(commands, "retune", "check stored configurations, and tune again where they do not hold any more")
    _add_jobs(retune)
    retune.add_argument("--time-budget", type=_seconds, metavar="S", help="seconds of each study (the file's, or 300)")
    retune.add_argument(
        "--allow-batch-change", action="store_true", help="let effective batch and learning rate change"
    )


def _add_rollback(commands: Any) -> None:
    _add_jobs(_command(commands, "rollback", "put the stored configuration before the present one back in force"))


def _add_jobs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "file", nargs="?", default="pyproject.toml", metavar="FILE", help="TOML file of tasks (pyproject.toml)"
    )
    command.add_argument("--name", metavar="NAME", help="only this task of the file")


def _add_lr(commands: Any) -> None:
    lr = _command(commands, "lr", "learning-rate range test: at which rate does the loss fall fastest?")
    lr.add_argument("task", metavar="FILE:FUNC", help=_TASK_HELP)
    lr.add_argument(
        "--config", metavar="FILE", help="test with the settings of this tuned configuration (the baseline)"
    )
    lr.add_argument("--plot", metavar="FILE", help="write a picture of the sweeps (needs matplotlib)")
    lr.add_argument("--low", type=_rate, default=1e-7, metavar="LR", help="lowest learning rate (1e-7)")
    lr.add_argument("--high", type=_rate, default=10.0, metavar="LR", help="highest learning rate (10)")
    lr.add_argument(
        "--steps", type=_count, default=100, metavar="N", help="learning rates of a sweep, 30 or more (100)"
    )
    lr.add_argument("--seeds", type=_count, default=3, metavar="N", help="sweeps (3)")
    lr.add_argument("--time-budget", type=_seconds, default=120.0, metavar="S", help="seconds for all sweeps (120)")
    lr.add_argument("--no-isolate", action="store_true", help="sweep in this process, not in a child that may fail")


def _command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[:1].upper() + summary[1:] + ".",
        epilog=exit_code_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, all else on stderr")
    parser.add_argument("--quiet", action="store_true", help="no progress and no messages: only the result and errors")
    return parser


def _seconds(text: str) -> float:
    return _number(text, lambda value: value > 0, "a number of seconds above 0, for instance 120")


def _rate(text: str) -> float:
    return _number(text, lambda value: value > 0, "a learning rate above 0, for instance 1e-4")


def _count_or_noise(text: str) -> int | str:
    return text if text == "noise-scale" else _count(text)


def _share(text: str) -> float:
    return _number(text, lambda value: 0 <= value < 1, "a share from 0 to below 1, for instance 0.05")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not possible; give a whole number above 0")
    return int(text)


def _count_or_keep(text: str) -> int | str:
    return text if text == "keep" else _count(text)


def _number(text: str, allowed: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and allowed(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not possible; give {wanted}")
    return value
