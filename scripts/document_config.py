"""Writes docs/config.md: every field of a saved config, from the schema that ships in the package.

python scripts/document_config.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.config.validation import config_schema

TARGET = Path(__file__).resolve().parent.parent / "docs" / "config.md"

HEAD = """# The saved config, field by field

<!-- Written by scripts/document_config.py from autotune/config/config_schema.json: change that file. -->

A config is one JSON file. Training with it takes `json` and torch, nothing of this package: each value goes into the
call that its key names, a dtype or a memory format being the name of an attribute of `torch`. No NaN, no infinity, no
import path that anyone has to run. The schema (JSON Schema, draft 2020-12) ships as
`autotune/config/config_schema.json`.

```python
import json, torch

with open("tuned.json", encoding="utf-8") as file:
    cfg = json.load(file)
if cfg["torch"]["num_threads"]:
    torch.set_num_threads(cfg["torch"]["num_threads"])
if cfg["torch"]["float32_matmul_precision"]:
    torch.set_float32_matmul_precision(cfg["torch"]["float32_matmul_precision"])
torch.backends.cudnn.benchmark = cfg["torch"]["cudnn_benchmark"]
loader = torch.utils.data.DataLoader(dataset, **cfg["dataloader"])
model = model.to(cfg["autocast"]["device_type"], memory_format=getattr(torch, cfg["memory_format"]))
if cfg["compile"] and cfg["compile"]["scope"] == "model":
    model.compile(mode=cfg["compile"]["mode"])
cls = getattr(torch.optim, cfg["optimizer"]["name"].rpartition(".")[2])  # where the name is one of torch.optim
optimizer = cls(model.parameters(), **cfg["optimizer"]["kwargs"])
scaler = torch.amp.GradScaler(**cfg["grad_scaler"])
autocast = {**cfg["autocast"], "dtype": getattr(torch, cfg["autocast"]["dtype"])}
for i, (inputs, target) in enumerate(loader, start=1):
    with torch.autocast(**autocast):
        loss = loss_fn(model(inputs), target) / cfg["gradient_accumulation_steps"]
    scaler.scale(loss).backward()
    if i % cfg["gradient_accumulation_steps"] == 0:
        if cfg["max_grad_norm"] is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg["max_grad_norm"])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
```

`torch-autotune export tuned.json --to plain` writes this as a complete script, short groups and warm-up included.
What needs objects of your own is named in `not_portable`. A release reads the files of all earlier ones and refuses
those of later ones.

| field | type | meaning |
|---|---|---|
"""


def rows(schema: Mapping[str, Any], defs: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """Path, type and meaning of each field; a part that occurs again is described once and referred to.

    Args:
        schema: Of an object.
        defs: Named parts of the whole schema.
        path: Of that object.
    """
    for name, given in schema.get("properties", {}).items():
        field = f"{path}.{name}" if path else name
        part = {**resolved(given, defs), **{key: value for key, value in given.items() if key != "$ref"}}
        repeated = path.startswith("same_batch") or (name == "baseline" and not path) or name == "speedup_same_batch"
        meaning = part["description"]
        if repeated and "$ref" in given:
            first = {"baseline": "settings", "speedup_same_batch": "evidence.speedup"}.get(name, name)
            yield field, kind(part), f"{meaning} Fields as in `{first}`." if "properties" in part else meaning
            continue
        yield field, kind(part), meaning
        yield from rows(part, defs, field)


def resolved(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The named part that a schema refers to, or itself."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return defs[name] if name else schema


def kind(schema: Mapping[str, Any]) -> str:
    """Type and range in a few words."""
    types = schema.get("type", [])
    words = " or ".join([types] if isinstance(types, str) else types)
    if "const" in schema:
        return f"{words}: {schema['const']}"
    if "enum" in schema:
        values = ", ".join("null" if one is None else str(one) for one in schema["enum"])
        return f"{words}: {values}"
    low, above, high = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    bounds = [f"≥ {low}" if low is not None else "", f"> {above}" if above is not None else ""]
    return ", ".join(filter(None, [words, *bounds, f"≤ {high:g}" if high is not None else ""]))


def document() -> str:
    """The whole page."""
    schema = config_schema()
    lines = [f"| `{field}` | {what} | {meaning} |" for field, what, meaning in rows(schema, schema["$defs"])]
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Writes the page, or with --check says whether it is the schema's."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(document(), encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == document():
        return 0
    print(f"{TARGET} is not that of the schema: run python {sys.argv[0]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
