"""Arrow data into shards and back without Spark: the same rows in the same order for any number of shards."""

from __future__ import annotations

import json
import logging
import math
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparkdl.data import DataInfo, DataSpec, LabelMap, Plan, ShardReader, read_path, spool_local, synthetic
from sparkdl.errors import ConfigError, DataError

SPEC = DataSpec(("x",), "y", shape=(3,))


def table(rows=600, seed=0, classes=3):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3)).astype(np.float32)
    return pa.table(
        {"x": pa.array(x.tolist(), pa.list_(pa.float32())), "y": rng.integers(0, classes, rows), "id": range(rows)}
    )


def rows_of(shards, split="train"):
    """(x, y, w) of all shards, in the order of their numbers."""
    parts = []
    for handle in shards.handles:
        reader = ShardReader(handle, shards.info)
        parts += list(reader.train_chunks(50) if split == "train" else reader.valid_chunks(50))
        reader.close()
    x, y, w = zip(*parts, strict=True)
    return np.concatenate(x), np.concatenate(y), None if w[0] is None else np.concatenate(w)


def spool(data, spec=SPEC, parts=2, folder=None, **options):
    return spool_local(data.to_batches(100) if isinstance(data, pa.Table) else data, spec, parts, folder, **options)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_ids_and_batches_do_not_depend_on_the_number_of_shards(tmp_path, parts):
    data, spec = table(), replace(SPEC, valid_fraction=0.2)
    shuffled = data.take(np.random.default_rng(1).permutation(len(data)))
    with spool(data, spec, 1, tmp_path) as one, spool(shuffled.to_batches(37), spec, parts, tmp_path) as many:
        for split in ("train", "valid"):
            for a, b in zip(rows_of(one, split)[:2], rows_of(many, split)[:2], strict=True):
                np.testing.assert_array_equal(a, b)
        assert one.info.train_rows + one.info.valid_rows == 600
        assert abs(one.info.valid_rows / 600 - 0.2) < 0.1
        x = rows_of(one)[0]
        plan = Plan(many.info.train_rows, 64, 5)
        whole = plan.batches(0, plan.rows, 2)
        readers = [ShardReader(h, many.info) for h in many.handles]
        for step in range(plan.steps):
            seen = []
            for part, reader in enumerate(readers):
                start = many.info.train_offset(part)
                seen.append(reader.train_batch(plan.batches(start, start + reader.train_rows, 2)[step])[0])
            got = np.concatenate(seen)
            np.testing.assert_array_equal(np.sort(got, axis=0), np.sort(x[whole[step]], axis=0))


def test_three_rows_in_five_shards(tmp_path):
    data = table(3, classes=2).set_column(1, "y", pa.array([0, 1, 0]))
    with spool(data, SPEC, 5, tmp_path) as shards:
        assert len(shards.handles) == 5
        assert sum(shards.info.train_counts) == 3
        assert 0 in shards.info.train_counts
        x, y, _ = rows_of(shards)
        assert x.shape == (3, 3)
        assert sorted(y.tolist()) == [0, 0, 1]
        for handle in shards.handles:
            with_none = ShardReader(handle, shards.info)
            x, y, w = with_none.train_batch(np.arange(0))
            assert (x.shape, x.dtype, y.shape, y.dtype, w) == ((0, 3), np.float32, (0,), np.int64, None)
            with_none.close()


def test_values_and_labels_are_those_of_the_table(tmp_path):
    data = table()
    by_x = {tuple(x): y for x, y in zip(data["x"].to_pylist(), data["y"].to_pylist(), strict=True)}
    names = pa.array(["abc"[i] for i in data["y"].to_pylist()])
    with spool(data.set_column(1, "y", names), replace(SPEC, weight="id"), 2, tmp_path) as shards:
        x, y, w = rows_of(shards)
        assert x.dtype == np.float32
        assert shards.info.labels == LabelMap(("a", "b", "c"))
        assert [by_x[tuple(row)] for row in x.tolist()] == y.tolist()
        assert sorted(w.tolist()) == list(range(600))
    values = replace(SPEC, target="values", label="id")
    with spool(data, values, 2, tmp_path) as shards:
        assert shards.info.labels is None
        _, y, _ = rows_of(shards)
        assert y.dtype == np.float32
        assert sorted(y.tolist()) == list(range(600))
    pairs = data.append_column("pair", pa.array([[i, -i] for i in range(600)], pa.list_(pa.int64())))
    with spool(pairs, replace(values, label="pair", dtype="float64"), 2, tmp_path) as shards:
        _, y, _ = rows_of(shards)
        assert shards.info.target_shape == (2,) == y.shape[1:]
        assert y.dtype == np.float64
        assert (y[:, 0] == -y[:, 1]).all()


