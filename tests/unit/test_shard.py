"""A shard's file: what goes in comes out, by hash, exactly, in bounded memory; and a wrong file is noticed."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data import DataSpec, Handle, Piece, Shard, ShardMissing, resolve
from sparkdl.data import shard as shard_module
from sparkdl.data.pack import Block, pack_batches
from sparkdl.data.stats import Stats
from sparkdl.data.writer import PartWriter, ShardWriter

ROWS = 1000


def blocks(rows=ROWS, label="int", weight=True, seed=0, shape=(2, 3), block_rows=90):
    """Packed rows in which everything follows from x[0, 0], a number of the row."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1000, (rows, int(np.prod(shape)))).astype(np.int16)
    x[:, 0] = np.arange(rows)
    labels = {
        "int": pa.array(np.arange(rows) + 10**15),
        "float": pa.array(np.arange(rows) / 4),
        "string": pa.array([f"row {i}" * (1 + i % 3) for i in range(rows)]),
        "vector": pa.array([[i + 0.5, -i] for i in range(rows)], pa.list_(pa.float64())),
    }
    columns = {"x": pa.array(x.tolist(), pa.list_(pa.int16())), "y": labels[label], "w": np.arange(rows) / 8}
    table = pa.table(columns)
    spec = DataSpec(
        ("x",), "y", "w" if weight else None, shape=shape, target="values" if label == "vector" else "classes"
    )
    packed = pack_batches(table.to_batches(block_rows), resolve(spec, table.schema), 1)
    rows_only = [b.rows for b in packed if b.rows is not None]
    parts = [r.slice(at, block_rows) for r in rows_only for at in range(0, r.num_rows, block_rows)]
    return x.reshape(rows, *shape), parts


def write(path, parts, batch_bytes=5000):
    writer = ShardWriter(str(path), batch_bytes)
    for rows in parts:
        writer.write(rows)
    return writer.close()


@pytest.fixture(name="made")
def _made(tmp_path):
    x, parts = blocks()
    return x, write(tmp_path / "a.arrow", parts)


def expected_labels(label, number):
    return {
        "int": number + 10**15,
        "float": number / 4,
        "string": np.array([f"row {i}" * (1 + i % 3) for i in number], object),
        "vector": np.stack([number + 0.5, -number], 1),
    }[label]


@pytest.mark.parametrize("label", ["int", "float", "string", "vector"])
@pytest.mark.parametrize("batch_bytes", [1, 5000, 1 << 30])
def test_rows_come_out_as_they_went_in(tmp_path, label, batch_bytes):
    x, parts = blocks(label=label)
    piece = write(tmp_path / "a.arrow", parts, batch_bytes)
    assert piece.rows == ROWS
    assert piece.bytes == os.path.getsize(piece.path)
    with Shard.open(piece) as shard:
        assert shard.rows == ROWS
        h = shard.hashes
        assert (np.diff(h.astype(object)) > 0).all()
        index = np.random.default_rng(1).permutation(ROWS)[:333]
        for asked in (index, np.arange(ROWS), index[:1], np.array([5, 5, 7, 5]), index[:0]):
            rows = shard.gather(asked)
            number = rows.x[:, 0, 0].astype(np.int64)
            np.testing.assert_array_equal(rows.x, x[number])
            np.testing.assert_array_equal(rows.y, expected_labels(label, number))
            np.testing.assert_array_equal(rows.w, number / 8)
        everything = shard.gather(np.arange(ROWS)).x[:, 0, 0]
        assert sorted(everything.tolist()) == list(range(ROWS))


def test_the_order_is_that_of_the_hashes_whatever_the_order_of_arrival(tmp_path):
    _, parts = blocks()
    hashes = np.concatenate([p.column("h").to_numpy() for p in parts])
    number = np.concatenate([np.frombuffer(b"".join(p.column("x").to_pylist()), np.int16)[::6] for p in parts])
    expected = number[np.argsort(hashes)].tolist()
    for name, arrived in (("a", parts), ("b", parts[::-1]), ("c", parts[5:] + parts[:5])):
        with Shard.open(write(tmp_path / name, arrived)) as shard:
            assert shard.hashes.tolist() == sorted(hashes.tolist())
            assert shard.gather(np.arange(ROWS)).x[:, 0, 0].tolist() == expected


@pytest.mark.parametrize("rows", [1, 7, 1000, 5000])
def test_chunks_go_through_all_rows_once_in_order(made, rows):
    _, piece = made
    with Shard.open(piece) as shard:
        chunks = list(shard.chunks(rows))
        whole = shard.gather(np.arange(ROWS))
    assert {len(c.x) for c in chunks[:-1]} <= {rows}
    for name in ("x", "y", "w"):
        np.testing.assert_array_equal(np.concatenate([getattr(c, name) for c in chunks]), getattr(whole, name))


def test_rows_without_weights(tmp_path):
    _, parts = blocks(weight=False)
    with Shard.open(write(tmp_path / "a.arrow", parts)) as shard:
        assert shard.gather(np.arange(3)).w is None


def test_gathered_rows_outlive_the_shard(made):
    x, piece = made
    shard = Shard.open(piece)
    rows = shard.gather(np.arange(10))
    shard.close()
    shard.close()
    gc.collect()
    np.testing.assert_array_equal(rows.x, x[rows.x[:, 0, 0]])


