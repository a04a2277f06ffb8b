"""The files of ``examples/nightly``: they parse, and the commands and tasks in them exist."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from autotune.cli.arguments import build_parser
from autotune.nightly import read_jobs

FOLDER = Path(__file__).parents[2] / "examples" / "nightly"


def parsed(command: str) -> Any:
    """The arguments of a shell command that calls torch-autotune."""
    (rest,) = re.findall(r"torch-autotune ([^>|]*)", command)
    return build_parser("1").parse_args(shlex.split(rest))


def unit(name: str) -> configparser.ConfigParser:
    """A systemd unit."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FOLDER / name)
    return parser


def test_the_tasks_can_be_read() -> None:
    """Each names a function of a file that is there."""
    jobs = read_jobs(FOLDER / "tasks.toml")
    assert [job.name for job in jobs] == ["photos", "photos-any-batch"]
    for job in jobs:
        path, _, function = job.spec.rpartition(":")
        spec = importlib.util.spec_from_file_location("photos_of_example", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert callable(getattr(module, function))


def test_the_crontab_is_one_line_of_five_fields_and_a_command() -> None:
    """The command is one that exists, and a busy machine is no failure."""
    (line,) = [one for one in (FOLDER / "crontab").read_text().splitlines() if one and not one.startswith("#")]
    *fields, command = line.split(None, 5)
    assert [bool(re.fullmatch(r"[\d*/,-]+", field)) for field in fields] == [True] * 5
    assert (parsed(command).command, parsed(command).file) == ("retune", "tasks.toml")
    assert command.endswith("|| [ $? -eq 8 ]")


def test_the_timer_starts_the_service() -> None:
    """Same name, a command that exists, and the busy exit code counts as success."""
    service, timer = unit("torch-autotune-retune.service"), unit("torch-autotune-retune.timer")
    assert parsed(service["Service"]["ExecStart"]).command == "retune"
    assert service["Service"]["SuccessExitStatus"] == "8"
    assert service["Service"]["Type"] == "oneshot"
    assert timer["Timer"]["OnCalendar"] == "*-*-* 03:30:00"
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_the_workflow_retunes_on_a_runner_of_ones_own() -> None:
    """It parses, its command exists, and it never runs on a shared machine."""
    workflow = yaml.safe_load((FOLDER / "retune.yml").read_text())
    job = workflow["jobs"]["retune"]
    assert "self-hosted" in job["runs-on"]
    (step,) = [one for one in job["steps"] if one.get("name") == "Re-tune"]
    (line,) = [one for one in step["run"].splitlines() if "torch-autotune" in one]
    assert parsed(line).command == "retune"
    assert '"$code" -eq 8' in step["run"]
    assert workflow[True]["schedule"][0]["cron"]  # YAML 1.1 reads the key "on" as true
