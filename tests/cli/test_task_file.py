"""Tasks named on the command line: what loads, and one clear error for each way it cannot."""

from __future__ import annotations

import pickle
import sys
import textwrap

import pytest

from autotune.cli import load_task
from autotune.errors import SettingsError, TaskError
from autotune.task import Task

GOOD = """
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset
    from autotune import Task

    class Net(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)

    def data():
        return TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))

    def make():
        return Task(Net, data(), loss_fn=nn.CrossEntropyLoss())

    def needs(argument):
        return make()

    def nothing():
        pass

    def fails():
        raise ValueError("no such\\n  disk")

    def leaves():
        raise SystemExit("usage: me")

    def refused():
        return Task(Net, data(), loss_fn=3)

    number = 3
"""


@pytest.fixture(autouse=True)
def _same_modules_afterwards(monkeypatch):
    """Imports of these tests are forgotten again."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - set(before):
        if name.startswith(("train_for_test", "package_for_test", "neighbour_for_test", "my-train")):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    """Writes a file of code below the test's folder."""

    def write_code(code: str = GOOD, name: str = "train_for_test.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return path

    return write_code


def test_a_file_and_its_function(write):
    """The function's task comes back."""
    task = load_task(f"{write()}:make")
    assert isinstance(task, Task)
    assert len(task.data.dataset) == 64


def test_a_relative_path_from_the_working_folder(write, monkeypatch):
    """Paths count from where one stands."""
    monkeypatch.chdir(write(name="jobs/train_for_test.py").parent.parent)
    assert isinstance(load_task("jobs/train_for_test.py:make"), Task)


def test_a_module_below_the_working_folder(write, monkeypatch):
    """A dotted name is imported from the working folder too, as ``python -m`` would."""
    write("", "package_for_test/__init__.py")
    path = write("from .inner import make", "package_for_test/jobs.py")
    write(GOOD, "package_for_test/inner.py")
    monkeypatch.chdir(path.parent.parent)
    assert isinstance(load_task("package_for_test.jobs:make"), Task)


def test_classes_of_the_file_pickle_by_reference(write):
    """A child process that has the same search path finds the classes by name."""
    task = load_task(f"{write()}:make")
    assert b"train_for_test" in pickle.dumps(task.model)
    assert pickle.loads(pickle.dumps(task.model)) is sys.modules["train_for_test"].Net


def test_modules_beside_the_file_are_found(write):
    """The file's folder is on the search path, wherever the command runs."""
    write(GOOD, "neighbour_for_test.py")
    assert isinstance(load_task(f"{write('from neighbour_for_test import make')}:make"), Task)


def test_a_changed_file_is_read_again(write):
    """Loading twice gives what the file says now."""
    load_task(f"{write()}:make")
    with pytest.raises(TaskError, match="no function"):
        load_task(f"{write('x = 1')}:make")


def test_a_hyphen_in_the_name_is_fine(write):
    """Such a file can be imported by name, so it is."""
    assert isinstance(load_task(f"{write(name='my-train.py')}:make"), Task)


@pytest.mark.parametrize("spec", ["train.py", "train.py:", ":make", "train.py:make()", "", "C:\\train.py"])
def test_a_task_without_function_is_wrong_usage(spec):
    """The remedy shows the form."""
    with pytest.raises(SettingsError, match="names no function") as caught:
        load_task(spec)
    assert "file.py:function" in caught.value.remedy


def test_no_such_file(tmp_path):
    """The path is in the message."""
    with pytest.raises(TaskError, match=r"no file .*missing\.py"):
        load_task(f"{tmp_path}/missing.py:make")


def test_no_such_module():
    """The module is in the message."""
    with pytest.raises(TaskError, match=r"module_that_is_not_there .*ModuleNotFoundError"):
        load_task("module_that_is_not_there:make")


def test_a_missing_function_lists_those_there_are(write):
    """A misspelt name is easily mended."""
    with pytest.raises(TaskError, match="has no function 'mkae'") as caught:
        load_task(f"{write()}:mkae")
    assert "make" in caught.value.remedy
    assert "Net" not in caught.value.remedy


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("number", "is a int, not a function"),
        ("needs", "cannot be called without arguments"),
        ("nothing", r"returned None, not a Task"),
        ("data", r"returned a TensorDataset, not a Task"),
        ("fails", r"failed with ValueError: no such disk \(line \d+ of .*train_for_test\.py\)"),
        ("leaves", r"sys\.exit"),
        ("refused", "loss_fn"),
    ],
)
def test_a_function_that_gives_no_task(write, function, cause):
    """Each way has its own sentence, in one paragraph with a remedy."""
    with pytest.raises(TaskError, match=cause) as caught:
        load_task(f"{write()}:{function}")
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import module_that_is_not_there", "ModuleNotFoundError"),
        ("def broken(:", r"SyntaxError.*train_for_test\.py, line 1"),
        ("from . import other", "ImportError"),
        ("1 / 0", r"ZeroDivisionError.*line 1 of"),
        ("raise SystemExit(2)", r"sys\.exit"),
    ],
)
def test_a_file_that_does_not_import(write, code, cause):
    """The error names file, line and reason; search path and modules are as before."""
    path_before = list(sys.path)
    with pytest.raises(TaskError, match=cause) as caught:
        load_task(f"{write(code)}:make")
    assert "\n" not in str(caught.value)
    assert sys.path == path_before
    assert "train_for_test" not in sys.modules


@pytest.mark.parametrize("name", ["random.py", "torch.py", "numpy.py", "__main__.py"])
def test_a_file_that_hides_another_module_is_refused(write, name):
    """Children would import the wrong one of the two."""
    with pytest.raises(TaskError, match="another module") as caught:
        load_task(f"{write(name=name)}:make")
    assert "Rename" in caught.value.remedy


def test_a_dot_in_the_file_name_is_refused(write):
    """Such a file cannot be imported by name."""
    with pytest.raises(TaskError, match="dot in its name"):
        load_task(f"{write(name='train.v2.py')}:make")


def test_a_folder_is_no_file(tmp_path):
    """A folder ending like a file is told from one."""
    (tmp_path / "x.py").mkdir()
    with pytest.raises(TaskError, match="no file"):
        load_task(f"{tmp_path / 'x.py'}:make")


def test_ctrl_c_during_import_is_not_an_error_of_the_file(write):
    """It goes through as it is."""
    with pytest.raises(KeyboardInterrupt):
        load_task(f"{write('raise KeyboardInterrupt')}:make")
    assert "train_for_test" not in sys.modules
