"""Config files: written whole or not at all, read with every fault named in one paragraph."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from autotune.config.validation import config_schema, first_fault
from autotune.errors import ConfigError

__all__ = ["SCHEMA_VERSION", "check_document", "read_document", "write_document"]

# History: 1, the first. A release reads all versions up to its own.
SCHEMA_VERSION = 1

# A real config has some 10 KB; anything this large is another kind of file.
_LARGEST_BYTES = 16 * 2**20

_REMEDY = "Write a new one with TunedConfig.save() or `torch-autotune tune … --out`."


def write_document(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes JSON so that ``path`` holds the old content or the new, never a part.

    Args:
        document: JSON values only, numbers finite.
        path: File to write; its folder must exist. A symbolic link stays one.

    Raises:
        ConfigError: A value is not JSON, or the file cannot be written; what was there before is untouched.
    """
    try:
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"The config cannot be written to {os.fspath(path)!r}: it holds a value that is not JSON ({error}).",
            "Options of the optimizer must be plain numbers, texts or bools.",
        ) from error
    # A lone surrogate (from an undecodable file name) becomes its JSON escape and so survives the round trip.
    content = f"{text}\n".encode("utf-8", "backslashreplace")
    try:
        _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise ConfigError(
            f"The config cannot be written to {os.fspath(path)!r}: {error.strerror or error}.",
            "Choose a file in an existing folder that you may write to; nothing was changed.",
        ) from error


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads and checks a config.

    Args:
        path: A file written by ``write_document``.

    Returns:
        A document that holds to the schema.

    Raises:
        ConfigError: No such file, damaged JSON, NaN, too deep or too large, written by a newer release, or a value
            that cannot be; the message names the path.
    """
    where = os.fspath(path)
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"The config {where!r} cannot be read: {error.strerror or error}.", "Check the path."
        ) from error
    if len(content) > _LARGEST_BYTES:
        raise ConfigError(f"{where!r} is no config: it is larger than {_LARGEST_BYTES >> 20} MiB.", "Check the path.")
    try:
        document = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse, parse_float=_finite_float)
    except RecursionError as error:
        raise ConfigError(f"The config {where!r} is damaged: it is nested too deeply.", _REMEDY) from error
    except ValueError as error:
        raise ConfigError(f"The config {where!r} is damaged: {error}.", _REMEDY) from error
    return check_document(document, where)


def check_document(document: object, where: str) -> dict[str, Any]:
    """The document, if it holds to the schema of this release.

    Args:
        document: What ``json.loads`` gave.
        where: Names the source in messages.

    Raises:
        ConfigError: It does not.
    """
    if not isinstance(document, dict):
        raise ConfigError(f"{where!r} is no config: its JSON is not an object.", "Check the path.")
    version = document.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise ConfigError(
            f"The config {where!r} has schema version {version}; this release reads up to {SCHEMA_VERSION}.",
            "Update with `pip install -U torch-autotune`, or tune again with this release.",
        )
    fault = first_fault(document, config_schema())
    if fault is not None:
        raise ConfigError(f"The config {where!r} does not hold to its schema: {fault}.", _REMEDY)
    return document


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            part.chmod(path.stat().st_mode)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number JSON knows")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value
