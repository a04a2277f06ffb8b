"""Where prepared data is kept: made once, whole or not at all, also where two processes start at the same time.

AUTOTUNE_BENCHMARK_CACHE names another folder; with AUTOTUNE_BENCHMARK_OFFLINE=1 nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

__all__ = ["NotAvailable", "cache_dir", "download", "offline", "prepared", "say"]

_DOWNLOAD_TIMEOUT_S = 120.0
_LOCK_TIMEOUT_S = 900.0


class NotAvailable(Exception):
    """Data that cannot be had here; the message says what was tried."""


def cache_dir() -> Path:
    """The folder of all prepared data."""
    named = os.environ.get("AUTOTUNE_BENCHMARK_CACHE")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("torch-autotune", appauthor=False) / "benchmarks"


def offline() -> bool:
    """Whether downloading is forbidden."""
    return os.environ.get("AUTOTUNE_BENCHMARK_OFFLINE", "0") not in ("", "0")


def say(line: str) -> None:
    """Prints a line on stderr: stdout holds results."""
    print(line, file=sys.stderr, flush=True)


def prepared(name: str, make: Callable[[Path], object]) -> Path:
    """The file or folder ``name`` of the cache, made first where it is missing.

    Args:
        name: Its name; another recipe needs another name.
        make: Makes it at the path it is given, which does not exist yet; whatever it raises leaves nothing behind.
    """
    from filelock import FileLock

    target = cache_dir() / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock", timeout=_LOCK_TIMEOUT_S):
        if not target.exists():
            say(f"preparing {target}")
            folder = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=target.parent))
            try:
                make(folder / name)
                (folder / name).rename(target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return target


def download(url: str, sha256: str) -> bytes:
    """What is at ``url``, checked.

    Raises:
        NotAvailable: Offline, not reachable, or not what was expected.
    """
    if offline():
        raise NotAvailable("downloading is switched off by AUTOTUNE_BENCHMARK_OFFLINE")
    say(f"downloading {url}")
    try:
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT_S) as answer:
            content: bytes = answer.read()
    except OSError as error:
        raise NotAvailable(f"{url} cannot be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise NotAvailable(f"{url} holds something else than expected")
    return content
