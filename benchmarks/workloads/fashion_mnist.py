"""Fashion-MNIST as two tensors, from the first of these that is there:

1. the file or folder that AUTOTUNE_FASHION_MNIST names: Debian's package, or a folder with its four ``idx*.gz`` files;
2. /usr/share/datasets/fashion-mnist, where Debian's package ``dataset-fashion-mnist`` installs them;
3. the same package from deb.debian.org (31 MB).
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from .cache import NotAvailable, download, prepared, say

__all__ = ["fashion_mnist"]

Part = Literal["train", "t10k"]

_INSTALLED = Path("/usr/share/datasets/fashion-mnist")
_URL = "http://deb.debian.org/debian/pool/main/d/dataset-fashion-mnist/dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb"
_SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
_PARTS: tuple[Part, ...] = ("train", "t10k")
_IMAGES = {"train": 60_000, "t10k": 10_000}
_SYNTHETIC = "SYNTHETIC STAND-IN for Fashion-MNIST: speed is comparable, losses are not"


def fashion_mnist(part: Part, size: int | None = None) -> tuple[Tensor, Tensor]:
    """Images (rows, 32, 32) as uint8, with a black frame, and labels (rows,) as int64.

    Args:
        part: 60,000 images to train on, or 10,000 to test with.
        size: The first so many only.
    """
    try:
        path = prepared("fashion-mnist-1.pt", _unpack)
    except NotAvailable as why:
        say(f"{_SYNTHETIC} ({why})")
        rows = size or _IMAGES[part]
        path = prepared(f"fashion-mnist-synthetic-{part}-{rows}.pt", partial(_synthesise, part=part, rows=rows))
    images, labels = torch.load(path, weights_only=True)[part]
    return images[:size].clone(), labels[:size].clone()


def _unpack(path: Path) -> None:
    files = _files()
    parts = {part: (_images(files[f"{part}-images"]), _idx(files[f"{part}-labels"], 8).long()) for part in _PARTS}
    torch.save(parts, path)


def _images(packed: bytes) -> Tensor:
    return functional.pad(_idx(packed, 16).reshape(-1, 28, 28), (2, 2, 2, 2))


def _idx(packed: bytes, header_bytes: int) -> Tensor:
    return torch.frombuffer(bytearray(gzip.decompress(packed)[header_bytes:]), dtype=torch.uint8)


def _files() -> dict[str, bytes]:
    """The four packed files by the beginning of their names."""
    named = os.environ.get("AUTOTUNE_FASHION_MNIST")
    where = Path(named) if named else _INSTALLED
    if where.is_dir():
        return {path.name.partition("-idx")[0]: path.read_bytes() for path in where.glob("*-ubyte.gz")}
    if named:
        return _of_package(where.read_bytes())
    return _of_package(download(_URL, _SHA256))


def _of_package(package: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(_member(package, "data.tar"))) as archive:
        found = {}
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith("-ubyte.gz") else None
            if content is not None:
                found[Path(member.name).name.partition("-idx")[0]] = content.read()
        return found


def _member(package: bytes, name: str) -> bytes:
    """One member of a Debian package, which is an ``ar`` archive: 60-byte headers, members padded to even length."""
    start = len(b"!<arch>\n")
    while start < len(package):
        header = package[start : start + 60]
        size = int(header[48:58])
        if header.decode("ascii").startswith(name):
            return package[start + 60 : start + 60 + size]
        start += 60 + size + size % 2
    raise NotAvailable(f"the package has no member {name}")


def _synthesise(path: Path, part: Part, rows: int) -> None:
    """Ten noisy patterns: learnable, of the same shape and size."""
    patterns = torch.rand(10, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + _PARTS.index(part))
    labels = torch.randint(10, (rows,), generator=generator)
    noise = torch.rand(rows, 32, 32, generator=generator)
    torch.save({part: ((255 * (0.25 * patterns[labels] + 0.75 * noise)).to(torch.uint8), labels)}, path)
