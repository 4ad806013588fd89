"""Writes data/digits/{train,test}.parquet and data/wine/{train,test}.parquet from scikit-learn's copies, once.

Run by `python scripts/make_data.py [FOLDER]` where scikit-learn is installed; every run writes the same rows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits, load_wine

__all__ = ["digits", "main", "split", "wine"]

SEED = 1998  # the digits' year; any fixed number serves
TEST_FRACTION = 0.2
CULTIVARS = np.array(["Barolo", "Grignolino", "Barbera"])  # the set's classes 1, 2, 3 in the study it stems from


def digits() -> tuple[pa.Table, np.ndarray[Any, Any]]:
    """The images as rows of 64 small integers (8 x 8, row by row, 0 to 16), and their labels."""
    x, y = load_digits(return_X_y=True)
    pixels = pa.array(list(x.astype(np.int8)), pa.list_(pa.int8()))
    return pa.table({"pixels": pixels, "label": pa.array(y, pa.int32())}), y


def wine() -> tuple[pa.Table, np.ndarray[Any, Any]]:
    """Thirteen measurements, one column each, and the cultivar's name."""
    bunch = load_wine()
    names = [name.replace("/", "_") for name in bunch.feature_names]
    columns: dict[str, Any] = dict(zip(names, bunch.data.T, strict=True))
    return pa.table({**columns, "cultivar": CULTIVARS[bunch.target]}), bunch.target


def split(table: pa.Table, labels: np.ndarray[Any, Any]) -> tuple[pa.Table, pa.Table]:
    """(train, test): a fifth of every class, drawn once, is the test set; both keep the source's order."""
    rng, test = np.random.default_rng(SEED), np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        test[rows[: round(TEST_FRACTION * len(rows))]] = True
    return table.filter(pa.array(~test)), table.filter(pa.array(test))


def main(folder: Path) -> None:
    """Write both sets below folder."""
    for name, (table, labels) in {"digits": digits(), "wine": wine()}.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, rows in zip(("train", "test"), split(table, labels), strict=True):
            pq.write_table(rows, folder / name / f"{part}.parquet")
            print(f"{name}/{part}.parquet: {rows.num_rows} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "data")
