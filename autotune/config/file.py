"""Config files: written whole or not at all, read with every fault named in one paragraph."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from autotune.config.validation import config_schema, first_fault
from autotune.errors import ConfigError

__all__ = [
    "SCHEMA_VERSION",
    "NewerConfigError",
    "check_document",
    "migrated",
    "parse_json",
    "read_content",
    "read_document",
    "replace_file",
    "write_document",
]

# History: 1, the first. A release reads all versions up to its own.
SCHEMA_VERSION = 1

# From each earlier version to the next: what takes a document there. Empty as long as there is one version.
_MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

# A real config has some 10 KB; anything this large is another kind of file.
_LARGEST_BYTES = 16 * 2**20

_REMEDY = "Write a new one with TunedConfig.save() or `torch-autotune tune … --out`."


class NewerConfigError(ConfigError):
    """Written by a newer release: not to be read, and not to be replaced."""


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
        replace_file(Path(os.path.realpath(path)), content)
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
    return check_document(parse_json(read_content(path), where), where)


def read_content(path: str | os.PathLike[str], *, largest_bytes: int | None = None) -> bytes:
    """All bytes of a file.

    Args:
        path: The file.
        largest_bytes: Beyond this it is another kind of file; None: the bound of a single config.

    Raises:
        ConfigError: No such file, not readable, or too large.
    """
    where = os.fspath(path)
    largest_bytes = _LARGEST_BYTES if largest_bytes is None else largest_bytes
    try:
        with open(path, "rb") as file:
            content = file.read(largest_bytes + 1)
    except OSError as error:
        raise ConfigError(
            f"The config {where!r} cannot be read: {error.strerror or error}.", "Check the path."
        ) from error
    if len(content) > largest_bytes:
        raise ConfigError(f"{where!r} is no config: it is larger than {largest_bytes >> 20} MiB.", "Check the path.")
    return content


def parse_json(content: bytes, where: str) -> Any:
    """The JSON value of a file's content; numbers are finite.

    Args:
        content: UTF-8, perhaps with a byte order mark.
        where: Names the source in messages.

    Raises:
        ConfigError: Damaged JSON, NaN, or nested too deeply.
    """
    try:
        return json.loads(content.decode("utf-8-sig"), parse_constant=_refuse, parse_float=_finite_float)
    except RecursionError as error:
        raise ConfigError(f"The config {where!r} is damaged: it is nested too deeply.", _REMEDY) from error
    except ValueError as error:
        raise ConfigError(f"The config {where!r} is damaged: {error}.", _REMEDY) from error


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
        raise NewerConfigError(
            f"The config {where!r} has schema version {version}; this release reads up to {SCHEMA_VERSION}.",
            "Update with `pip install -U torch-autotune`, or tune again with this release.",
        )
    document = migrated(document)
    fault = first_fault(document, config_schema())
    if fault is not None:
        raise ConfigError(f"The config {where!r} does not hold to its schema: {fault}.", _REMEDY)
    return document


def migrated(
    document: dict[str, Any],
    steps: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = _MIGRATIONS,
) -> dict[str, Any]:
    """A document of an earlier version as one of this version; any other as it is.

    Args:
        document: A JSON object; it is not changed.
        steps: From each earlier version to the next.
    """
    version = document.get("schema_version")
    while type(version) is int and version in steps:
        document = {**steps[version](dict(document)), "schema_version": version + 1}
        version += 1
    return document


def replace_file(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replaces a file in one go: ``path`` holds the old content or the new, also after a power cut.

    Args:
        path: In an existing folder.
        content: All of it.
        mode: Permissions of a new file; None: as the process makes files. An older file's are kept.

    Raises:
        OSError: It cannot be written; what was there before is untouched.
    """
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            if mode is not None:
                part.chmod(0o600)  # nobody else reads it before it is complete
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            part.chmod(path.stat().st_mode)
        elif mode is not None:
            part.chmod(mode)
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
