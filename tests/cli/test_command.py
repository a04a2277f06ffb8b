"""The commands from arguments to exit code, with the tuning itself replaced."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.cli import command, main
from autotune.demo import run
from autotune.errors import ConfigError, DoesNotFitError
from autotune.report import Progress

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from autotune import Task

def make():
    print("noise of the task file")
    return Task(nn.Linear(4, 2), TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long)), device="cpu")
"""

DOCUMENT = {"schema_version": 1, "dataloader": {"batch_size": 64}}


class _Config:
    """What a faked tuning returns."""

    def __init__(self, kept: bool = False) -> None:
        self.evidence = SimpleNamespace(kept_baseline=kept)

    def __str__(self) -> str:
        return "the summary"

    def to_json(self) -> dict[str, object]:
        return DOCUMENT

    def save(self, path) -> None:
        path.write_text(json.dumps(DOCUMENT))


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A task file, a name for the result, and a tuning that notes its options."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "task_of_command_test.py").write_text(TASK)
    seen = SimpleNamespace(
        spec=f"{tmp_path / 'task_of_command_test.py'}:make", out=tmp_path / "tuned.json", calls=[], config=_Config()
    )

    def tune(task, *, progress, **options):
        seen.calls.append((task, options))
        print("noise of the tuning")
        if progress:
            progress(Progress(elapsed_s=31.4, budget_s=120.0, phase="race", message="lap", best_samples_per_s=512.0))
        return seen.during() if hasattr(seen, "during") else seen.config

    monkeypatch.setattr("autotune.api.tune", tune)
    yield seen
    sys.modules.pop("task_of_command_test", None)