def test_a_fraction_of_keys_is_held_out_whatever_the_shards(tmp_path):
    ids = pa.table({"x": pa.array(np.zeros((10_000, 1)).tolist()), "y": np.arange(10_000) % 2, "id": np.arange(10_000)})
    spec = DataSpec(("x",), "y", "id", ("id",), valid_fraction=0.1)
    kept = []
    for parts, data in ((8, ids), (1, ids), (3, ids.take(np.random.default_rng(0).permutation(10_000)))):
        with spool(data, spec, parts, tmp_path) as shards:
            train, valid = (set(rows_of(shards, split)[2].tolist()) for split in ("train", "valid"))
        assert not train & valid
        assert train | valid == set(range(10_000))
        kept.append(valid)
    assert kept[0] == kept[1] == kept[2]
    assert 850 < len(kept[0]) < 1150


def test_a_column_or_a_second_table_says_what_is_held_out(tmp_path):
    data = table(200)
    flags = pa.array([i % 4 == 0 for i in range(200)])
    with spool(data.append_column("v", flags), replace(SPEC, valid_column="v", weight="id"), 2, tmp_path) as shards:
        assert sorted(rows_of(shards, "valid")[2].tolist()) == list(range(0, 200, 4))
    other = table(50, seed=9).set_column(0, "x", table(50, seed=9)["x"].cast(pa.list_(pa.float64())))
    with spool(data, SPEC, 3, tmp_path, valid=other.to_batches()) as shards:
        assert (shards.info.train_rows, shards.info.valid_rows) == (200, 50)
        assert sorted(rows_of(shards, "valid")[0].tolist()) == sorted(other["x"].to_pylist())


