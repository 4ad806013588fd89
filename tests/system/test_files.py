"""The same promises from plain files and from Hadoop's file systems, with plain paths and with file: URIs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparkdl.backends.spark_files import HadoopFiles, files_for
from sparkdl.errors import ConfigError
from sparkdl.train.files import Files, LocalFiles, aside, publish_folder, read_json, write_json


class Place(NamedTuple):
    files: Files
    root: str  # as the files know it
    folder: Path  # the same folder


@pytest.fixture(params=["local", "local-uri", "hadoop", "hadoop-uri"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind, _, uri = request.param.partition("-")
    files: Files = LocalFiles() if kind == "local" else HadoopFiles(request.getfixturevalue("spark"))
    folder = tmp_path / "with space, 100%"
    folder.mkdir()
    return Place(files, f"file:{folder}" if uri else str(folder), folder)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below, hidden ones and leftovers too."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 100_000], ids=["empty", "binary"])
def test_bytes_come_back(place: Place, data: bytes) -> None:
    files, root, folder = place
    files.write_bytes(f"{root}/a/b/data", data)
    assert files.read_bytes(f"{root}/a/b/data") == data
    assert tree(folder) == {"a/b/data": data}


def test_writing_replaces(place: Place) -> None:
    files, root, folder = place
    for data in (b"long text", b"short"):
        files.write_bytes(f"{root}/x", data)
    assert tree(folder) == {"x": b"short"}


def test_listing_and_existence(place: Place) -> None:
    files, root, _ = place
    files.mkdirs(f"{root}/b/c")
    files.mkdirs(f"{root}/b/c")
    files.write_bytes(f"{root}/a", b"1")
    files.write_bytes(f"{root}/.hidden", b"1")
    assert files.listdir(root) == [".hidden", "a", "b"]
    assert files.listdir(f"{root}/b") == ["c"]
    assert [files.exists(f"{root}/{name}") for name in ("a", "b", "b/c", "d")] == [True, True, True, False]


def test_delete(place: Place) -> None:
    files, root, folder = place
    files.write_bytes(f"{root}/b/c/d", b"1")
    files.write_bytes(f"{root}/a", b"1")
    for name in ("a", "b", "never"):
        files.delete(f"{root}/{name}")
    assert list(folder.iterdir()) == []


def test_rename_moves_files_and_folders_but_never_onto_something(place: Place) -> None:
    files, root, folder = place
    files.write_bytes(f"{root}/a/x", b"1")
    files.write_bytes(f"{root}/y", b"2")
    files.rename(f"{root}/a", f"{root}/b")
    files.rename(f"{root}/y", f"{root}/z")
    assert tree(folder) == {"b/x": b"1", "z": b"2"}
    files.mkdirs(f"{root}/c")
    for source, target in (("b", "c"), ("z", "b"), ("b", "z")):
        with pytest.raises(FileExistsError, match=target):
            files.rename(f"{root}/{source}", f"{root}/{target}")
    assert tree(folder) == {"b/x": b"1", "z": b"2"}


def test_what_is_absent(place: Place) -> None:
    files, root, _ = place
    for act in (
        lambda: files.read_bytes(f"{root}/no"),
        lambda: files.listdir(f"{root}/no"),
        lambda: files.rename(f"{root}/no", f"{root}/other"),
    ):
        with pytest.raises(FileNotFoundError, match="no"):
            act()


def test_a_failed_write_leaves_nothing(place: Place) -> None:
    files, root, folder = place
    files.write_bytes(f"{root}/file", b"1")
    with pytest.raises(OSError, match="file"):
        files.write_bytes(f"{root}/file/below", b"2")
    files.mkdirs(f"{root}/folder")
    files.write_bytes(f"{root}/folder/x", b"1")
    with pytest.raises(OSError, match="folder"):
        files.write_bytes(f"{root}/folder", b"2")
    assert tree(folder) == {"file": b"1", "folder/x": b"1"}


def test_json(place: Place) -> None:
    files, root, _ = place
    write_json(files, f"{root}/x.json", {"a": [1, None, "é"], "b": (float("nan"), -float("inf"), 0.5)})
    assert read_json(files, f"{root}/x.json") == {"a": [1, None, "é"], "b": ["nan", "-inf", 0.5]}


def test_a_folder_appears_whole(place: Place) -> None:
    files, root, folder = place
    publish_folder(files, f"{root}/deep/model", {"a": b"1", "b": b"2"})
    assert tree(folder) == {"deep/model/a": b"1", "deep/model/b": b"2"}
    with pytest.raises(FileExistsError, match="model exists"):
        publish_folder(files, f"{root}/deep/model", {"c": b"3"})
    assert tree(folder) == {"deep/model/a": b"1", "deep/model/b": b"2"}
    publish_folder(files, f"{root}/deep/model", {"c": b"3"}, overwrite=True)
    assert tree(folder) == {"deep/model/c": b"3"}


class Failing:
    """Files of which one operation breaks down at its n-th call."""

    def __init__(self, files: Files, operation: str, at: int) -> None:
        self.files, self.operation, self.left = files, operation, at

    def __getattr__(self, name: str) -> Any:
        if name == self.operation:
            self.left -= 1
            if self.left == 0:
                raise OSError("no space left")
        return getattr(self.files, name)


@pytest.mark.parametrize(("operation", "at"), [("write_bytes", 1), ("write_bytes", 2), ("rename", 1), ("rename", 2)])
@pytest.mark.parametrize("existing", [False, True])
def test_a_folder_that_cannot_be_finished_leaves_all_as_it_was(
    tmp_path: Path, operation: str, at: int, existing: bool
) -> None:
    before: Mapping[str, bytes] = {"model/old": b"0"} if existing else {}
    for name, data in before.items():
        LocalFiles().write_bytes(str(tmp_path / name), data)
    failing: Any = Failing(LocalFiles(), operation, at)
    contents = {"a": b"1", "b": b"2"}
    if (operation, at, existing) == ("rename", 2, False):
        publish_folder(failing, str(tmp_path / "model"), contents)  # takes one rename only
        return
    with pytest.raises(OSError, match="no space left"):
        publish_folder(failing, str(tmp_path / "model"), contents, overwrite=True)
    assert tree(tmp_path) == before


def test_aside_is_a_hidden_neighbour() -> None:
    assert aside("s3a://bucket/models/a/").startswith("s3a://bucket/models/.a.")
    assert aside("a").startswith(".a.")
    assert aside("a") != aside("a")


def test_local_files_refuse_other_schemes() -> None:
    for act in (LocalFiles().read_bytes, LocalFiles().exists, LocalFiles().delete):
        with pytest.raises(ConfigError, match=r"s3a://bucket/x is not on this machine's disk"):
            act("s3a://bucket/x")


def test_a_relative_path_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    LocalFiles().write_bytes("x", b"1")
    LocalFiles().rename("x", "y")
    assert tree(tmp_path) == {"y": b"1"}
    LocalFiles().delete("y")
    assert os.listdir() == []


def test_deleting_a_link_keeps_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalFiles().delete(str(tmp_path / "link"))
    assert [p.name for p in tmp_path.iterdir()] == ["real"]


def test_files_for(spark: Any) -> None:
    assert isinstance(files_for("/a/b"), LocalFiles)
    assert isinstance(files_for("/a/b", spark), LocalFiles)  # the default file system of these tests is the disk
    assert isinstance(files_for("file:/a/b", spark), LocalFiles)
    assert isinstance(files_for("hdfs://host/a", spark), HadoopFiles)


def test_an_unknown_file_system_is_an_os_error(spark: Any) -> None:
    with pytest.raises(OSError, match="nosuch"):
        HadoopFiles(spark).exists("nosuch://host/a")
