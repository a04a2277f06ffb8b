"""The document: its shape, and what is refused when read back."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from autotune.build.length_grouping import LengthGroupedBatchSampler
from autotune.config import TunedConfig
from autotune.config.validation import config_schema
from autotune.errors import ConfigError
from autotune.hardware import Accelerator, Hardware
from autotune.settings import Settings
from autotune.task import Task
from autotune.task.optimizer_spec import SCALED_MARK

_DATA = json.loads((Path(__file__).parent / "data" / "version_1.json").read_text("utf-8"))

_KEYS = [
    "schema_version",
    "task",
    "hardware",
    "requires",
    "dataloader",
    "gradient_accumulation_steps",
    "effective_batch_size",
    "max_grad_norm",
    "autocast",
    "grad_scaler",
    "memory_format",
    "compile",
    "torch",
    "optimizer",
    "scheduler",
    "not_portable",
    "evidence",
    "settings",
    "baseline",
    "learning_rate",
    "facts",
    "same_batch",
]

MakeConfig = Callable[..., TunedConfig]

_SETTINGS = [
    Settings(batch_size=16),
    Settings(batch_size=64, num_workers=2, prefetch_factor=4, persistent_workers=True, multiprocessing_context="spawn"),
    Settings(batch_size=8, gradient_accumulation_steps=8, precision="bf16-mixed", compile_mode="default"),
    Settings(batch_size=32, precision="fp16-mixed", channels_last=True, cudnn_benchmark=True),
    Settings(batch_size=16, precision="tf32", num_threads=1, optimizer_implementation="for-loop"),
    Settings(batch_size=16, compile_mode="reduce-overhead", compile_scope="blocks", optimizer_implementation="fused"),
]


@pytest.mark.parametrize("settings", _SETTINGS)
def test_document_holds_to_the_schema_and_comes_back_equal(make_config: MakeConfig, settings: Settings) -> None:
    """Any config survives JSON without NaN, in the same order, with settings and baseline exact.

    Reports: huggingface/transformers#16054 and #23876.
    """
    config = make_config(settings)
    document = config.to_json()
    jsonschema.validate(document, config_schema())
    read = TunedConfig.from_json(json.loads(json.dumps(document, allow_nan=False)))
    assert list(document) == _KEYS
    assert json.dumps(read.to_json()) == json.dumps(document)
    assert (read.settings, read.baseline) == (config.settings, config.baseline)
    assert (read.learning_rate, read.facts, read.evidence) == (config.learning_rate, config.facts, config.evidence)


def test_every_key_is_known_to_the_schema(make_config: MakeConfig, real_hardware: Hardware) -> None:
    """Nothing is written that the schema does not describe, free-form objects apart."""
    free = {f"{section}.kwargs" for section in ("optimizer", "same_batch.optimizer")}
    free |= {"facts.optimizer_kwargs", "facts.optimizer_groups[]", "facts.caller"}
    accelerator = Accelerator(type="cuda", name="a card", index=0, count=1, capability=(9, 0))
    hardware = dataclasses.replace(real_hardware, accelerator=accelerator)
    document = json.loads(json.dumps(make_config(_SETTINGS[2], hardware=hardware).to_json()))
    jsonschema.validate(document, config_schema())
    assert list(_undescribed(document, config_schema(), "", free)) == []
    assert TunedConfig.from_json(document).to_json() == document


def test_device_of_the_document_is_where_it_was_tuned(
    make_config: MakeConfig, task: Task, real_hardware: Hardware
) -> None:
    """The accelerator, unless the task asks for another device."""
    hardware = dataclasses.replace(real_hardware, accelerator=Accelerator(type="cuda", name="a card", index=0, count=1))
    on_card = Task(task.model, task.data.dataset, loss_fn=task.loss_fn, optimizer=torch.optim.SGD)
    settings = Settings(batch_size=16, precision="fp16-mixed")
    document = make_config(settings, of=on_card, hardware=hardware).to_json()
    assert document["autocast"] == {"device_type": "cuda", "dtype": "float16", "enabled": True}
    assert document["grad_scaler"] == {"device": "cuda", "enabled": True}
    assert make_config(settings, hardware=hardware).to_json()["autocast"]["device_type"] == "cpu"


@pytest.mark.parametrize("settings", _SETTINGS)
def test_dataloader_section_makes_a_dataloader(make_config: MakeConfig, settings: Settings) -> None:
    """``DataLoader(dataset, **cfg["dataloader"])`` works as it stands, and only holds what torch takes together."""
    config = make_config(settings)
    section = json.loads(json.dumps(config.to_json()["dataloader"]))
    loader = DataLoader(config.task.data.dataset, **section)
    assert loader.batch_size == settings.batch_size
    assert loader.num_workers == settings.num_workers
    assert ("prefetch_factor" in section) == (settings.num_workers > 0)


@pytest.mark.parametrize("settings", _SETTINGS)
def test_numerics_sections_make_torch_objects(make_config: MakeConfig, settings: Settings) -> None:
    """autocast, scaler and memory format go straight into torch, also where they are off."""
    document = make_config(settings).to_json()
    autocast = {**document["autocast"], "dtype": getattr(torch, document["autocast"]["dtype"])}
    with torch.autocast(**autocast):
        assert torch.is_autocast_enabled("cpu") == (settings.precision in ("bf16-mixed", "fp16-mixed"))
    scaler = torch.amp.GradScaler(**document["grad_scaler"])
    assert scaler.is_enabled() == (settings.precision == "fp16-mixed")
    model = nn.Conv2d(3, 4, 3).to(memory_format=getattr(torch, document["memory_format"]))
    assert model.weight.is_contiguous(memory_format=torch.channels_last) == settings.channels_last


@pytest.mark.parametrize("implementation", [None, "for-loop", "foreach", "fused"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "NAdam", "Adagrad"])
def test_optimizer_section_makes_the_optimizer_of_the_builder(
    make_config: MakeConfig, task: Task, name: str, implementation: str | None
) -> None:
    """``torch.optim.X(params, **kwargs)`` gives what ``config.optimizer`` gives, lr scaled, base_lr beside."""
    cls = getattr(torch.optim, name)
    task = Task(task.model, task.data.dataset, loss_fn=task.loss_fn, optimizer=lambda params: cls(params, lr=0.01))
    config = make_config(Settings(batch_size=64), of=task)
    if implementation not in (None, *config.facts.optimizer_implementations):
        pytest.skip(f"{name} has no {implementation} step")
    config = make_config(Settings(batch_size=64, optimizer_implementation=implementation), of=task)
    section = config.to_json()["optimizer"]
    model = task.build_model()
    from_json = cls(model.parameters(), **section["kwargs"])
    built = config.optimizer(model)
    assert section["name"] == f"torch.optim.{name}"
    assert (section["base_lr"], section["base_batch_size"], section["param_groups"]) == (0.01, 16, [])
    for option, value in built.param_groups[0].items():
        if option not in ("params", "foreach", "fused", SCALED_MARK):
            ours = from_json.param_groups[0][option]
            assert (list(ours) if isinstance(ours, (list, tuple)) else ours) == (
                list(value) if isinstance(value, (list, tuple)) else value
            )
    wanted = from_json.param_groups[0]
    assert bool(wanted.get("fused")) == (implementation == "fused")
    assert bool(wanted.get("foreach")) == (implementation == "foreach")


def test_parameter_groups_are_listed_with_scaled_rates(make_config: MakeConfig, task: Task) -> None:
    """Several groups appear in order; a rate that a scheduler has moved starts from its first value."""

    def two_groups(params: Any) -> torch.optim.Optimizer:
        first, *rest = params
        return torch.optim.SGD([{"params": [first], "lr": 0.5, "initial_lr": 0.1}, {"params": rest}], lr=0.01)

    task = Task(task.model, task.data.dataset, loss_fn=task.loss_fn, optimizer=two_groups)
    document = make_config(Settings(batch_size=64), of=task).to_json()
    assert [group["lr"] for group in document["optimizer"]["param_groups"]] == [pytest.approx(0.4), pytest.approx(0.04)]
    assert any("2 parameter groups" in entry for entry in document["not_portable"])


def test_what_json_cannot_hold_is_listed_by_name(make_config: MakeConfig, task: Task) -> None:
    """collate_fn, sampler, loss and an optimizer class of one's own are named, so that nobody forgets them."""
    loaded = DataLoader(
        task.data.dataset,
        batch_size=16,
        collate_fn=_own_collate,
        sampler=torch.utils.data.SubsetRandomSampler(range(9)),
    )
    task = Task(task.model, loaded, training_step=_own_step, optimizer=_OwnSGD)
    listed = make_config(Settings(batch_size=16), of=task).to_json()["not_portable"]
    kinds = {entry.partition(":")[0]: entry.partition(": ")[2] for entry in listed}
    assert set(kinds) == {"collate_fn", "sampler", "training_step", "optimizer"}
    assert kinds["collate_fn"].endswith("_own_collate")
    assert kinds["sampler"] == "torch.utils.data.sampler.SubsetRandomSampler"
    assert kinds["optimizer"].endswith("_OwnSGD")


