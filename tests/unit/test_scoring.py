"""Predictions from Arrow batches, as executors make them: no JVM takes part."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data import DataSpec
from sparkdl.errors import DataError
from sparkdl.ml import TrainedModel, fit
from sparkdl.ml.scoring import Scorer
from sparkdl.nn import Dense, GlobalAvgPool, Sequential
from sparkdl.train import Training

SHAPE = (512, 512, 3)  # 0.75 MiB as stored, 3 MiB for the network


def images(rows: int) -> pa.Table:
    pixels = np.zeros((rows, *SHAPE), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(rows)
    return pa.table(
        {"image": [p.tobytes() for p in pixels], "label": ["odd" if i % 2 else "even" for i in range(rows)]}
    )


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    spec = DataSpec(("image",), "label", shape=SHAPE, scale=1 / 255, handle_invalid="skip")
    net = Sequential((GlobalAvgPool(), Dense(2)))
    return fit(images(4), net, spec, training=Training(epochs=1), workers=1)


def test_large_images_are_scored_a_few_at_a_time(trained: TrainedModel) -> None:
    table = images(100)
    files: list[bytes | None] = [f.as_py() for f in table["image"]]
    files[60], files[98] = None, b"short"
    batch = pa.record_batch({"image": pa.array(files, pa.binary())})
    scorer = Scorer(trained.model, trained.params, trained.data)
    tracemalloc.start()
    prediction, probability = scorer.score(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150 << 20, f"{peak >> 20} MiB, of 300 for all"
    assert probability is not None
    usable = [i for i, f in enumerate(files) if f is not None and len(f) > 5]
    assert [i for i in range(100) if prediction[i].is_valid] == usable
    x = np.stack([np.frombuffer(files[i] or b"", np.uint8) for i in usable])
    expected = trained.predict(x)
    np.testing.assert_allclose(np.stack(probability.drop_null().to_pylist()), expected, rtol=1e-5)
    assert prediction.drop_null().to_pylist() == [trained.classes[k] for k in expected.argmax(axis=1)]


def test_no_rows_and_none_that_can_be_used(trained: TrainedModel) -> None:
    scorer = Scorer(trained.model, trained.params, trained.data)
    for files in ([], [None, b"short"]):
        prediction, probability = scorer.score(pa.record_batch({"image": pa.array(files, pa.binary())}))
        assert probability is not None
        assert len(prediction) == len(probability) == len(files)
        assert prediction.null_count == len(files)


def test_a_row_is_named_by_its_place_in_the_batch(trained: TrainedModel) -> None:
    strict = replace(trained.data, spec=replace(trained.data.spec, handle_invalid="error"))
    files = [*(f.as_py() for f in images(70)["image"]), b"short"]
    with pytest.raises(DataError, match="row 70, column 'image': 5 bytes"):
        Scorer(trained.model, trained.params, strict).score(pa.record_batch({"image": pa.array(files)}))
