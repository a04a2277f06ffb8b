"""The module beside the plain script: what is the user's, taken from the task's file or left to fill in."""

from __future__ import annotations

import textwrap

from autotune.export import plain_script
from autotune.export.task_source import imports_of, loading, refusal, taken_parts
from autotune.export.wanted import Wanted, as_words

__all__ = ["parts_file"]

_IMPORTS = "import contextlib\nimport functools\nimport importlib\nimport sys\nimport types\n"
_OF_PREDICTION = "from collections.abc import Mapping\nfrom typing import Any\n"
_WIDTH = 116


def parts_file(wanted: Wanted, objects: list[str], loss: str | None, *, own_optimizer: bool) -> tuple[str, list[str]]:
    """The module's text, and what is left to fill in there.

    Args:
        wanted: What the settings ask for.
        objects: Of the loader, which no text can hold.
        loss: What the loss was measured with; None: the model's own.
        own_optimizer: The script cannot make the optimizer from its class and arguments.
    """
    task, source = wanted.tuned.task, wanted.source
    refused = refusal(source, task)
    taken = {} if refused or task is None else dict(taken_parts(wanted, task, objects, own_optimizer=own_optimizer))
    stubs = _stubs(wanted, objects, loss, own_optimizer=own_optimizer)
    left = [told for part, (_, told) in stubs.items() if part not in taken and told]
    code = {part: taken.get(part, stub) for part, (stub, _) in stubs.items()}
    imports = f"{_IMPORTS}{_OF_PREDICTION if 'prediction(' in code['loss'] else ''}\n"
    values = {
        "NAME": as_words(wanted.document["task"]["name"]),
        "TOLD": _told(refused, left),
        "IMPORTS": imports if taken else "",
        "SOURCE": f"\n\n{loading(source)}\n" if taken and source is not None else "",
        **{part.upper(): code[part] for part in ("model", "data", "loss")},
        "NEEDED": "\n\n\n".join(filter(None, (code["objects"], code["optimizer"]))),
    }
    text = plain_script.PARTS
    for name, value in values.items():
        text = text.replace(f"<<{name}>>", value)
    return text.rstrip() + "\n", left


def _stubs(
    wanted: Wanted, objects: list[str], loss: str | None, *, own_optimizer: bool
) -> dict[str, tuple[str, str | None]]:
    """Code to fill in, and the line that says so; no line where there is nothing to fill in."""
    factor = wanted.document["learning_rate"]["factor"]
    guessed = wanted.document["task"]["loss"] == "guess"
    unnamed = f"a guess, {as_words(wanted.tuned.facts.loss)}" if guessed else "the model's own loss"
    measured = f"measured with {loss or unnamed}"
    step, to_write = plain_script.training_step(
        wanted.document["task"]["loss"], wanted.tuned.facts.batch_signature, measured
    )
    model, from_autotune = _import_of_model(wanted)
    optimizer = f"measured with {as_words(wanted.get('optimizer'))}; multiply every learning rate by {factor!r}"
    named = {name: f"measured with {wanted.get(name)}" for name in objects}
    return {
        "model": (model or plain_script.MODEL, from_autotune if model else "make_model: the model that was tuned"),
        "data": (plain_script.DATA, "make_dataset: the dataset that was tuned"),
        "loss": (step, None if to_write is None else f"{to_write}: {measured}"),
        "objects": (
            "\n\n".join(f"{name} = ...  # {told}" for name, told in named.items()),
            ", ".join(f"{name}: {told}" for name, told in named.items()) or None,
        ),
        "optimizer": (
            plain_script.OPTIMIZER.replace("<<TOLD>>", optimizer) if own_optimizer else "",
            f"make_optimizer: {optimizer}" if own_optimizer else None,
        ),
    }


def _told(refused: str | None, left: list[str]) -> str:
    if not left:
        return (
            "All of it comes from the task's file, which lay in FOLDER on the machine that wrote this. What that file\n"
            "imports has to do without autotune as well. Change here what is to be otherwise."
        )
    why = f"Nothing was taken from the task's file: {refused}." if refused else "The rest comes from the task's file."
    lines = textwrap.wrap(f"{why} Fill in:", _WIDTH)
    for one in left:
        lines += textwrap.wrap(f"- {one}", _WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _import_of_model(wanted: Wanted) -> tuple[str | None, str | None]:
    """The import of the model's factory where it has a name, and a line where that needs this package after all.

    A config that was loaded knows no factory.
    """
    task = wanted.tuned.task
    factory = None if task is None else task.model
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "<locals>")
    if not callable(factory) or "<" in name or module in (None, "__main__", "builtins") or not name.isidentifier():
        return None, None
    needs = f"make_model: {name} is in {module}, which imports autotune" if imports_of(module, "autotune") else None
    return f"from {module} import {name} as make_model  # where the task has it", needs