def test_recomputed_activations_are_listed_and_listed_once(make_config: MakeConfig) -> None:
    """No argument of torch's expresses them; writing what was read says it no second time."""
    config = make_config(Settings(batch_size=16, activation_checkpointing=True))
    written = config.to_json()
    assert [entry.partition(":")[0] for entry in written["not_portable"]].count("activation_checkpointing") == 1
    again = TunedConfig.from_json(written)
    assert again.to_json()["not_portable"] == written["not_portable"]
    assert not any("checkpointing" in entry for entry in make_config().to_json()["not_portable"])


def test_grouped_batches_are_listed_and_come_back(make_config: MakeConfig) -> None:
    """No argument of torch's groups by length; the loader of what was read does."""
    config = make_config(Settings(batch_size=16, length_grouped=True))
    written = config.to_json()
    entry = "length_grouped: autotune.build.length_grouping.LengthGroupedBatchSampler"
    assert written["not_portable"].count(entry) == 1
    again = TunedConfig.from_json(written, task=config.task)
    assert again.to_json() == written
    assert again.settings.length_grouped
    for one in (config, again):
        loader = one.dataloader()
        assert isinstance(loader.batch_sampler, LengthGroupedBatchSampler)
        assert sum(len(labels) for _, labels in loader) == 70
        assert not isinstance(one.dataloader(train=False).batch_sampler, LengthGroupedBatchSampler)


