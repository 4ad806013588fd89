"""Images on Spark, the digits in colour: as bytes in Parquet and as a folder of files, from decoding to predictions."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkdl.config import load
from sparkdl.data import ColorJitter, Cutout, DataSpec, Flip, RandomCrop
from sparkdl.errors import ConfigError, DataError
from sparkdl.ml import TrainedModel, fit, job
from sparkdl.nn.zoo import cnn
from sparkdl.optim import SGD
from sparkdl.strategies import AllReduce
from sparkdl.train import Training

Image = pytest.importorskip("PIL.Image")

ROOT = Path(__file__).resolve().parents[2]
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
BYTES = DataSpec(("image",), "label", shape=(8, 8, 3), image="encoded", scale=1 / 255, mean=MEAN, std=STD)
STRUCTS = DataSpec(("image",), "label", shape=(8, 8, 3), image="spark", scale=1 / 255, mean=MEAN, std=STD)
CHANGES = (RandomCrop(1), Flip(), ColorJitter(), Cutout(2))


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def photographs(digits_folder: Path, part: str, rows: int) -> tuple[np.ndarray, list[int]]:
    """The first digits in red, their negatives in green, darker ones in blue: (rows, 8, 8, 3), and their labels."""
    table = pq.read_table(digits_folder / f"{part}.parquet").slice(0, rows)
    grey = np.array(table["pixels"].to_pylist(), np.uint8).reshape(-1, 8, 8) * 15
    return np.stack([grey, 240 - grey, grey // 2], axis=-1), table["label"].to_pylist()


def table(pixels: np.ndarray, labels: list[int]) -> pa.Table:
    return pa.table({"image": [png(image) for image in pixels], "label": labels})


@pytest.fixture(scope="module")
def folder(digits_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as `label=3/17.png`."""
    root = tmp_path_factory.mktemp("images")
    for i, (image, label) in enumerate(zip(*photographs(digits_folder, "train", 60), strict=True)):
        (root / f"label={label}").mkdir(exist_ok=True)
        (root / f"label={label}" / f"{i}.png").write_bytes(png(image))
    return root


def train(data: Any, spec: DataSpec, workers: int = 2, **options: Any) -> TrainedModel:
    training = Training(epochs=2, batch_size=16, augment=options.pop("augment", CHANGES))
    return fit(
        data,
        lambda shape, classes: cnn(shape, classes, filters=(4,), hidden=8),
        spec,
        optimizer=SGD(0.05, 0.9),
        training=training,
        workers=workers,
        **options,
    )


def test_the_shipped_configuration(spark: SparkSession, digits_folder: Path, tmp_path: Path) -> None:
    """That of CIFAR-10 on digits that are stretched; the test rows as Pillow and the formulas have them."""
    for part, rows in (("train", 96), ("test", 20)):
        pq.write_table(table(*photographs(digits_folder, part, rows)), tmp_path / f"{part}.parquet")
    overrides = [f"data.{part}={tmp_path}/{part}.parquet" for part in ("train", "test")]
    overrides += ['data.resize="stretch"', "training.epochs=1", "training.batch_size=32", f"output.model={tmp_path}/m"]
    config = load(ROOT / "conf" / "cifar10.toml", overrides)
    outcome = job.train(config, spark)
    model, spec = outcome.model, config.data.columns
    assert model.data.train_rows + model.data.valid_rows == 96
    assert len(config.training.settings.augment) == 2
    pixels, labels = photographs(digits_folder, "test", 20)
    large = [np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR)) for image in pixels]
    x = ((np.stack(large) / 255 - spec.mean) / spec.std).astype(np.float32)
    expected = model.model.predict(model.params, x)
    accuracy = np.mean(np.array(model.classes)[expected.argmax(axis=1)] == labels)
    assert outcome.metrics["test.accuracy"] == pytest.approx(accuracy)
    scored = model.transform(spark.read.parquet(f"{tmp_path}/test.parquet")).toPandas()
    np.testing.assert_allclose(np.stack(scored["probability"]), expected, rtol=1e-4, atol=1e-6)


def test_files_structs_and_bytes_train_the_same_model(spark: SparkSession, folder: Path, digits_folder: Path) -> None:
    """On one worker and on two, with every random change; channels in any other order would show."""
    rows = table(*photographs(digits_folder, "train", 60))
    first = train(rows, BYTES, workers=1)
    images = spark.read.format("image").load(str(folder))
    by_peers = train(spark.createDataFrame(rows).repartition(3), BYTES, strategy=AllReduce())
    for model in (train(images, STRUCTS), by_peers):
        np.testing.assert_allclose(model.params, first.params, rtol=1e-4, atol=1e-5)
    assert not np.allclose(train(rows, BYTES, augment=()).params, first.params, atol=1e-3)
    scored = first.transform(spark.createDataFrame(rows)).toPandas()
    x = (np.stack(photographs(digits_folder, "train", 60)[0]) / 255 - MEAN) / STD
    expected = first.model.predict(first.params, x.astype(np.float32))
    np.testing.assert_allclose(np.stack(scored["probability"]), expected, rtol=1e-4, atol=1e-6)


def test_grey_transparent_large_and_broken_images(
    spark: SparkSession, digits_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pixels, labels = photographs(digits_folder, "train", 30)
    files = [png(image) for image in pixels]
    files[1], files[2] = png(pixels[1, :, :, 0]), png(np.dstack([pixels[2], pixels[2, :, :, 0]]))
    files[3], files[4] = png(pixels[3].repeat(2, axis=0)), b"<html>404</html>"
    df = spark.createDataFrame(pa.table({"image": files, "label": labels})).repartition(2)
    with pytest.raises(DataError, match=r"2 of 30 rows .*not an image in 1.*wrong size in 1") as e:
        train(df, BYTES)
    assert "data.resize" in str(e.value)
    skipping = DataSpec(**{**vars(BYTES), "handle_invalid": "skip"})
    with caplog.at_level(logging.WARNING, logger="sparkdl"):
        model = train(df, skipping)
    assert "2 of 30 rows cannot be used" in caplog.text
    assert model.data.train_rows == 28
    scored = model.transform(df).where("prediction is null").toPandas()
    assert sorted(map(len, scored["image"])) == sorted([len(files[3]), len(files[4])])
    stretching = DataSpec(**{**vars(skipping), "resize": "stretch"})
    assert train(df, stretching).data.train_rows == 29


def test_a_file_of_a_folder_that_is_no_image(spark: SparkSession, folder: Path) -> None:
    """Spark's reader marks it, or drops it where told to."""
    broken = folder / "label=0" / "broken.png"
    broken.write_bytes(b"no image")
    try:
        read = spark.read.format("image")
        with pytest.raises(DataError, match=r"1 of 61 rows cannot be used .*broken\.png"):
            train(read.load(str(folder)), STRUCTS)
        assert train(read.option("dropInvalid", True).load(str(folder)), STRUCTS).data.train_rows == 60
    finally:
        broken.unlink()


def test_a_format_of_spark_needs_spark(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r'data\.format = "image" is read by Spark.*training\.master'):
        job.read(None, str(folder), "image")
