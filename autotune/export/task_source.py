"""The user's own parts taken from the file that the task came from, by a script that does without this package.

The file's function returns an ``autotune.Task``. A stand-in of that name, which keeps what it is given, takes its place
while the function runs, so that model, data, loss and optimizer can be had where the package is not installed.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.export import plain_script
from autotune.export.record import TaskSource
from autotune.export.wanted import Wanted
from autotune.task.output import prediction

if TYPE_CHECKING:
    from autotune.task import Task

__all__ = ["imports_of", "loading", "refusal", "taken_parts"]

_LOADING = '''FOLDER, MODULE, FUNCTION = <<SOURCE>>


class Task:
    """In place of autotune.Task, which the function below returns: keeps what it is given."""

    def __init__(self, model, dataset=None, **given):
        self.model, self.dataset, self.given = model, dataset, given


def not_here(name):
    """Other names of autotune can be imported, and fail only where they are used."""
    if name.startswith("__"):
        raise AttributeError(name)

    def use(*arguments, **named):
        raise RuntimeError(f"autotune.{name} is not part of this script: keep it out of {MODULE} up to {FUNCTION}()")

    return use


@contextlib.contextmanager
def stand_in():
    """``import autotune`` gives the stand-in."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "autotune"}
    for name in before:
        del sys.modules[name]
    module = sys.modules["autotune"] = types.ModuleType("autotune")
    module.Task, module.__getattr__ = Task, not_here
    try:
        yield
    finally:
        del sys.modules["autotune"]
        sys.modules.update(before)


sys.path.insert(0, FOLDER)
with stand_in():
    module = importlib.import_module(MODULE)


@functools.cache
def task():
    with stand_in():
        return getattr(module, FUNCTION)()


@functools.cache
def data():
    """The dataset or DataLoader that was tuned."""
    given = task().dataset
    read = hasattr(given, "__getitem__") or hasattr(given, "__iter__")
    return given() if isinstance(given, type) or (callable(given) and not read) else given'''

_MODEL = """def make_model():
    model = task().model
    return model if isinstance(model, nn.Module) else model()"""

_DATA = """def make_dataset():
    return data().dataset if isinstance(data(), torch.utils.data.DataLoader) else data()"""

_LOSS_FN = """def loss_fn(output, target):
    given = task().given["loss_fn"]
    if isinstance(given, nn.Module):
        given.to(target.device)
    return given(prediction(output), target)"""

_STEP = '''def training_step(model, batch):
    """The loss, and what it is a mean over."""
    result = task().given["training_step"](model, batch)
    return result if isinstance(result, tuple) else (result, rows(batch))'''

_OPTIMIZER = """def make_optimizer(model):
    given = task().given["optimizer"]
    optimizer = given(list(model.parameters())) if callable(given) else given
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * <<LR>>
        if "weight_decay" in group:
            group["weight_decay"] = group["weight_decay"] * <<DECAY>>
    return optimizer"""

_OBJECTS = '''def __getattr__(name):
    """What the loader takes along: <<NAMES>>."""
    if name not in <<LIST>>:
        raise AttributeError(name)
    given = task().given.get(name)
    return getattr(data(), name) if given is None else given'''


def refusal(source: TaskSource | None, task: Task | None) -> str | None:
    """Why nothing can be taken from the task's file, in one clause; None: it can.

    Args:
        source: Where the task came from.
        task: The task it made.
    """
    if source is None or task is None:
        return "no task file was given (--task FILE:FUNC)"
    if task.trains_with or _is_ours(task.training_step):
        return "the task is a trainer or module of another library, whose own step is not in a script of plain torch"
    if source.module == plain_script.BESIDE:
        return f"the file of that task is called {source.module} as this one is"
    inside = [name for name in imports_of(source.module, "autotune") if name != "autotune"]
    return f"{source.module} imports {inside[0]}, and the script does without this package" if inside else None


def loading(source: TaskSource) -> str:
    """The code that calls the function without this package.

    Args:
        source: Where the task comes from.
    """
    values = (source.folder, source.module, source.function)
    return _LOADING.replace("<<SOURCE>>", ", ".join(map(repr, values)))


def taken_parts(wanted: Wanted, task: Task, objects: list[str], *, own_optimizer: bool) -> Mapping[str, str]:
    """The code of each part that can be taken from the task: model, data, loss, optimizer, objects of the loader.

    Args:
        wanted: What the settings ask for.
        task: The task.
        objects: Of the loader.
        own_optimizer: The script cannot make the optimizer from its class and arguments.
    """
    parts = {"model": _MODEL}
    if not _is_ours(task.data.dataset_factory) and not (task.data.dataset is None and wanted.tuned.facts.iterable):
        parts["data"] = _DATA
        if objects:
            parts["objects"] = _OBJECTS.replace("<<NAMES>>", ", ".join(objects)).replace("<<LIST>>", repr(objects))
    loss = _loss(wanted, task)
    if loss is not None:
        parts["loss"] = loss
    if own_optimizer and not task.optimizer.of_model and not task.optimizer.assumed:
        plan = wanted.tuned.learning_rate
        code = _OPTIMIZER.replace("<<LR>>", repr(plan.factor)).replace("<<DECAY>>", repr(plan.weight_decay_factor))
        parts["optimizer"] = code
    return parts


def _loss(wanted: Wanted, task: Task) -> str | None:
    if task.training_step is not None:
        return _STEP
    if task.loss_fn is None:
        return None
    step = plain_script.step_of_pair(wanted.tuned.facts.batch_signature)
    return None if step is None else f"{inspect.getsource(prediction).rstrip()}\n\n\n{_LOSS_FN}\n\n\n{step}"


def _is_ours(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "autotune"


def imports_of(module: str, package: str) -> list[str]:
    """The modules of a package, itself included, that a module's own file imports; empty where there is no file.

    Args:
        module: That was imported here.
        package: Such as ``autotune``.
    """
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or Path(file).suffix != ".py" or not Path(file).is_file():
        return []
    found: list[str] = []
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        found += [one.name for one in node.names] if isinstance(node, ast.Import) else []
        found += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
    return [name for name in found if name == package or name.startswith(f"{package}.")]
