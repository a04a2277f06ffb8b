"""The commands for a config that is used for months: ``check``, ``retune`` and ``rollback``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.output import Output
from autotune.cli.task_file import load_task
from autotune.errors import AutotuneError, SettingsError

if TYPE_CHECKING:
    from autotune.nightly import Job
    from autotune.profiles import Key

__all__ = ["check", "retune", "rollback"]


def check(args: argparse.Namespace, output: Output) -> int:
    """Is a tuned config still true here? Ends with the exit code of the verdict.

    Args:
        args: ``file``, ``task``, ``time_budget``.
        output: Where text goes.
    """
    from autotune import nightly
    from autotune.config import TunedConfig
    from autotune.errors import ConfigError

    task = load_task(args.task)
    try:
        config = TunedConfig.load(args.file)
    except ConfigError:  # several tasks in one store, perhaps; else the same error again
        config = TunedConfig.load(args.file, task=task)
    output.say("Checking: the fingerprint, one safe step, a short race.")
    with nightly.opened(task) as here:
        found = nightly.check(config, here, budget_s=args.time_budget)
    output.result(f"{found.verdict}: {found.reason}", found.to_json())
    return found.exit_code


def retune(args: argparse.Namespace, output: Output) -> int:
    """Re-tunes each task of a TOML file; one that fails does not keep the others from it.

    Args:
        args: ``file``, ``name``, ``time_budget``, ``allow_batch_change``.
        output: Where text goes.
    """
    lines, documents, code = [], [], 0
    for job in _jobs(args.file, args.name):
        try:
            line, document = _retuned(job, args, output)
        except AutotuneError as error:
            code = code or error.exit_code
            line, document = f"{job.name}: {error}", _failed(job, error, output)
        lines.append(line)
        documents.append(document)
    output.result("\n".join(lines), {"tasks": documents, "exit_code": code})
    return code


def rollback(args: argparse.Namespace, output: Output) -> int:
    """Puts the result before the one in force back in force, for this machine.

    Args:
        args: ``file``, ``name``.
        output: Where text goes.
    """
    from autotune.nightly import journal

    jobs = _jobs(args.file, args.name)
    if len(jobs) > 1:
        raise SettingsError(f"{args.file!r} holds several tasks.", f"Say which: --name {jobs[0].name}.")
    (job,) = jobs
    key = _key(job)
    back = job.store.rollback(key)
    if job.out is not None:
        journal.synchronise(job.store, key, job.out)
    said = f"{job.name} [{key.hardware[7:19]}] rolled back to the result of {back.get('saved')}"
    journal.note_line(job.store, journal.CHANGES, said)
    output.result(f"{said[:1].upper()}{said[1:]}.", {"task": job.name, **_plain(back), "key": key.to_json()})
    return 0


def _retuned(job: Job, args: argparse.Namespace, output: Output) -> tuple[str, dict[str, Any]]:
    import dataclasses

    from autotune import nightly

    given = {"time_budget_s": args.time_budget, "allow_batch_change": args.allow_batch_change or None}
    rules = dataclasses.replace(job.rules, **{name: value for name, value in given.items() if value is not None})
    output.say(f"Re-tuning {job.name} ({job.spec}).")
    ended = nightly.retune(load_task(job.spec), job.store, name=job.name, rules=rules)
    nightly.note(ended, job.store, job.out)
    line = ended.line() if ended.changed else f"{job.name}: {ended.outcome}. {ended.reason}"
    return line, ended.to_json()


def _failed(job: Job, error: AutotuneError, output: Output) -> dict[str, Any]:
    from autotune.nightly import journal

    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        return journal.note_failure(job.name, error, job.store, when=when)
    except AutotuneError as second:
        output.say(f"{job.name}: no line of metrics was written: {second}")
        return {"task": job.name, "outcome": "failed", "reason": str(error), "exit_code": error.exit_code}


def _jobs(file: str, name: str | None) -> list[Job]:
    from autotune.nightly import read_jobs

    jobs = read_jobs(Path(file))
    chosen = [job for job in jobs if name in (None, job.name)]
    if not chosen:
        raise SettingsError(f"{file!r} has no task {name!r}.", f"It has: {', '.join(job.name for job in jobs)}.")
    return chosen


def _key(job: Job) -> Key:
    """The key of a task on this machine, found without a process of its own: nothing is trained for it."""
    from autotune.config.handed_over import fingerprint_of
    from autotune.hardware import Hardware
    from autotune.profiles import Key

    task = load_task(job.spec)
    hardware = Hardware.detect(device=task.device)
    return Key(task=fingerprint_of(task, task.build_model()), hardware=hardware.fingerprint)


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "document"}
