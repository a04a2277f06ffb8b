"""The command line's grammar and its help."""

from __future__ import annotations

import pytest

from autotune import errors
from autotune.cli.arguments import CHECK_CODES, build_parser, exit_code_table
from autotune.errors import SettingsError


def _parse(*argv: str):
    return build_parser("1.2.3").parse_args(argv)


def test_tune_has_the_documented_defaults():
    """Only task and out are needed."""
    args = _parse("tune", "t.py:f", "--out", "o.json")
    assert (args.task, args.out, args.time_budget, args.seed) == ("t.py:f", "o.json", 120.0, 0)
    assert (args.memory_margin, args.lr_scaling, args.no_isolate) == (0.05, "linear", False)
    assert args.effective_batch_size is args.max_batch_size is args.max_effective_batch_size is None


@pytest.mark.parametrize(("text", "value"), [("keep", "keep"), ("256", 256)])
def test_the_effective_batch_is_a_number_or_keep(text, value):
    """Both forms are understood."""
    args = _parse("tune", "t.py:f", "--out", "o", "--effective-batch-size", text)
    assert args.effective_batch_size == value


@pytest.mark.parametrize(
    "argv",
    [
        ["--time-budget", "0"],
        ["--time-budget", "-3"],
        ["--time-budget", "nan"],
        ["--time-budget", "inf"],
        ["--time-budget", "soon"],
        ["--effective-batch-size", "0"],
        ["--effective-batch-size", "3.5"],
        ["--effective-batch-size", "hold"],
        ["--max-batch-size", "-1"],
        ["--max-effective-batch-size", "²"],
        ["--memory-margin", "1"],
        ["--memory-margin", "-0.1"],
        ["--lr-scaling", "cubic"],
        ["--seed", "x"],
        ["--unknown", "1"],
    ],
)
def test_impossible_values_are_one_sentence_with_the_remedy(argv):
    """The argument is named, nothing is printed, and the exit code is the one of impossible values."""
    with pytest.raises(SettingsError, match=argv[0]) as caught:
        _parse("tune", "t.py:f", "--out", "o", *argv)
    assert "--help" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("argv", [[], ["tune"], ["tune", "t.py:f"], ["show"], ["dance"]])
def test_missing_parts_are_wrong_usage(argv):
    """What is needed is said."""
    with pytest.raises(SettingsError):
        _parse(*argv)


@pytest.mark.parametrize("command", [["demo"], ["tune", "t.py:f", "--out", "o"], ["show", "f"]])
def test_json_and_quiet_are_everywhere(command):
    """Each command takes both."""
    args = _parse(*command, "--json", "--quiet")
    assert args.json
    assert args.quiet


def test_every_exit_code_is_in_the_help(capsys):
    """The table is complete and is shown."""
    table = exit_code_table()
    codes = {getattr(errors, name).exit_code for name in errors.__all__} | {0, 130}
    assert {int(line.split()[0]) for line in table.splitlines()[1:]} == {*codes, *CHECK_CODES}
    with pytest.raises(SystemExit) as left:
        _parse("--help")
    assert left.value.code == 0
    assert table in capsys.readouterr().out


def test_the_version_is_printed(capsys):
    """With the name people install."""
    with pytest.raises(SystemExit) as left:
        _parse("--version")
    assert left.value.code == 0
    assert capsys.readouterr().out == "torch-autotune 1.2.3\n"
