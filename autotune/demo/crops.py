"""The demo's data: crops of the ten shipped photos, written once as JPEG files to a cache folder.

A folder of crops is complete or absent: it is filled under another name and renamed, under a lock, and its manifest
lists the size of every file, so that a damaged folder is noticed and written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import AutotuneError, MissingPackageError, SettingsError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["CROP_PIXELS", "PHOTOS", "crop_label", "crop_name", "default_cache_dir", "prepare_crops"]

PHOTOS = (
    "astronaut",
    "brick",
    "camera",
    "chelsea",
    "coffee",
    "grass",
    "gravel",
    "hubble_deep_field",
    "retina",
    "rocket",
)
"""The classes, in the order of their labels."""

CROP_PIXELS = 256
"""Width and height of every crop."""

_RECIPE = 1
_SMALLEST_SIDE = 128
_QUALITY = 85
_LOCK_TIMEOUT_S = 300.0
_MANIFEST = "manifest.json"


def default_cache_dir() -> Path:
    """The user's cache folder of this package."""
    from platformdirs import user_cache_path

    return user_cache_path("torch-autotune", appauthor=False)


def crop_label(index: int) -> int:
    """Label of the crop ``index``: the photo it is cut from, in turn."""
    return index % len(PHOTOS)


def crop_name(index: int) -> str:
    """File name of the crop ``index``."""
    return f"{index:06d}.jpg"


def prepare_crops(
    cache_dir: str | Path | None = None, crops: int = 5200, *, say: Callable[[str], None] = lambda _: None
) -> Path:
    """The folder with the crops, written first if it is absent or damaged (about 5 s and 80 MB for 5,200).

    Args:
        cache_dir: Where to keep it; None is the user's cache folder.
        crops: How many crops, at least one of each photo.
        say: Gets a line of progress now and then.

    Returns:
        A folder with the files ``crop_name(0) … crop_name(crops - 1)`` and their manifest.

    Raises:
        SettingsError: Fewer crops than photos.
        MissingPackageError: Pillow is not installed.
        AutotuneError: The folder cannot be written.
    """
    if type(crops) is not int or crops < len(PHOTOS):
        raise SettingsError(f"crops={crops!r} is not possible.", f"Pass an int of at least {len(PHOTOS)}.")
    _require_pillow()
    parent = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    recipe = _recipe_hash()
    folder = parent / "demo" / f"crops-{crops}-{recipe[:12]}"
    try:
        _ensure(folder, crops, recipe, say)
    except OSError as error:
        raise AutotuneError(
            f"The demo's crops cannot be written to {folder.parent}: {error}.",
            "Free about 100 MB there, or choose another folder with cache_dir (command line: --cache-dir).",
        ) from error
    return folder


def _ensure(folder: Path, crops: int, recipe: str, say: Callable[[str], None]) -> None:
    from filelock import FileLock, Timeout

    if _intact(folder, crops, recipe):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{folder}.lock", timeout=_LOCK_TIMEOUT_S):
            if _intact(folder, crops, recipe):
                return
            if folder.exists():
                say(f"The crops in {folder} are incomplete or damaged: writing them again.")
            _write_folder(folder, crops, recipe, say)
    except Timeout as error:
        raise AutotuneError(
            f"Another process has been writing {folder} for {_LOCK_TIMEOUT_S:.0f} s.",
            "Wait for it, or choose another folder with cache_dir (command line: --cache-dir).",
        ) from error


def _write_folder(folder: Path, crops: int, recipe: str, say: Callable[[str], None]) -> None:
    for leftover in folder.parent.glob(f"{folder.name}.part-*"):  # of a run that was killed; the lock is ours
        shutil.rmtree(leftover)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        sizes = _write_crops(part, crops, say)
        manifest = {"recipe": recipe, "crops": crops, "photos": list(PHOTOS), "file_bytes": sizes}
        (part / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_crops(folder: Path, crops: int, say: Callable[[str], None]) -> list[int]:
    photos = [_load_photo(name) for name in PHOTOS]
    sizes: list[int] = []
    threads = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))  # Pillow frees the GIL while it encodes
    try:
        for size in threads.map(lambda index: _write_crop(folder, photos[crop_label(index)], index), range(crops)):
            sizes.append(size)
            if len(sizes) % max(1, crops // 5) == 0:
                say(f"Cutting crops from the photos: {len(sizes)} of {crops}.")
    finally:
        threads.shutdown(cancel_futures=True)
    return sizes


def _write_crop(folder: Path, photo: Image, index: int) -> int:
    from PIL import Image as pillow

    rng = random.Random(index)
    side = rng.randint(_SMALLEST_SIDE, min(photo.size))
    left = rng.randint(0, photo.width - side)
    top = rng.randint(0, photo.height - side)
    box = (left, top, left + side, top + side)
    path = folder / crop_name(index)
    crop = photo.resize((CROP_PIXELS, CROP_PIXELS), pillow.Resampling.BILINEAR, box=box)
    crop.save(path, format="JPEG", quality=_QUALITY)
    return path.stat().st_size


def _intact(folder: Path, crops: int, recipe: str) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
        expected = {crop_name(index): size for index, size in enumerate(manifest["file_bytes"])}
        found = (manifest["recipe"], manifest["crops"], len(expected))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False
    return found == (recipe, crops, crops) and all(sizes.get(name) == size for name, size in expected.items())


def _load_photo(name: str) -> Image:
    from PIL import Image as pillow

    with pillow.open(_photo_path(name)) as photo:
        converted: Image = photo.convert("RGB")
        return converted


def _photo_path(name: str) -> Path:
    return Path(__file__).parent / "photos" / f"{name}.jpg"


def _recipe_hash() -> str:
    digest = hashlib.sha256(f"{_RECIPE} {CROP_PIXELS} {_SMALLEST_SIDE} {_QUALITY}".encode())
    for name in PHOTOS:
        digest.update(_photo_path(name).read_bytes())
    return digest.hexdigest()


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("The demo needs Pillow.", 'Run: pip install "torch-autotune[demo]".') from error
