"""Files through Spark's own Hadoop file systems: a disk, HDFS, S3A, ABFS, GCS and whatever else the site has set up."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sparkdl.train.files import Files, LocalFiles, aside

__all__ = ["HadoopFiles", "files_for"]


def files_for(path: str, spark: SparkSession | None = None) -> Files:
    """What reads and writes this path: Hadoop where a session is given and the path is not on the driver's disk."""
    if spark is None:
        return LocalFiles()
    hadoop = HadoopFiles(spark)
    return LocalFiles() if hadoop.scheme(path) == "file" else hadoop


class HadoopFiles:
    """`Files` on any URI that Spark can reach; a path without a scheme is on the default file system.

    Contents pass through a local temporary file, which Hadoop copies, and not through the Python gateway's text
    protocol.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsparkSession.sessionState().newHadoopConf()

    def scheme(self, path: str) -> str:
        """The scheme of the file system that holds the path, such as "hdfs"."""
        scheme = self._path(path).toUri().getScheme()
        return str(scheme or self._jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(self._conf).getScheme())

    def read_bytes(self, path: str) -> bytes:
        with tempfile.TemporaryDirectory() as scratch, _python_errors(path):
            copy = os.path.join(scratch, "data")
            self._system(path).copyToLocalFile(False, self._path(path), self._disk(copy), True)
            with open(copy, "rb") as f:
                return f.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        draft = aside(path)
        with tempfile.TemporaryDirectory() as scratch, _python_errors(path):
            original = os.path.join(scratch, "data")
            with open(original, "wb") as f:
                f.write(data)
            system = self._system(path)
            if system.exists(self._path(path)) and system.getFileStatus(self._path(path)).isDirectory():
                raise IsADirectoryError(f"Cannot write the file {path}: it is a folder.")
            try:
                system.copyFromLocalFile(False, True, self._disk(original), self._path(draft))
                # A rename onto a file replaces it on some file systems and fails on others. Where it fails, the path
                # is empty for a moment, but never holds half of the data.
                if not system.rename(self._path(draft), self._path(path)):
                    system.delete(self._path(path), False)
                    self._rename(system, draft, path)
            finally:
                system.delete(self._path(draft), False)

    def exists(self, path: str) -> bool:
        with _python_errors(path):
            return bool(self._system(path).exists(self._path(path)))

    def listdir(self, path: str) -> list[str]:
        with _python_errors(path):
            return sorted(entry.getPath().getName() for entry in self._system(path).listStatus(self._path(path)))

    def mkdirs(self, path: str) -> None:
        with _python_errors(path):
            if not self._system(path).mkdirs(self._path(path)):
                raise OSError(f"cannot create the folder {path}")

    def delete(self, path: str) -> None:
        with _python_errors(path):
            self._system(path).delete(self._path(path), True)

    def rename(self, source: str, target: str) -> None:
        if self.exists(target):  # Hadoop would move the source into a folder that exists
            raise FileExistsError(f"Cannot rename {source}: {target} exists.")
        with _python_errors(source):
            self._rename(self._system(source), source, target)

    def _rename(self, system: Any, source: str, target: str) -> None:
        if not system.rename(self._path(source), self._path(target)):
            kind = OSError if system.exists(self._path(source)) else FileNotFoundError
            raise kind(f"cannot rename {source} to {target}")

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _disk(self, path: str) -> Any:
        return self._path(f"file://{path}")

    def _system(self, path: str) -> Any:
        """The file system of a path; of the local one, the plain form, which leaves no checksum files about."""
        system = self._path(path).getFileSystem(self._conf)
        return system.getRawFileSystem() if self.scheme(path) == "file" else system


@contextmanager
def _python_errors(path: str) -> Iterator[None]:
    """Java's exceptions as the ones that Python's own files would raise."""
    try:
        yield
    except Py4JJavaError as e:
        java = e.java_exception
        missing = java.getClass().getName().endswith(("FileNotFoundException", "NoSuchFileException"))
        raise (FileNotFoundError if missing else OSError)(f"{path}: {java.toString()}") from e
