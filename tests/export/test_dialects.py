"""What holds for every dialect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Sampler

from autotune.config import TunedConfig
from autotune.errors import ConfigError, SettingsError
from autotune.export import DIALECTS, to
from autotune.export.wanted import Wanted, as_words
from autotune.settings import DOMAINS, Settings

from .conftest import MakeConfig, pictures


class Sevens(Sampler[list[int]]):
    """Batches of seven, in order."""

    def __iter__(self) -> Iterator[list[int]]:
        return (list(range(first, first + 7)) for first in range(0, 70, 7))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_values_text_and_files(everything: TunedConfig, dialect: str) -> None:
    """The export is JSON, its text is its first file, and it names its dialect."""
    export = to(everything, dialect)
    assert json.loads(json.dumps(export.to_json()))["dialect"] == dialect
    assert next(iter(export.files.values())) == export.text != ""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_is_dropped_in_silence(everything: TunedConfig, dialect: str) -> None:
    """Of a config that sets every knob, each is taken by the dialect or listed with a reason."""
    wanted = Wanted(everything)
    taken: set[str] = set()
    take = wanted.take
    wanted.take = lambda name, default=None: (taken.add(name), take(name, default))[1]  # type: ignore[method-assign]
    module = __import__(f"autotune.export.{dialect}", fromlist=["export"])
    listed = " ".join(one.what for one in module.export(wanted).not_expressed)
    asked = (*DOMAINS, "max_grad_norm", "warmup_steps", "learning_rate", "optimizer", "loss_fn")
    silent = [name for name in asked if wanted.asked(name) and name not in taken and name not in listed]
    assert silent == []


def test_every_knob_is_an_item(everything: TunedConfig) -> None:
    """A knob that is added to the settings and forgotten here is noticed."""
    wanted = Wanted(everything)
    assert [name for name in DOMAINS if not wanted.asked(name)] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_reason_is_told_in_the_text_where_comments_exist(everything: TunedConfig, dialect: str) -> None:
    """Whoever only sees the file sees what is missing from it; JSON alone has no comments."""
    export = to(everything, dialect)
    assert export.not_expressed
    assert all(one.reason for one in export.not_expressed)
    if dialect != "deepspeed":
        assert all(one.what.split("=")[0][:40] in export.text for one in export.not_expressed)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_torch_does_anyway_is_not_reported_missing(make_config: MakeConfig, dialect: str) -> None:
    """A config that asks for nothing special lists no knobs of which nothing is asked."""
    listed = " ".join(one.what for one in to(make_config(Settings(batch_size=16)), dialect).not_expressed)
    for name in ("num_workers", "pin_memory", "channels_last", "compile_mode", "num_threads", "max_grad_norm"):
        assert name not in listed


@pytest.mark.parametrize("dialect", DIALECTS)
def test_batches_of_the_users_own_are_exported_too(make_config: MakeConfig, dialect: str) -> None:
    """Without a batch size there is none in the export, and no error."""
    loader = DataLoader(pictures(), batch_sampler=Sevens())
    config = make_config(Settings(batch_size=None), data=loader, baseline=Settings(batch_size=None))
    export = to(config, dialect)
    assert "batch_sampler" in " ".join(one.what for one in export.not_expressed) or dialect == "plain"


def test_a_loaded_config_exports_as_the_fresh_one(everything: TunedConfig) -> None:
    """A file says all that an export needs, except for where the model comes from."""
    loaded = TunedConfig.from_json(everything.to_json())
    for dialect in DIALECTS:
        assert to(loaded, dialect).text == to(everything, dialect).text


def test_an_unknown_dialect_is_an_error_that_names_them(everything: TunedConfig) -> None:
    """The message lists what there is."""
    with pytest.raises(SettingsError, match="plain, lightning, hf"):
        to(everything, "keras")


def test_names_from_a_file_cannot_become_code(everything: TunedConfig) -> None:
    """What a damaged or hostile file calls an argument or an object stays a word."""
    assert as_words('x"""\nimport os\n\'') == "x import os "
    document = everything.to_json()
    document["not_portable"] = ['collate_fn: x\nimport os; os.abort()\n"""']
    document["task"]["name"] = 'tiny"""\nimport os\n'
    export = to(TunedConfig.from_json(document), "plain")
    assert not any(line.lstrip().startswith("import os") for text in export.files.values() for line in text.split("\n"))
    document["same_batch"] = None
    document["optimizer"]["kwargs"]["lr=1);import os;("] = 1
    document["facts"]["optimizer_kwargs"]["lr=1);import os;("] = 1
    with pytest.raises(ConfigError, match="is no name"):
        to(TunedConfig.from_json(document), "plain")


def test_exporting_imports_no_other_library(everything: TunedConfig, tmp_path: Path) -> None:
    """Another library's words need only be written, so none is loaded."""
    everything.save(tmp_path / "tuned.json")
    code = (
        "import sys; from autotune import TunedConfig; from autotune.export import DIALECTS, to\n"
        f"tuned = TunedConfig.load({str(tmp_path / 'tuned.json')!r})\n"
        "[to(tuned, dialect) for dialect in DIALECTS]\n"
        "loaded = {'lightning', 'transformers', 'accelerate', 'deepspeed', 'timm', 'fastai', 'torchtitan', 'yaml'}\n"
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
