"""The TOML file of tasks: every key lands, everything else is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune.nightly.jobs import read_jobs
from autotune.nightly.retune import Rules

PLAIN = """
store = "profiles"
time_budget_s = 60
[tasks.a]
task = "sub/train.py:make"
out = "tuned.json"
allow_batch_change = true
storage = "sqlite:///study.db"
study_name = "a"
[tasks.b]
task = "package.module:make"
store = "/elsewhere"
time_budget_s = 5.5
check_budget_s = 9
memory_margin = 0.1
storage = "study.log"
"""


@pytest.mark.parametrize("name", ["pyproject.toml", "own.toml"])
def test_shared_keys_hold_unless_a_task_has_its_own(tmp_path: Path, name: str) -> None:
    """In a table of pyproject.toml and in a file of its own; paths are relative to the file."""
    text = PLAIN
    if name == "pyproject.toml":
        text = '[project]\nname = "x"\n[tool.autotune]' + PLAIN.replace("[tasks.", "[tool.autotune.tasks.")
    (tmp_path / name).write_text(text)
    first, second = read_jobs(tmp_path / name)
    assert (first.name, first.spec) == ("a", f"{tmp_path / 'sub/train.py'}:make")
    assert (first.store.path, first.out) == (tmp_path / "profiles", tmp_path / "tuned.json")
    assert first.rules == Rules(time_budget_s=60, allow_batch_change=True, storage="sqlite:///study.db", study_name="a")
    assert (second.spec, second.store.path, second.out) == ("package.module:make", Path("/elsewhere"), None)
    assert second.rules == Rules(
        time_budget_s=5.5, check_budget_s=9, memory_margin=0.1, storage=str(tmp_path / "study.log")
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is no TOML"),
        ("", "holds no tasks"),
        ("tasks = 3", "holds no tasks"),
        ("[tool.other]\nx = 1", "holds no tasks"),
        ("[tasks.a]\nout = 'x'", "'a' names no function"),
        ("[tasks.a]\ntask = 'x.py:f'\nspeed = 1", "unknown key 'speed'"),
        ("fast = true\n[tasks.a]\ntask = 'x.py:f'", "unknown key 'fast'"),
        ("[tasks.a]\ntask = 3", "task=3"),
        ("store = 't.json'\n[tasks.a]\ntask = 'x.py:f'\nout = './t.json'", "out and store are one file"),
        ("[tasks.a]\ntask = 'x.py:f'\ntime_budget_s = true", "time_budget_s=True"),
        ("[tasks.a]\ntask = 'x.py:f'\ntime_budget_s = -1", "time_budget_s=-1"),
        ("[tasks.a]\ntask = 'x.py:f'\nallow_batch_change = 1", "allow_batch_change=1"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, text: str, said: str) -> None:
    """One error of ours, before anything is tuned."""
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_jobs(tmp_path / "t.toml")


def test_without_a_store_the_users_own_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or, where the environment says there is none, one has to be named."""
    (tmp_path / "t.toml").write_text("[tasks.a]\ntask = 'x.py:f'")
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "own"))
    assert read_jobs(tmp_path / "t.toml")[0].store.path == tmp_path / "own"
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", "")
    with pytest.raises(ConfigError, match="There is no store"):
        read_jobs(tmp_path / "t.toml")
