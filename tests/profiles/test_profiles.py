"""The store: whole files, all results of all writers, nothing unreadable lost."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ConfigError
from autotune.profiles import HISTORY, Key, Profiles, user_folder

KEY = Key(task="sha256:t", hardware="sha256:m")
Made = Callable[..., dict[str, Any]]


@pytest.fixture(params=["folder", "file.json"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Profiles:
    """A store that does not exist yet, of either form."""
    return Profiles(tmp_path / request.param)


def trials(store: Profiles, key: Key = KEY) -> list[int]:
    """The numbers of a key's results, the one in force first."""
    entry = store.entry(key)
    return [] if entry is None else [one["document"]["evidence"]["trials"] for one in entry.results]


def test_what_was_put_is_there(store: Profiles, made: Made) -> None:
    """The document comes back as it was, with its reason."""
    store.put(KEY, made(number=7), why="tuned", budget_s=3)
    entry = store.entry(KEY)
    assert entry is not None
    assert entry.document == made(number=7)
    assert (entry.results[0]["why"], entry.results[0]["budget_s"]) == ("tuned", 3)


def test_nothing_is_made_by_looking(store: Profiles) -> None:
    """An empty store has no entry, and no file appears."""
    assert store.entry(KEY) is None
    assert store.read().entries == ()
    assert not store.path.exists()


def test_the_last_twenty_earlier_results_are_kept(store: Profiles, made: Made) -> None:
    """The newest is in force, the oldest are dropped."""
    for number in range(HISTORY + 5):
        store.put(KEY, made(number=number))
    assert trials(store) == list(range(HISTORY + 4, 3, -1))


def test_keys_do_not_touch_each_other(store: Profiles, made: Made) -> None:
    """Another machine, another task and other rules have entries of their own."""
    keys = [KEY, Key(task="sha256:t", hardware="sha256:n"), Key(task="sha256:u", hardware="sha256:m")]
    keys.append(Key(task="sha256:t", hardware="sha256:m", rules="r"))
    for number, key in enumerate(keys):
        store.put(key, made(number=number))
    assert [trials(store, key) for key in keys] == [[0], [1], [2], [3]]
    assert len(store.read().entries) == 4


def test_rolling_back_goes_back_one_result_each_time(store: Profiles, made: Made) -> None:
    """What was rolled back stays in the history and is not gone back to."""
    for number in range(3):
        store.put(KEY, made(number=number))
    assert store.rollback(KEY)["document"]["evidence"]["trials"] == 1
    assert store.rollback(KEY)["document"]["evidence"]["trials"] == 0
    assert sorted(trials(store)) == [0, 1, 2]
    with pytest.raises(ConfigError, match="no earlier result"):
        store.rollback(KEY)
    store.put(KEY, made(number=3))
    assert store.rollback(KEY)["document"]["evidence"]["trials"] == 0


def test_a_crash_while_writing_leaves_the_old_result(
    store: Profiles, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk changes nothing, and leaves no part of a file."""
    store.put(KEY, made(number=1))
    before = sorted(path.name for path in store.path.parent.rglob("*") if ".lock" not in path.name)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"No space left.*nothing was changed"):
        store.put(KEY, made(number=2))
    assert trials(store) == [1]
    assert sorted(path.name for path in store.path.parent.rglob("*") if ".lock" not in path.name) == before


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"profiles_version": 1}', b"[[[[", b"null"])
def test_a_damaged_file_is_kept_aside_and_said(tmp_path: Path, made: Made, content: bytes) -> None:
    """Its bytes survive under another name; the new result is stored (flashinfer-ai/flashinfer#3970)."""
    store = Profiles(tmp_path / "store.json")
    store.path.write_bytes(content)
    with pytest.warns(UserWarning, match="is kept as"):
        store.put(KEY, made(number=1))
    (aside,) = tmp_path.glob("store.json.damaged-*")
    assert aside.read_bytes() == content
    assert trials(store) == [1]


def test_entries_beside_a_damaged_one_stay(tmp_path: Path, made: Made) -> None:
    """One bad member of the list takes no other with it, and stays in the file."""
    store = Profiles(tmp_path / "store.json")
    store.put(KEY, made(number=1))
    value = json.loads(store.path.read_text())
    value["entries"].append({"key": 3})
    store.path.write_text(json.dumps(value))
    other = Key(task="sha256:u", hardware="sha256:m")
    with pytest.warns(UserWarning, match="Entry 1"):
        store.put(other, made(number=2))
    assert (trials(store), trials(store, other)) == ([1], [2])
    assert {"key": 3} in json.loads(store.path.read_text())["entries"]


@pytest.mark.parametrize("newer", [{"profiles_version": 2, "entries": []}, {"schema_version": 2}])
def test_a_newer_releases_file_is_refused_and_left_alone(tmp_path: Path, made: Made, newer: dict[str, Any]) -> None:
    """One sentence with the remedy; the file stays byte for byte."""
    store = Profiles(tmp_path / "store.json")
    store.path.write_text(json.dumps(newer))
    before = store.path.read_bytes()
    for use in (store.read, lambda: store.put(KEY, made())):
        with pytest.raises(ConfigError, match=r"version 2; this release reads up to 1\. Update"):
            use()
    assert store.path.read_bytes() == before
    assert not list(tmp_path.glob("*damaged*"))


def test_a_plain_config_becomes_the_first_entry(tmp_path: Path, made: Made) -> None:
    """The form before stores is read as one entry, and kept as such by the first write."""
    store = Profiles(tmp_path / "tuned.json")
    store.path.write_text(json.dumps(made(number=4)))
    assert trials(store) == [4]
    store.put(KEY, made(number=5))
    assert trials(store) == [5, 4]


def test_what_is_no_config_is_never_stored(store: Profiles, made: Made) -> None:
    """A document that could not be loaded again is refused before anything is written."""
    with pytest.raises(ConfigError, match="batch_size"):
        store.put(KEY, {**made(), "dataloader": {"batch_size": "many"}})
    assert not store.path.exists()


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o700, 0o600), (0o755, 0o644), (0o775, 0o664)])
def test_files_are_as_open_as_their_folder(tmp_path: Path, made: Made, folder_mode: int, file_mode: int) -> None:
    """A private folder holds private files; colleagues can write where they may write the folder."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(folder_mode)
    store = Profiles(folder)
    store.put(KEY, made())
    (file,) = folder.glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == file_mode


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_folder_made_here_is_the_users_alone(tmp_path: Path, made: Made) -> None:
    """Nobody else reads what somebody trains."""
    Profiles(tmp_path / "new" / "store").put(KEY, made())
    assert stat.S_IMODE((tmp_path / "new" / "store").stat().st_mode) == 0o700


def test_a_store_held_by_another_is_an_error_in_the_end(tmp_path: Path, made: Made) -> None:
    """Nobody waits for ever for a lock."""
    from filelock import FileLock

    store = Profiles(tmp_path / "store.json", lock_timeout_s=0.01)
    with FileLock(tmp_path / ".store.json.lock"), pytest.raises(ConfigError, match="held by another process"):
        store.put(KEY, made())


def test_the_users_folder_follows_the_environment() -> None:
    """A named folder is taken, an empty name means none, otherwise it is the user's cache folder."""
    assert user_folder({"AUTOTUNE_CACHE_DIR": "/x"}) == Path("/x")
    assert user_folder({"AUTOTUNE_CACHE_DIR": ""}) is None
    default = user_folder({})
    assert default is not None
    assert default.parts[-2:] == ("torch-autotune", "profiles")
