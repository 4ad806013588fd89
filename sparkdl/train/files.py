"""Files as training needs them: a few operations on paths, the same on a disk, HDFS or an object store.

`LocalFiles` is the one for disks; `sparkdl.backends.spark_files` reaches all that Hadoop's file systems reach.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from sparkdl.errors import ConfigError

__all__ = ["Files", "LocalFiles", "aside", "jsonable", "publish_folder", "read_json", "write_json"]


class Files(Protocol):
    """Paths are text, parts joined by "/". What is absent raises FileNotFoundError, other failures OSError."""

    def read_bytes(self, path: str) -> bytes:
        """The whole file."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Create or replace the file, its folders too where they are missing; a reader never sees half of it."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""

    def listdir(self, path: str) -> list[str]:
        """Sorted names of the folder's entries."""

    def mkdirs(self, path: str) -> None:
        """Create the folder and those above it; fine if it is there."""

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all it holds; fine if there is none."""

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder to a place in an existing folder. Raises FileExistsError where the target exists."""


class LocalFiles:
    """Plain files; takes paths and file: URIs. Data is on the disk, not only in its cache, when a call returns."""

    def read_bytes(self, path: str) -> bytes:
        with open(_local(path), "rb") as f:
            return f.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        target = _local(path)
        folder = os.path.dirname(target) or "."
        os.makedirs(folder, exist_ok=True)
        temporary = aside(target)
        try:
            with open(temporary, "xb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, target)
        except BaseException:
            with suppress(FileNotFoundError):
                os.remove(temporary)
            raise
        _sync_folder(folder)

    def exists(self, path: str) -> bool:
        return os.path.exists(_local(path))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(_local(path)))

    def mkdirs(self, path: str) -> None:
        os.makedirs(_local(path), exist_ok=True)

    def delete(self, path: str) -> None:
        target = _local(path)
        with suppress(FileNotFoundError):
            if os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.remove(target)

    def rename(self, source: str, target: str) -> None:
        if self.exists(target):
            raise FileExistsError(f"Cannot rename {source}: {target} exists.")
        os.rename(_local(source), _local(target))
        _sync_folder(os.path.dirname(_local(target)) or ".")


def aside(path: str) -> str:
    """A hidden path beside this one that nobody else uses."""
    folder, slash, name = path.rstrip("/").rpartition("/")
    return f"{folder}{slash}.{name}.{secrets.token_hex(4)}"


def publish_folder(files: Files, path: str, contents: Mapping[str, bytes], overwrite: bool = False) -> None:
    """Write a folder of files so that it appears whole: first aside, in the order given, then renamed.

    Where the store cannot rename a folder in one go, as object stores cannot, a reader must check what it finds: put
    the file that tells sizes and checksums last. An existing folder gives way only after the new one is complete.
    Errors: FileExistsError where the path exists and overwrite is off; nothing is left behind then.
    """
    if not overwrite and files.exists(path):
        raise FileExistsError(f"{path} exists. Choose another path, or allow it to be overwritten.")
    draft = aside(path)
    try:
        files.mkdirs(draft)
        for name, data in contents.items():
            files.write_bytes(posixpath.join(draft, name), data)
        _swap(files, draft, path)
    finally:
        files.delete(draft)


def _swap(files: Files, draft: str, path: str) -> None:
    if not files.exists(path):
        files.rename(draft, path)
        return
    old = aside(path)
    files.rename(path, old)
    try:
        files.rename(draft, path)
    except BaseException:
        files.rename(old, path)
        raise
    files.delete(old)


def read_json(files: Files, path: str) -> Any:
    """The value in a JSON file; ValueError where it is not JSON."""
    return json.loads(files.read_bytes(path))


def write_json(files: Files, path: str, value: Any) -> None:
    """Write a value as readable JSON, see `jsonable`."""
    files.write_bytes(path, (json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n").encode())


def jsonable(value: Any) -> Any:
    """The value with NaN and infinities, which JSON lacks, as the strings "nan", "inf" and "-inf"."""
    if isinstance(value, Mapping):
        return {k: jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _local(path: str) -> str:
    """The path without its file: prefix; like Hadoop, nothing is unquoted. Errors: ConfigError for other schemes."""
    if match := re.fullmatch(r"file:(?://[^/]*)?(/.*)", path, re.DOTALL):
        return match[1]
    if match := re.match(r"(\w[\w+.-]*)://", path):
        raise ConfigError(f"{path} is not on this machine's disk: {match[1]}: paths are read and written by Spark.")
    return path


def _sync_folder(folder: str) -> None:
    """Make a rename in this folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