def test_same_batch_answer_is_stored_once_and_only_where_it_differs(make_config: MakeConfig) -> None:
    """It comes back as a config of its own; without a change of batch there is none."""
    same = make_config(Settings(batch_size=16, num_threads=1))
    config = make_config(Settings(batch_size=64), same_batch=same)
    read = TunedConfig.from_json(config.to_json())
    assert read.keep_batch().to_json() == same.to_json()
    assert same.to_json()["same_batch"] is None


def test_plain_json_trains_where_the_package_is_not(tmp_path: Path, make_config: MakeConfig) -> None:
    """Sections go into torch's own calls in a process that cannot import the package."""
    path = tmp_path / "tuned.json"
    settings = Settings(batch_size=16, gradient_accumulation_steps=4, channels_last=True, num_threads=1)
    make_config(settings).save(path)
    script = Path(__file__).parent / "data" / "train_without_autotune.py"
    done = subprocess.run(
        [sys.executable, "-I", str(script), str(path)], capture_output=True, text=True, timeout=300, check=False,
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, last = map(float, done.stdout.split())
    assert last < first


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("dataloader", "batch_size"), 32, "dataloader.batch_size=32 and settings.batch_size=64"),
        (("dataloader", "num_workers"), 0, "dataloader.num_workers=0 and settings.num_workers=1"),
        (("gradient_accumulation_steps",), 3, "gradient_accumulation_steps and settings contradict"),
        (("autocast", "enabled"), True, "autocast and settings contradict"),
        (("optimizer", "kwargs", "lr"), 1.0, "optimizer and settings contradict"),
        (("torch", "num_threads"), 8, "torch and settings contradict"),
        (("same_batch", "dataloader", "batch_size"), 64, "settings.batch_size=32"),
        (("settings", "prefetch_factor"), None, "needs a prefetch_factor"),
    ],
)
def test_contradicting_edit_is_refused(place: tuple[str, ...], value: object, said: str) -> None:
    """A file edited in one place is not half obeyed."""
    document = copy.deepcopy(_DATA)
    *parents, name = place
    inner = document
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    with pytest.raises(ConfigError, match="cannot be") as caught:
        TunedConfig.from_json(document)
    assert said in caught.value.cause
    assert "\n" not in str(caught.value)


