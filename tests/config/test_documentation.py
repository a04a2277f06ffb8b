"""docs/config.md describes every field of a saved config, and its code trains."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import torch
from torch import nn

from autotune.config.validation import config_schema

_ROOT = Path(__file__).parent.parent.parent
_PAGE = (_ROOT / "docs" / "config.md").read_text(encoding="utf-8")
_SAVED = Path(__file__).parent / "data" / "version_1.json"


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, field in schema.get("properties", {}).items():
        yield name, field.get("description", "")
        yield from _fields(field)


def test_every_field_of_the_schema_is_documented() -> None:
    """Each name stands in the page with its description, wherever in the schema it is."""
    schema = config_schema()
    found = [*_fields(schema), *(pair for part in schema["$defs"].values() for pair in _fields(part))]
    assert len(found) > 100
    missing = [name for name, description in found if f"{name}` |" not in _PAGE or description not in _PAGE]
    assert missing == []


def test_the_page_is_the_one_the_script_writes() -> None:
    """A schema that changes without its page is noticed."""
    spec = importlib.util.spec_from_file_location("document_config", _ROOT / "scripts" / "document_config.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.document() == _PAGE


def test_every_key_of_a_saved_config_is_documented() -> None:
    """What is written is in the page, section by section, and holds to the schema as jsonschema reads it."""
    document = json.loads(_SAVED.read_text(encoding="utf-8"))
    jsonschema.validate(document, config_schema())
    for section, value in document.items():
        assert f"| `{section}` |" in _PAGE
        for name in value if isinstance(value, dict) and section not in ("same_batch", "baseline") else ():
            assert f"| `{section}.{name}` |" in _PAGE, f"{section}.{name}"


def test_the_code_of_the_page_trains(tmp_path: Path, monkeypatch: Any) -> None:
    """Executed as it stands on a saved config, it changes the weights."""
    code = _PAGE.split("```python\n")[1].split("```")[0]
    document = json.loads(_SAVED.read_text(encoding="utf-8"))
    document["dataloader"] = {"batch_size": 64, "shuffle": True, "num_workers": 0}
    (tmp_path / "tuned.json").write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    dataset = torch.utils.data.TensorDataset(torch.randn(256, 3, 8, 8), torch.arange(256) % 2)
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    matmul = torch.get_float32_matmul_precision()
    try:
        exec(code, {"model": model, "dataset": dataset, "loss_fn": nn.CrossEntropyLoss()})
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(matmul)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