def test_scaling_and_standardising(tmp_path):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(1e6, 2.0, (300, 1)), rng.normal(0, 5.0, (300, 1)), np.full((300, 1), 7.0)], axis=1)
    data = pa.table({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": np.arange(300) % 2, "v": np.arange(300) % 3 == 0})
    spec = DataSpec(("a", "b", "c"), "y", scale=-0.5, standardize=True, valid_column="v")
    stds = []
    for parts in (1, 4):
        with spool(data.take(rng.permutation(300)), spec, parts, tmp_path) as shards:
            got = rows_of(shards)[0]
            stds.append(shards.info.preprocess.std.tolist())
            held_out = rows_of(shards, "valid")[0]
            again = DataInfo.from_json(json.loads(json.dumps(shards.info.to_json())))
    train = -0.5 * x[np.arange(300) % 3 != 0]
    expected = (train - train.mean(0)) / [*train[:, :2].std(0), 1.0]
    np.testing.assert_allclose(np.sort(got, axis=0), np.sort(expected, axis=0), atol=1e-6)
    assert got.dtype == np.float32
    assert (got[:, 2] == 0).all()
    assert stds[0] == stds[1]  # the same bits
    # Validation rows are seen with the training rows' mean and deviation.
    expected = (-0.5 * x[::3] - train.mean(0)) / [*train[:, :2].std(0), 1.0]
    np.testing.assert_allclose(np.sort(held_out, axis=0), np.sort(expected, axis=0), atol=1e-5)
    np.testing.assert_array_equal(again.preprocess(x), shards.info.preprocess(x))


def test_channels_are_normalised_by_known_figures(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 2, 2, 3), np.uint8)
    data = pa.table({"x": [p.tobytes() for p in pixels], "y": np.arange(9) % 2})
    spec = DataSpec(("x",), "y", shape=(2, 2, 3), scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    with spool(data, spec, 2, tmp_path) as shards:
        got = rows_of(shards)[0]
        again = DataInfo.from_json(json.loads(json.dumps(shards.info.to_json())))
    expected = (pixels / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.25, 0.5]
    assert got.dtype == np.float32
    np.testing.assert_allclose(np.sort(got, axis=0), np.sort(expected, axis=0), atol=1e-6)
    np.testing.assert_allclose(again.preprocess(pixels), expected, atol=1e-6)
    assert again.spec == spec
    with pytest.raises(DataError, match=r"data.mean has 1 entries, not one for each channel of samples \(2, 2, 3\)"):
        spool(data, replace(spec, mean=(0.5,), std=(1.0,)), 1, tmp_path)


def test_bytes_are_scaled_to_floats(tmp_path):
    data = pa.table({"x": [bytes([i, 255 - i]) for i in range(10)], "y": np.arange(10) % 2})
    with spool(data, DataSpec(("x",), "y", shape=(1, 2, 1), scale=1 / 255), 1, tmp_path) as shards:
        x = rows_of(shards)[0]
    assert x.shape == (10, 1, 2, 1)
    np.testing.assert_allclose(np.sort(x[:, 0, 0, 0]), np.arange(10) / 255, rtol=1e-6)
    np.testing.assert_allclose(x.sum(axis=(1, 2, 3)), 1.0, rtol=1e-6)


def test_what_is_known_of_the_data_is_kept_with_a_model(tmp_path):
    with spool(table(), replace(SPEC, weight="id", key=("id",)), 3, tmp_path) as shards:
        info = shards.info
        again = DataInfo.from_json(json.loads(json.dumps(info.to_json())))
        assert replace(again, preprocess=info.preprocess) == info
        assert [info.train_offset(p) for p in range(3)] == np.cumsum([0, *info.train_counts[:2]]).tolist()
        assert len(pickle.dumps(info)) < 3000
        assert info.scoring_spec == DataSpec(("x",), shape=(3,))
        assert info.evaluation_spec == DataSpec(("x",), "y", "id", shape=(3,))


def test_a_model_s_labels_and_scaling_are_used_again(tmp_path):
    data = table()
    with spool(data, replace(SPEC, standardize=True), 2, tmp_path) as shards:
        info, x = shards.info, rows_of(shards)[0]
    only_two = data.filter(pc.less(data["y"], 2))
    options = {"labels": info.labels, "preprocess": info.preprocess}
    with spool(only_two, info.evaluation_spec, 1, tmp_path, **options) as shards:
        assert shards.info.labels == info.labels == LabelMap((0, 1, 2))
        got = rows_of(shards)[0]
        assert set(map(tuple, got.tolist())) < set(map(tuple, x.tolist()))
    with pytest.raises(DataError, match="label 3 is not one of the 3 classes"):
        spool(table(classes=4), info.evaluation_spec, 1, tmp_path, **options)
    with pytest.raises(DataError, match="wrong length"):
        spool(data.set_column(0, "x", pa.array([[1.0]] * 600)), info.evaluation_spec, 1, tmp_path, **options)


def spoilt(**columns):
    data = table(10, classes=2).set_column(1, "y", pa.array([0, 1] * 5))
    for name, values in columns.items():
        data = data.set_column(data.column_names.index(name), name, values)
    return data


X10 = [[float(i)] * 3 for i in range(9)]

BAD = {
    "NaN": (spoilt(x=pa.array([*X10, [1.0, math.nan, 0.0]])), SPEC, r"1 of 10 rows .*'x': NaN in 1\).*row 9"),
    "null label": (spoilt(y=pa.array([0, 1] * 4 + [None, 1])), SPEC, "column 'y': null in 1"),
    "ragged": (spoilt(x=pa.array([*X10, [1.0]])), replace(SPEC, shape=None), "1 elements, expected 3.*data.shape"),
    "ragged in another batch": (
        [b for n in (3, 4) for b in pa.table({"x": [[1.0] * n] * 70, "y": [0, 1] * 35}).to_batches()],
        replace(SPEC, shape=None),
        "4 elements, expected 3",
    ),
    "shape": (spoilt(), replace(SPEC, shape=(2, 2)), "3 elements, expected 4"),
    "one class": (spoilt(y=pa.array([4] * 10)), SPEC, "at least two classes; the label column holds 4 only"),
    "no rows": (spoilt().slice(0, 0), SPEC, "the data have no rows"),
    "all skipped": (
        spoilt(x=pa.array([None] * 10, pa.list_(pa.float64()))),
        replace(SPEC, handle_invalid="skip"),
        r"no usable row is left: 10 of 10 rows cannot be used \(column 'x': null in 10\)",
    ),
    "all held out": (spoilt(id=pa.array([True] * 10)), replace(SPEC, valid_column="id"), "all 10 rows are validation"),
    "missing column": (spoilt(), replace(SPEC, label="z"), "column 'z' is not in the data"),
    "string": (spoilt(x=pa.array(["a"] * 10)), SPEC, "column 'x' has type string"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_one_clear_error_and_leave_nothing_behind(tmp_path, name):
    data, spec, words = BAD[name]
    batches = data if isinstance(data, list) else data.to_batches() or [pa.RecordBatch.from_pylist([], data.schema)]
    with pytest.raises(DataError, match=words):
        spool(batches, spec, 2, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_batches_at_all(tmp_path):
    with pytest.raises(DataError, match="the data have no rows"):
        spool([], SPEC, 2, tmp_path)
    with pytest.raises(ConfigError, match="at least one shard"):
        spool(table(), SPEC, 0, tmp_path)


def test_different_shapes_in_different_tasks_are_noticed(tmp_path):
    """Each task takes the length of its first row for the right one; only the whole shows that they differ."""
    long = pa.table({"x": [[1.0] * 4] * 6, "y": [0, 1] * 3})
    with pytest.raises(DataError, match=r"samples have different shapes, \(3,\) and \(4,\).*data.shape"):
        spool(spoilt(), replace(SPEC, shape=None), 2, tmp_path, valid=long.to_batches())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("policy", "rows"), [("skip", 7), ("keep", 10)])
def test_policies(tmp_path, caplog, policy, rows):
    values = [*X10[:6], [1.0, math.nan, 0.0], None, *X10[6:8]]
    data = spoilt(
        x=pa.array(values, pa.list_(pa.float64())), y=pa.array([0, 1] * 4 + [None if policy == "skip" else 1, 1])
    )
    with caplog.at_level(logging.WARNING), spool(data, replace(SPEC, handle_invalid=policy), 2, tmp_path) as shards:
        x = rows_of(shards)[0]
    assert len(x) == rows
    assert np.isnan(x).sum() == (0 if policy == "skip" else 4)
    assert f'data.handle_invalid = "{policy}"' in " ".join(caplog.messages)
    assert "column 'x': NaN in 1" in " ".join(caplog.messages)


def test_identical_rows_are_warned_of(tmp_path, caplog):
    data = pa.concat_tables([table(200, classes=2), pa.table({"x": [[1.0] * 3] * 800, "y": [1] * 800, "id": range(800)},
                                                             schema=table(1).schema)])  # fmt: skip
    with caplog.at_level(logging.WARNING):
        spool(data, SPEC, 4, tmp_path).delete()
    assert "of 1,000 rows, its share is 250: many rows are identical" in " ".join(caplog.messages)
    assert "Name in data.key a column" in " ".join(caplog.messages)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        with spool(
            data.drop(["id"]).append_column("id", pa.array(range(1000))), replace(SPEC, key=("id",)), 4, tmp_path
        ):
            pass
        spool(table(7, classes=2), SPEC, 4, tmp_path).delete()  # few rows are uneven by chance
    assert caplog.text == ""


def test_deleting_removes_the_files(tmp_path):
    with spool(table(), SPEC, 2, tmp_path) as shards:
        assert len(list(tmp_path.rglob("*.arrow"))) == 2
        shards.delete()
    assert list(tmp_path.iterdir()) == []


# Files.


def test_parquet_folders_with_hive_partitions(tmp_path):
    for name, rows in (("day=06", 2), ("day=07", 1), ("day=__HIVE_DEFAULT_PARTITION__", 1)):
        (tmp_path / name / "kind=a%3Db").mkdir(parents=True)
        pq.write_table(table(rows), tmp_path / name / "kind=a%3Db" / "part.parquet")
    (tmp_path / "_SUCCESS").touch()
    read = pa.Table.from_batches(list(read_path(tmp_path)))
    assert read["day"].to_pylist() == [6, 6, 7, None]
    assert read["kind"].to_pylist() == ["a=b"] * 4
    narrow = pa.Table.from_batches(list(read_path(str(tmp_path), ["y", "day"])))
    assert narrow.column_names == ["y", "day"]
    assert narrow["day"].to_pylist() == [6, 6, 7, None]


def test_row_groups_of_any_size_give_each_row_once(tmp_path):
    data = table(1010, classes=2)
    with pq.ParquetWriter(tmp_path / "a.parquet", data.schema) as out:
        out.write_table(data.slice(0, 1000))
        out.write_table(data.slice(1000))
    with spool(read_path(tmp_path / "a.parquet"), replace(SPEC, weight="id"), 4, tmp_path) as shards:
        assert sorted(rows_of(shards)[2].tolist()) == list(range(1010))


def test_nullable_integers_survive(tmp_path):
    """One row group has no value at all, and the value beside a null is one that no float64 holds."""
    big = 9007199254740993
    ids = pa.table({"y": pa.array([None, None, big, None, 5], pa.int64()), "x": [[1.0]] * 5})
    pq.write_table(ids, tmp_path / "a.parquet", row_group_size=2)
    spec = DataSpec(("x",), "y", handle_invalid="skip")
    with spool(read_path(tmp_path / "a.parquet"), spec, 1, tmp_path) as shards:
        assert shards.info.labels == LabelMap((5, big))
    values = DataSpec(("y",), "z", handle_invalid="skip")
    with spool(ids.append_column("z", pa.array(range(5))), values, 1, tmp_path) as shards:
        handle = shards.handles[0]
        with ShardReader(handle, shards.info)._train as shard:
            assert sorted(shard.gather(np.arange(2)).x[:, 0].tolist()) == [5, big]


def test_csv_files(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,y\n1,0.5,yes\n2,1.5,no\n3,,yes\n")
    read = pa.Table.from_batches(list(read_path(tmp_path / "a.csv")))
    assert read.to_pydict() == {"a": [1, 2, 3], "b": [0.5, 1.5, None], "y": ["yes", "no", "yes"]}
    with pytest.raises(DataError, match="column 'b': null in 1"):
        spool(read_path(tmp_path / "a.csv"), DataSpec(("a", "b"), "y"), 1, tmp_path)


def test_damaged_and_missing_files_are_named(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet")
    pq.write_table(table(), tmp_path / "b.parquet", compression="none")
    damaged = bytearray((tmp_path / "b.parquet").read_bytes())
    damaged[10:2000] = bytes(1990)
    (tmp_path / "b.parquet").write_bytes(damaged)
    with pytest.raises(DataError, match=r"b\.parquet cannot be read"):
        list(read_path(tmp_path))
    (tmp_path / "b.parquet").write_bytes(damaged[:100])
    with pytest.raises(DataError, match=r"b\.parquet"):
        list(read_path(tmp_path / "b.parquet"))
    with pytest.raises(DataError, match=r"nowhere does not exist. Check data.train"):
        list(read_path(tmp_path / "nowhere"))


def test_synthetic_data_are_reproducible_and_separable(tmp_path):
    first, again = (pa.Table.from_batches(list(synthetic(500, (4, 5), 3, seed=1))) for _ in range(2))
    assert first == again
    assert first != pa.Table.from_batches(list(synthetic(500, (4, 5), 3, seed=2)))
    x = np.array(first["features"].to_pylist(), np.float32)
    y = first["label"].to_numpy()
    assert x.shape == (500, 20)
    assert set(y.tolist()) == {0, 1, 2}
    centres = np.stack([x[y == k].mean(0) for k in range(3)])
    nearest = ((x[:, None] - centres) ** 2).sum(-1).argmin(1)
    assert (nearest == y).mean() > 0.95
    with spool(synthetic(500, (4, 5), 3, 1), DataSpec(("features",), "label", shape=(4, 5, 1)), 2, tmp_path) as shards:
        assert shards.info.train_rows == 500