def test_tune_writes_the_file_and_prints_the_summary(job, capsys):
    """The result is on stdout, progress and messages on stderr, the exit code 0."""
    assert main(["tune", job.spec, "--out", str(job.out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "the summary\n"
    assert json.loads(job.out.read_text()) == DOCUMENT
    assert "Wrote" in printed.err
    assert "race: lap" in printed.err


def test_tune_with_json_prints_one_document(job, capsys):
    """The document is the file's, and what the user's code prints goes to stderr."""
    assert main(["tune", job.spec, "--out", str(job.out), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == DOCUMENT
    assert "noise of the task file" in printed.err
    assert "noise of the tuning" in printed.err


def test_tune_quiet_prints_the_summary_alone(job, capsys):
    """No progress and no messages of ours."""
    assert main(["tune", job.spec, "--out", str(job.out), "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "the summary\n"
    assert printed.err == "noise of the task file\nnoise of the tuning\n"


def test_all_options_arrive(job):
    """Each flag reaches the call it stands for."""
    flags = (
        "--time-budget 7 --effective-batch-size keep --max-batch-size 64 --max-effective-batch-size 128 "
        "--memory-margin 0.2 --lr-scaling none --storage sqlite:///s.db --study-name mine --seed 3 --device cpu "
        "--no-isolate"
    )
    assert main(["tune", job.spec, "--out", str(job.out), *flags.split()]) == 0
    assert job.calls[0][1] == {
        "time_budget_s": 7.0,
        "effective_batch_size": "keep",
        "max_batch_size": 64,
        "max_effective_batch_size": 128,
        "memory_margin": 0.2,
        "lr_scaling": None,
        "weight_decay_scaling": None,
        "storage": "sqlite:///s.db",
        "study_name": "mine",
        "seed": 3,
        "isolate": False,
    }


def test_the_options_are_those_of_tune(job):
    """Every option passed is one that the real call knows."""
    from dataclasses import fields

    from autotune.api import Options

    assert main(["tune", job.spec, "--out", str(job.out)]) == 0
    assert set(job.calls[0][1]) <= {field.name for field in fields(Options)}


def test_device_replaces_the_tasks_own_in_a_copy(job, monkeypatch):
    """The user's task object stays as it was made."""
    loaded = []
    load = command.load_task
    monkeypatch.setattr(command, "load_task", lambda spec: loaded.append(load(spec)) or loaded[-1])
    assert main(["tune", job.spec, "--out", str(job.out), "--device", "meta"]) == 0
    assert (job.calls[0][0].device, loaded[0].device) == ("meta", "cpu")


def test_an_unknown_device_is_an_impossible_value(job, capsys):
    """It is found before any tuning."""
    assert main(["tune", job.spec, "--out", str(job.out), "--device", "abacus"]) == 2
    assert "abacus" in capsys.readouterr().err
    assert job.calls == []


@pytest.mark.parametrize("place", ["no/such/folder/tuned.json", "."])
def test_a_place_that_cannot_be_written_is_found_before_tuning(job, tmp_path, capsys, place):
    """Nobody waits two minutes for that."""
    assert main(["tune", job.spec, "--out", str(tmp_path / place)]) == 2
    assert "--out" in capsys.readouterr().err
    assert job.calls == []


def test_an_error_of_the_tuning_has_its_exit_code_and_leaves_no_file(job, capsys):
    """One paragraph, and the document with --json."""

    def fail():
        raise DoesNotFitError("Not even batch 1 fits.", "Use a smaller model.")

    job.during = fail
    assert main(["tune", job.spec, "--out", str(job.out), "--json"]) == 6
    printed = capsys.readouterr()
    assert "torch-autotune: Not even batch 1 fits. Use a smaller model.\n" in printed.err
    assert json.loads(printed.out)["error"]["exit_code"] == 6
    assert not job.out.exists()


def test_a_file_that_cannot_be_saved_is_a_config_error(job, capsys):
    """The exit code tells it from a failed tuning, and the summary is said all the same."""

    def fail(path):
        raise ConfigError("Disk full.", "Free some space.")

    job.config.save = fail
    assert main(["tune", job.spec, "--out", str(job.out)]) == 4
    error = capsys.readouterr().err
    assert "Disk full" in error
    assert "the summary" in error


def test_ctrl_c_says_what_was_found_and_leaves_an_older_file_alone(job, capsys):
    """130, the best rate seen, and nothing half written."""

    def interrupt():
        raise KeyboardInterrupt

    job.during = interrupt
    job.out.write_text("older")
    assert main(["tune", job.spec, "--out", str(job.out)]) == 130
    error = capsys.readouterr().err
    assert "In 31 s the best seen, not proven, was 512 samples/s. No file was written." in error
    assert job.out.read_text() == "older"


def _interrupted(config: _Config):
    def during():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return config

    return during


def test_ctrl_c_during_a_tuning_that_ends_in_good_order(job, capsys):
    """A tuning that returns the mere baseline after Ctrl-C counts as interrupted."""
    job.during = _interrupted(_Config(kept=True))
    assert main(["tune", job.spec, "--out", str(job.out)]) == 130
    assert "Interrupted." in capsys.readouterr().err
    assert not job.out.exists()


def test_what_was_proven_before_ctrl_c_is_written(job, capsys):
    """A proven setting is not thrown away, and the exit code still tells of Ctrl-C."""
    job.during = _interrupted(_Config(kept=False))
    assert main(["tune", job.spec, "--out", str(job.out)]) == 130
    assert json.loads(job.out.read_text()) == DOCUMENT
    assert "proven until then" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["tune", "missing.py:make", "--out", "OUT"], 3),
        (["tune", "nofunction", "--out", "OUT"], 2),
        (["tune", "x.py:f", "--out", "OUT", "--time-budget", "0"], 2),
        (["tune", "x.py:f", "--out", "OUT", "--knob", "3"], 2),
        (["show", "missing.json"], 4),
        (["demo", "--out", "no/such/folder/x.json"], 2),
        ([], 2),
    ],
)
def test_bad_input_is_one_paragraph_and_its_code(tmp_path, monkeypatch, capsys, argv, code):
    """No traceback, no usage text, one line, nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    argv = [str(tmp_path / "out.json") if part == "OUT" else part for part in argv]
    assert main(argv) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("torch-autotune: ")
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


SAVED = Path(__file__).parents[1] / "config" / "data" / "version_1.json"


def test_show_prints_the_config_for_people(capsys):
    """The answer, the knobs and the numbers, without escape codes where there is no terminal."""
    assert main(["show", str(SAVED)]) == 0
    printed = capsys.readouterr()
    assert "samples/s" in printed.out
    assert "\x1b" not in printed.out
    assert printed.err == ""


def test_show_with_json_prints_the_file(capsys):
    """What is in the file, checked and in order."""
    assert main(["show", str(SAVED), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(SAVED.read_text())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema_version": 99}', '{"schema_version": 1}', "\x00\x01", '{"a": NaN}']
)
def test_a_damaged_or_newer_config_is_a_config_error(tmp_path, capsys, text):
    """Whatever is wrong with the file, it is one paragraph and exit code 4."""
    path = tmp_path / "tuned.json"
    path.write_text(text)
    assert main(["show", str(path)]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


@pytest.fixture
def staged_demo(monkeypatch):
    """The demo's story replaced by one that only reports."""
    seen = SimpleNamespace(options={})

    class Comparison:
        def __str__(self) -> str:
            return "the comparison"

        def to_json(self) -> dict[str, object]:
            return {"kept_baseline": False}

    def run_demo(*, say, tuned, **options):
        seen.options = options
        say("Cutting crops.")
        tuned(seen.during() if hasattr(seen, "during") else _Config())
        return Comparison()

    monkeypatch.setattr(run, "run_demo", run_demo)
    return seen


def test_demo_prints_the_comparison(staged_demo, capsys):
    """Text on stdout, stages on stderr, the demo's own budget, no file unless asked."""
    assert main(["demo"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "the comparison\n"
    assert printed.err == "Cutting crops.\n"
    assert staged_demo.options["time_budget_s"] == run.DEFAULT_TIME_BUDGET_S


def test_demo_writes_its_config_and_json(staged_demo, tmp_path, capsys):
    """The options arrive, the file is there, the document names it."""
    out = str(tmp_path / "tuned.json")
    assert main(["demo", "--json", "--out", out, "--time-budget", "9", "--cache-dir", "c"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kept_baseline": False, "out": out}
    assert json.loads((tmp_path / "tuned.json").read_text()) == DOCUMENT
    assert (staged_demo.options["time_budget_s"], staged_demo.options["cache_dir"]) == (9.0, "c")


def test_demo_after_ctrl_c_trains_no_more(staged_demo, tmp_path, capsys):
    """Ctrl-C while tuning ends the demo, even though the tuning itself returns in good order."""
    staged_demo.during = _interrupted(_Config())
    assert main(["demo", "--out", str(tmp_path / "tuned.json")]) == 130
    assert "Interrupted. Nothing was measured yet. No file was written." in capsys.readouterr().err


def test_a_second_owner_of_the_package_stops_every_command(monkeypatch, tmp_path, capsys):
    """Mixed files cannot be trusted to do anything."""
    owners = {"autotune": ["torch-autotune", "autotune"]}
    check = command.check_ownership
    monkeypatch.setattr(command, "check_ownership", lambda: check(lambda: owners))
    assert main(["show", str(tmp_path / "x.json")]) == 1
    assert "also by autotune" in capsys.readouterr().err


def test_python_dash_m_gives_the_exit_code_and_loads_no_torch():
    """The help and wrong usage come without waiting for torch."""
    code = (
        "import runpy, sys\n"
        "sys.argv = ['autotune', 'tune', 'x.py:f', '--out', 'o', '--time-budget', '0']\n"
        "try:\n    runpy.run_module('autotune', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as left:\n    print(left.code, 'torch' in sys.modules, 'optuna' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "2 False False\n"
    assert "--time-budget" in done.stderr
