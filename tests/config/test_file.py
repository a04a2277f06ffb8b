"""Config files: whole or not at all, and every fault named."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from autotune.config import file as config_file
from autotune.config.file import read_document, write_document
from autotune.errors import ConfigError

_DATA = Path(__file__).parent / "data" / "version_1.json"


@pytest.fixture
def document() -> dict[str, Any]:
    """A good document."""
    return json.loads(_DATA.read_text("utf-8"))


def test_file_of_the_first_version_is_read(document: dict[str, Any]) -> None:
    """What was written once stays readable."""
    assert read_document(_DATA) == document


def test_written_document_is_read_back_equal(tmp_path: Path, document: dict[str, Any]) -> None:
    """Values, and the order of keys, survive."""
    document["task"]["name"] = "größer \udcff"
    write_document(document, tmp_path / "tuned.json")
    read = read_document(tmp_path / "tuned.json")
    assert read == document
    assert list(read) == list(document)


def test_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk in the middle of writing changes nothing and leaves no part behind."""
    path = tmp_path / "tuned.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(config_file.os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_document(document, path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["tuned.json"]


def test_interrupted_write_leaves_no_part(
    tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C passes through, and the half-written file is gone."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(config_file.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_document(document, tmp_path / "tuned.json")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_value_that_is_not_json_is_refused_before_writing(tmp_path: Path, value: object) -> None:
    """NaN and objects never reach the disk (huggingface/transformers#23876)."""
    with pytest.raises(ConfigError, match="not JSON"):
        write_document({"value": value}, tmp_path / "tuned.json")
    assert os.listdir(tmp_path) == []


def test_missing_folder_is_named(tmp_path: Path) -> None:
    """The folder is not made silently."""
    with pytest.raises(ConfigError, match="absent"):
        write_document({}, tmp_path / "absent" / "tuned.json")


@pytest.mark.skipif(os.name != "posix", reason="POSIX file modes and links")
def test_mode_and_symbolic_link_of_the_old_file_are_kept(tmp_path: Path) -> None:
    """Replacing a file does not change who may read it, nor turn a link into a file."""
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_document({"a": 1}, link)
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "damaged"),
        (b'{"schema_version": 1', "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        (b'{"schema_version": NaN}', "NaN is not a number"),
        (b'{"schema_version": -Infinity}', "-Infinity is not a number"),
        (b'{"schema_version": 1e999}', "too large a number"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1, 2]", "not an object"),
        (b"{}", "schema_version is missing"),
        (b'{"schema_version": 2}', "schema version 2; this release reads up to 1"),
    ],
)
def test_damage_is_one_paragraph_with_path_and_remedy(tmp_path: Path, content: bytes, said: str) -> None:
    """Whatever is wrong with the file, the reader learns which file, what, and what to do."""
    path = tmp_path / "tuned.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    assert said in caught.value.cause
    assert str(path) in caught.value.cause
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_truncation_anywhere_is_noticed(tmp_path: Path) -> None:
    """No prefix of a config passes for a config."""
    content = _DATA.read_bytes().rstrip()
    path = tmp_path / "tuned.json"
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(ConfigError):
            read_document(path)


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    """Neither gives a bare OSError."""
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(ConfigError, match=path.name):
            read_document(path)


def test_file_of_another_kind_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint handed over by mistake is refused by its size."""
    monkeypatch.setattr(config_file, "_LARGEST_BYTES", 1 << 20)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_document(path)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("schema_version",), "1", 'schema_version is "1"'),
        (("schema_version",), True, "schema_version is true"),
        (("schema_version",), 0, "schema_version is 0"),
        (("settings", "warp_drive"), 1, "settings.warp_drive is unknown"),
        (("settings", "batch_size"), "64", 'settings.batch_size is "64"'),
        (("settings", "prefetch_factor"), 0, "settings.prefetch_factor is 0"),
        (("evidence", "speedup"), {"median": "x"}, "evidence.speedup.median"),
        (("optimizer", "warmup_steps"), 1.5, "optimizer.warmup_steps is 1.5"),
        (("not_portable",), [1], "not_portable[0] is 1"),
        (("max_grad_norm",), 0, "max_grad_norm is 0"),
        (("facts", "optimizer_kwargs"), None, "facts.optimizer_kwargs is null"),
    ],
)
def test_wrong_value_is_named_by_its_place(
    tmp_path: Path, document: dict[str, Any], place: tuple[str, ...], value: object, said: str
) -> None:
    """A single bad value is found and quoted."""
    *parents, name = place
    inner = document
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    assert said in caught.value.cause


def test_earlier_versions_are_brought_to_this_one_step_by_step() -> None:
    """Each step takes a document to the next version; what is of this or a later one stays as it is."""
    steps = {-1: lambda one: {**one, "a": 1}, 0: lambda one: {**one, "b": one["a"] + 1}}
    assert config_file.migrated({"schema_version": -1}, steps) == {"schema_version": 1, "a": 1, "b": 2}
    for version in (1, 2, None, True, "0"):
        assert config_file.migrated({"schema_version": version}, steps) == {"schema_version": version}


def test_a_document_is_migrated_before_it_is_checked(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an earlier version loads as one of this version."""
    old = {**{name: value for name, value in document.items() if name != "max_grad_norm"}, "schema_version": 0}
    with pytest.raises(ConfigError, match="max_grad_norm is missing"):
        config_file.check_document(old, "x")
    monkeypatch.setitem(config_file._MIGRATIONS, 0, lambda one: {**one, "max_grad_norm": document["max_grad_norm"]})
    assert config_file.check_document(old, "x") == document
