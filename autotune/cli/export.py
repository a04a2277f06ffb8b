"""``torch-autotune export``: a tuned configuration in another library's words."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.output import Output
from autotune.errors import SettingsError
from autotune.export.names import DIALECTS

if TYPE_CHECKING:
    from autotune.export import Export, TaskSource

__all__ = ["add_export", "export_config"]


def add_export(commands: Any, command: Callable[[Any, str, str], argparse.ArgumentParser]) -> None:
    """Add the command to a parser.

    Args:
        commands: Its subparsers.
        command: Makes one with the options that all have.
    """
    parser = command(commands, "export", "write a tuned configuration in the words of another library")
    parser.add_argument("file", metavar="FILE", help="what 'tune --out' or TunedConfig.save wrote")
    listed = "; ".join(f"{name}: {what}" for name, what in DIALECTS.items())
    parser.add_argument("--to", required=True, choices=list(DIALECTS), metavar="DIALECT", help=listed)
    parser.add_argument("--out", metavar="PATH", help="write it to this file (stdout)")
    parser.add_argument("--keep-batch", action="store_true", help="the fastest settings with the batch as it was")
    parser.add_argument(
        "--task",
        metavar="FILE:FUNC",
        help="the task that was tuned: 'plain' takes model, data and loss from there (they are yours to fill in)",
    )


def export_config(args: argparse.Namespace, output: Output) -> int:
    """Run the command.

    Args:
        args: As parsed.
        output: Where the text goes.

    Returns:
        The exit code.

    Raises:
        AutotuneError: The configuration or the task cannot be read, or the file cannot be written.
    """
    from autotune.cli.task_file import load_task
    from autotune.config import TunedConfig
    from autotune.export import to

    task = None if args.task is None else load_task(args.task)
    source = None if args.task is None else _source(args.task, args.out)
    tuned = TunedConfig.load(args.file, task=task)
    export = to(tuned.keep_batch() if args.keep_batch else tuned, args.to, source=source)
    wrote = [] if args.out is None else _write(export, Path(args.out), output)
    if args.out is None or output.as_json:
        output.result(export.text.rstrip("\n"), {**export.to_json(), "wrote": wrote})
    for one in export.not_expressed:
        output.say(f"Not expressed: {one}")
    if args.out is None or len(wrote) > 1:  # what was there before is not asked to be filled in again
        for left in export.fill_in:
            output.say(f"To fill in, in {', '.join(export.beside)}: {left}")
    if args.out is None and export.beside:
        output.say(f"With --out, {', '.join(export.beside)} is written beside it.")
    return 0


def _source(spec: str, out: str | None) -> TaskSource:
    """Where the task comes from; refused where the script would be written over it."""
    from autotune.cli.task_file import task_source
    from autotune.export import TaskSource

    folder, module, function = task_source(spec)
    file = getattr(sys.modules.get(module), "__file__", None)  # it was imported to load the task
    if out is not None and file is not None and Path(out).resolve() == Path(file).resolve():
        raise SettingsError(f"--out {out!r} is the task's own file.", "Name another.")
    return TaskSource(folder=folder, module=module, function=function)


def _write(export: Export, path: Path, output: Output) -> list[str]:
    """The file, and what goes beside it unless it is there: that may have been filled in."""
    wrote = []
    for name, text in ((path.name, export.text), *export.beside.items()):
        file = path.with_name(name)
        if file != path and file.exists():
            output.say(f"{file} is there already and was left as it is.")
            continue
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"--out {str(file)!r} cannot be written: {error.strerror}.", "Name another.") from error
        wrote.append(str(file))
        output.say(f"Wrote {file}.")
    return wrote