_PLACES = st.sampled_from(
    [(key,) for key in _DATA]
    + [(key, inner) for key, value in _DATA.items() if isinstance(value, dict) for inner in value]
)
_ODD = st.sampled_from([None, True, -1, 0, 10**30, 0.5, "", "x", [], [1], {}, {"x": 1}, [[]]])


@hypothesis_settings(max_examples=300, deadline=None)
@given(_PLACES, _ODD)
@example(("evidence", "padding_share"), 0.5)
def test_any_odd_value_gives_a_config_or_a_config_error(place: tuple[str, ...], value: object) -> None:
    """Nothing but ConfigError ever comes out of reading, whatever a value was replaced with."""
    document = copy.deepcopy(_DATA)
    inner = document
    for parent in place[:-1]:
        inner = inner[parent]
    inner[place[-1]] = value
    try:
        read = TunedConfig.from_json(document)
    except ConfigError as error:
        said = str(error)
    else:
        json.dumps(read.to_json(), allow_nan=False)
        said = read.code()[:0] + str(read)[:0]
    assert "\n" not in said


def _own_collate(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


def _own_step(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


class _OwnSGD(torch.optim.SGD):
    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)


def _undescribed(value: Any, schema: dict[str, Any], path: str, free: set[str]) -> Any:
    while "$ref" in schema:
        schema = config_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    if path in free:
        return
    if isinstance(value, dict):
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            where = f"{path}.{name}" if path else name
            if not isinstance(inner, dict):
                yield where
            else:
                yield from _undescribed(item, inner, where, free)
    elif isinstance(value, list):
        for item in value:
            yield from _undescribed(item, schema.get("items", {}), f"{path}[]", free)


def _summed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="sum")


def test_a_hidden_sum_is_kept_and_trains_as_one(make_config: MakeConfig, task: Task) -> None:
    """Nothing about the function tells, so what was found out on a batch does, also in a loaded config."""
    own = Task(task.model, task.data.dataset, loss_fn=_summed, device="cpu")
    config = make_config(of=own)
    document = config.to_json()
    assert (document["task"]["reduction"], document["facts"]["reduction"]) == ("sum", "sum")
    loaded = TunedConfig.from_json(document)
    model = own.build_model()
    for tuned, loss_fn in ((config, None), (loaded, _summed)):
        assert tuned.train_step(model, config.optimizer(model), loss_fn=loss_fn)._reduction == "sum"
    declared = loaded.train_step(model, config.optimizer(model), loss_fn=nn.CrossEntropyLoss())
    assert declared._reduction == "mean"


def test_a_config_of_an_older_release_has_its_tasks_reduction(make_config: MakeConfig, task: Task) -> None:
    """Its facts did not hold it yet."""
    own = Task(task.model, task.data.dataset, loss_fn=nn.CrossEntropyLoss(reduction="sum"), device="cpu")
    document = make_config(of=own).to_json()
    del document["facts"]["reduction"], document["facts"]["warnings"]
    assert TunedConfig.from_json(document).facts.reduction == "sum"


def test_contradicting_reductions_are_refused(make_config: MakeConfig) -> None:
    """One of the two was edited by hand."""
    document = make_config().to_json()
    document["task"]["reduction"] = "sum"
    with pytest.raises(ConfigError, match="reduction contradict"):
        TunedConfig.from_json(document)