def test_closing_releases_the_map(made):
    _, piece = made
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    shard = Shard.open(piece)
    shard.gather(np.arange(10))
    assert piece.path in maps.read_text()
    shard.close()
    assert piece.path not in maps.read_text()
    other = Shard.open(piece)
    assert piece.path in maps.read_text()
    del other  # as when a cache drops it
    assert piece.path not in maps.read_text()


def test_no_rows_no_file(tmp_path):
    piece = ShardWriter(str(tmp_path / "none.arrow")).close()
    assert piece == Piece("", 0, 0, 0)
    assert list(tmp_path.iterdir()) == []
    with Shard.open(piece) as shard:
        assert shard.rows == 0
        assert shard.hashes.tolist() == []
        assert list(shard.chunks(10)) == []
        assert len(shard.gather(np.arange(0)).x) == 0


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def swap_hash(path):
    data = bytearray(path.read_bytes())
    first = write_hashes[0].to_bytes(8, "little")
    at = data.index(first)
    data[at : at + 8] = ((write_hashes[0] + 1) % 2**64).to_bytes(8, "little")
    path.write_bytes(data)


write_hashes = [0]


@pytest.mark.parametrize("damage", [Path.unlink, cut, lambda p: p.write_bytes(b""), swap_hash])
def test_a_missing_or_wrong_file_is_noticed(tmp_path, damage):
    _, parts = blocks()
    write_hashes[0] = int(parts[0].column("h")[0].as_py())
    piece = write(tmp_path / "a.arrow", parts)
    Shard.open(piece).close()
    damage(Path(piece.path))
    with pytest.raises(ShardMissing, match=r"a\.arrow"):
        Shard.open(piece)


def test_a_file_of_other_rows_is_noticed(tmp_path):
    piece, other = (write(tmp_path / f"{s}.arrow", blocks(seed=s)[1]) for s in (0, 1))
    with pytest.raises(ShardMissing, match=rf"1\.arrow holds 1000 rows with checksum {other.checksum:x}; expected"):
        Shard.open(piece._replace(path=other.path))
    with pytest.raises(ShardMissing, match="expected 999"):
        Shard.open(piece._replace(rows=999))


def resident(path):
    """Bytes of a mapped file that are in this process's memory."""
    size, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        here = line.endswith(path) if "-" in line.split(":")[0] else here
        size += int(line.split()[1]) << 10 if here and line.startswith("Rss:") else 0
    return size


def test_resident_memory_is_bounded(tmp_path, monkeypatch):
    if not Path("/proc/self/smaps").exists():
        pytest.skip("needs /proc")
    rows, width = 8192, 4096
    x = np.random.default_rng(0).integers(0, 256, (rows, width), np.uint8)
    data = pa.RecordBatch.from_arrays([pa.array([r.tobytes() for r in x]), pa.array(np.arange(rows))], ["x", "y"])
    packed = pack_batches([data], resolve(DataSpec(("x",), "y", shape=(width,)), data.schema), 1)
    piece = write(tmp_path / "big.arrow", [b.rows for b in packed if b.rows is not None], 1 << 20)
    rng = np.random.default_rng(1)
    kept = {}
    for limit in (4 << 20, 1 << 40):
        monkeypatch.setattr(shard_module, "RESIDENT_BYTES", limit)
        with Shard.open(piece) as shard:
            largest = 0
            for _ in range(60):
                rows_read = shard.gather(rng.integers(0, rows, 64))
                np.testing.assert_array_equal(rows_read.x, x[rows_read.y])
                largest = max(largest, resident(piece.path))
            kept[limit] = largest
    assert kept[1 << 40] > 24 << 20  # most of the 32 MiB, when nothing is given back
    assert kept[4 << 20] < 4 << 20  # nothing but the ends of a huge page


def test_a_part_writer_makes_a_handle(tmp_path):
    _, parts = blocks()
    note = Stats()
    note.rows = 7
    with PartWriter(3, str(tmp_path)) as writer:
        for i, rows in enumerate(parts):
            writer.add(Block(3, i % 4 == 0, rows))
        writer.add(Block(3, False, None, note.to_json()))
        writer.add(Block(3, False, None, note.to_json()))
        handle = writer.close()
    assert isinstance(handle, Handle)
    assert handle.part == 3
    assert handle.train.rows == sum(p.num_rows for i, p in enumerate(parts) if i % 4)
    assert handle.train.rows + handle.valid.rows == ROWS
    assert Stats.from_json(handle.stats).rows == 14
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(Path(p.path).name for p in (handle.train, handle.valid))
    total = sum(int(p.column("h").to_numpy().sum(dtype=np.uint64)) for p in parts) % 2**64
    assert (handle.train.checksum + handle.valid.checksum) % 2**64 == total


def test_a_task_that_fails_leaves_nothing_behind(tmp_path):
    _, parts = blocks()
    with pytest.raises(RuntimeError, match="lost"), PartWriter(0, str(tmp_path), 1) as writer:
        for rows in parts:
            writer.add(Block(0, False, rows))
        raise RuntimeError("lost")
    assert list(tmp_path.iterdir()) == []


def test_a_second_attempt_never_touches_the_first_one_s_file(tmp_path):
    _, parts = blocks()
    handles = []
    for _ in range(2):
        with PartWriter(0, str(tmp_path)) as writer:
            for rows in parts:
                writer.add(Block(0, False, rows))
            handles.append(writer.close())
    assert handles[0].train.path != handles[1].train.path
    assert handles[0].train[1:] == handles[1].train[1:]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_files_are_private(tmp_path):
    folder = tmp_path / "mine"
    PartWriter(0, str(folder))
    assert folder.stat().st_mode & 0o077 == 0
