"""The demo's crops: complete or absent, the same everywhere, honest about their source."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image

from autotune.demo import crops
from autotune.demo.crops import CROP_PIXELS, PHOTOS, crop_label, crop_name, prepare_crops
from autotune.errors import AutotuneError, MissingPackageError, SettingsError


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_ten_photos_are_shipped_small_and_each_with_its_licence():
    """Every photo is there, at most 512 pixels wide and high, and named in the licence file."""
    folder = Path(crops.__file__).parent / "photos"
    licences = (folder / "LICENSES.md").read_text(encoding="utf-8")
    assert len(PHOTOS) == 10
    assert {path.stem for path in folder.glob("*.jpg")} == set(PHOTOS)
    for name in PHOTOS:
        with Image.open(folder / f"{name}.jpg") as photo:
            assert max(photo.size) <= 512
        assert f"`{name}.jpg`" in licences
    assert sum(path.stat().st_size for path in folder.glob("*.jpg")) < 700_000


def test_writes_all_crops_with_a_manifest(tmp_path):
    """The folder holds the asked number of square RGB JPEG files and the manifest knows their sizes."""
    folder = prepare_crops(tmp_path, 25)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["file_bytes"] == [(folder / crop_name(index)).stat().st_size for index in range(25)]
    assert len(list(folder.glob("*.jpg"))) == 25
    with Image.open(folder / crop_name(24)) as crop:
        assert (crop.format, crop.mode, crop.size) == ("JPEG", "RGB", (CROP_PIXELS, CROP_PIXELS))


def test_labels_go_round_the_photos():
    """Each photo gets its turn, so that the classes are balanced."""
    assert [crop_label(index) for index in range(20)] == [*range(10), *range(10)]


def test_crops_are_the_same_in_every_cache_and_differ_from_each_other(tmp_path):
    """The same index gives the same bytes anywhere; two crops of one photo are not the same picture."""
    first, second = prepare_crops(tmp_path / "a", 20), prepare_crops(tmp_path / "b", 20)
    assert _bytes(first) == _bytes(second)
    pictures = [data for name, data in _bytes(first).items() if name.endswith(".jpg")]
    assert len(set(pictures)) == 20


def test_an_intact_folder_is_found_again_and_not_touched(tmp_path, monkeypatch):
    """The second call writes nothing."""
    folder = prepare_crops(tmp_path, 12)
    monkeypatch.setattr(crops, "_write_folder", lambda *_: pytest.fail("written again"))
    assert prepare_crops(tmp_path, 12) == folder


@pytest.mark.parametrize("damage", ["cut file", "lost file", "cut manifest", "lost manifest", "foreign manifest"])
def test_a_damaged_folder_is_noticed_and_written_again(tmp_path, damage):
    """Lost or cut files and manifests lead to the same folder as a fresh start, and that is said."""
    folder = prepare_crops(tmp_path, 12)
    whole = _bytes(folder)
    victim = folder / ("manifest.json" if "manifest" in damage else crop_name(5))
    if "lost" in damage:
        victim.unlink()
    else:
        victim.write_bytes(b"[1, 2]" if "foreign" in damage else victim.read_bytes()[:-7])
    said: list[str] = []
    assert prepare_crops(tmp_path, 12, say=said.append) == folder
    assert _bytes(folder) == whole
    assert "damaged" in said[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left_half_written(tmp_path, monkeypatch, error):
    """An interruption in the middle leaves neither the folder nor its temporary one."""
    write = crops._write_crop

    def failing(folder: Path, photo: Image.Image, index: int) -> int:
        if index == 7:
            raise error
        return write(folder, photo, index)

    monkeypatch.setattr(crops, "_write_crop", failing)
    with pytest.raises(error):
        prepare_crops(tmp_path, 12)
    assert [path for path in (tmp_path / "demo").iterdir() if path.is_dir()] == []


def test_the_remains_of_a_killed_run_are_removed(tmp_path):
    """A temporary folder nobody works on any more goes with the next run."""
    folder = prepare_crops(tmp_path / "elsewhere", 12)
    remains = tmp_path / "demo" / f"{folder.name}.part-abc"
    remains.mkdir(parents=True)
    prepare_crops(tmp_path, 12)
    assert not remains.exists()


def test_two_at_once_write_once(tmp_path, monkeypatch):
    """The second waits for the first and finds its folder."""
    written: list[Path] = []
    write = crops._write_folder

    def counting(folder: Path, *rest: object) -> None:
        written.append(folder)
        write(folder, *rest)

    monkeypatch.setattr(crops, "_write_folder", counting)
    threads = [threading.Thread(target=prepare_crops, args=(tmp_path, 40)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1


def test_progress_is_said(tmp_path):
    """The lines count up to the number asked for."""
    said: list[str] = []
    prepare_crops(tmp_path, 20, say=said.append)
    assert len(said) == 5
    assert "20 of 20" in said[-1]


@pytest.mark.parametrize("number", [0, 9, -1, 20.0, True, "20"])
def test_too_few_crops_are_refused(tmp_path, number):
    """There must be one of each photo."""
    with pytest.raises(SettingsError, match="crops="):
        prepare_crops(tmp_path, number)


def test_a_folder_that_cannot_be_written_names_it_and_the_remedy(tmp_path):
    """A file in the place of the cache folder is one clear error."""
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(AutotuneError, match="cache") as caught:
        prepare_crops(tmp_path / "cache", 12)
    assert "cache_dir" in caught.value.remedy


def test_a_lock_held_for_ever_is_an_error(tmp_path, monkeypatch):
    """Waiting for another process ends, and says for whom it waited."""
    from filelock import FileLock

    folder = prepare_crops(tmp_path, 12)
    (folder / crop_name(0)).unlink()
    monkeypatch.setattr(crops, "_LOCK_TIMEOUT_S", 0.05)
    with FileLock(f"{folder}.lock"), pytest.raises(AutotuneError, match="Another process"):
        prepare_crops(tmp_path, 12)


def test_missing_pillow_is_named_with_the_extra(tmp_path, monkeypatch):
    """Without Pillow the remedy is the extra to install."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match="Pillow") as caught:
        prepare_crops(tmp_path, 12)
    assert "torch-autotune[demo]" in caught.value.remedy


def test_the_default_cache_folder_is_the_users(monkeypatch, tmp_path):
    """Without a folder given, the crops go to the user's cache."""
    monkeypatch.setattr(crops, "default_cache_dir", lambda: tmp_path / "mine")
    assert prepare_crops(None, 10).parent == tmp_path / "mine" / "demo"
