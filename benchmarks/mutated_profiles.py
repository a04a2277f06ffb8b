"""Are damaged files ever a crash? Mutated configs and stores are loaded; each loads validly or gives our error.

    python benchmarks/mutated_profiles.py [--count 10000] [--seed 0]

Half of the files are a plain config, half a store of three entries. Each gets one to three mutations: bits flipped,
pieces cut, doubled or swapped, values of the JSON replaced, removed or nested. A file that loads is saved, loaded again
and must be the same; into every tenth store a result is put, after which the new one loads and what was there is either
still there or kept aside. Prints how many loaded, and exits with 1 at the first crash.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).resolve().parents[1] / "tests" / "config" / "data" / "version_1.json"
ODD: list[Any] = [None, True, -1, 0, 1e308, 10**30, "", "\udcff", "sha256:", [], {}, [[]], {"a": 1}, "NaN", 2, 99]


def main(arguments: list[str] | None = None) -> int:
    """Loads the files and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        counts = load_all(Path(folder), chosen.count, random.Random(chosen.seed))
    print(f"{chosen.count} files: " + ", ".join(f"{count} {fate}" for fate, count in sorted(counts.items())))
    return 0


def load_all(folder: Path, count: int, source: random.Random) -> Counter[str]:
    """What became of each file; anything but our own error passes through."""
    from autotune.errors import ConfigError

    config = json.loads(SAMPLE.read_text("utf-8"))
    store = _store(config)
    counts: Counter[str] = Counter()
    for number in range(count):
        content = mutated(store if number % 2 else config, source)
        path = folder / "file.json"
        path.write_bytes(content)
        try:
            _load(path, folder)
            counts["loaded"] += 1
        except ConfigError as error:
            if not error.cause or "\n" in error.cause or not error.remedy:
                raise AssertionError(f"not one clear sentence: {error!r}") from error
            counts["our error"] += 1
        if number % 20 == 1:
            counts[_written(path, content, config)] += 1
    return counts


def mutated(value: Any, source: random.Random) -> bytes:
    """The JSON of ``value`` with one to three faults."""
    changed = json.loads(json.dumps(value))
    for _ in range(source.choice([0, 1, 1, 2])):
        _change_value(changed, source)
    content = bytearray(json.dumps(changed).encode("utf-8", "backslashreplace"))
    for _ in range(source.choice([0, 0, 1, 1, 2])):
        source.choice([_flip, _cut, _double, _swap])(content, source)
    return bytes(content)


def _load(path: Path, folder: Path) -> None:
    from autotune import TunedConfig
    from autotune.config.entries import read_shelf
    from autotune.errors import ConfigError

    shelf = read_shelf(str(path))
    for entry in shelf.entries:
        config = TunedConfig.from_json(entry.document)
        again = folder / "again.json"
        str(config)  # what people see of it
        config.save(again)
        if TunedConfig.load(again).to_json() != config.to_json():
            raise AssertionError("a config that loads is not the same after saving")
    try:
        TunedConfig.load(path)  # of a store: this machine's entry, or the nearest ones
    except ConfigError as error:
        if shelf.entries and "holds no config for this machine" not in error.cause:
            raise


def _written(path: Path, content: bytes, config: dict[str, Any]) -> str:
    """Puts a result into the mutated file; says what became of what was there."""
    from autotune.config.file import NewerConfigError
    from autotune.profiles import Key, Profiles

    store, key = Profiles(path), Key(task="sha256:new", hardware="sha256:new")
    before = {str(asides) for asides in path.parent.glob("*.damaged-*")}
    try:
        kept = store.read()
    except Exception:  # what cannot be read must be kept aside, checked below
        kept = None
    try:
        store.put(key, config)
    except NewerConfigError:
        if path.read_bytes() != content:
            raise AssertionError("a newer release's file was changed") from None
        return "newer, left alone"
    entry = store.entry(key)
    if entry is None or entry.document != config:
        raise AssertionError("what was put is not there")
    after = store.read().entries
    if kept is not None and any(one.results not in [each.results for each in after] for one in kept.entries):
        raise AssertionError("an entry was lost")
    asides = {str(found) for found in path.parent.glob("*.damaged-*")} - before
    if (kept is None or kept.faults) and not any(Path(found).read_bytes() == content for found in asides):
        raise AssertionError("what could not be read was not kept aside")
    return "written beside, kept aside" if asides else "written beside"


def _store(config: dict[str, Any]) -> dict[str, Any]:
    keys = [{"task": f"sha256:{name}", "hardware": "sha256:m", "rules": ""} for name in "abc"]
    result = {"saved": "2026-01-02T03:04:05+00:00", "why": "tuned", "document": config}
    return {"profiles_version": 1, "entries": [{"key": key, "results": [result, result]} for key in keys]}


def _change_value(value: Any, source: random.Random) -> None:
    """Replaces, removes or adds a member somewhere in nested objects and lists."""
    places: list[tuple[Any, Any]] = []
    _collect(value, places)
    if not places:
        return
    holder, name = source.choice(places)
    change: Callable[[], Any] = source.choice(
        [
            lambda: holder.__setitem__(name, source.choice(ODD)),
            lambda: holder.pop(name),
            lambda: holder.__setitem__(name, {"nested": holder[name]}),
            lambda: holder.__setitem__(name, [holder[name]] * 3),
        ]
    )
    change()


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        places.append((value, name))
        _collect(member, places)


def _flip(content: bytearray, source: random.Random) -> None:
    if content:
        content[source.randrange(len(content))] ^= 1 << source.randrange(8)


def _cut(content: bytearray, source: random.Random) -> None:
    start = source.randrange(len(content) + 1)
    del content[start : start + source.choice([1, 10, 10_000])]


def _double(content: bytearray, source: random.Random) -> None:
    start = source.randrange(len(content) + 1)
    content[start:start] = content[start : start + source.randrange(1, 200)]


def _swap(content: bytearray, source: random.Random) -> None:
    if len(content) > 1:
        one, other = source.randrange(len(content)), source.randrange(len(content))
        content[one], content[other] = content[other], content[one]


if __name__ == "__main__":
    sys.exit(main())
