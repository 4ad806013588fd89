"""What all tests share: one small Spark session, the data sets, and quiet single-threaded numerics."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from submitting import JVM, ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before NumPy is imported: two task slots on two cores, and the same bits every time

TESTS = ROOT / "tests"


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        if " at 0x" in item.nodeid:  # processes that share the tests out must call them the same
            raise pytest.UsageError(f"A test's name must not hold an address: {item.nodeid}. Give its parameter an id.")
    # Thousands of tests are no garbage: the collector, which some call again and again, need not go through them.
    gc.collect()
    gc.freeze()


def python_path() -> str:
    """Where an executor finds the package and the test modules whose functions it unpickles by reference."""
    folders = [ROOT, TESTS, *(p for p in sorted(TESTS.iterdir()) if p.is_dir() and not p.name.startswith((".", "_")))]
    return os.pathsep.join(map(str, folders))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the whole run: two local task slots, two tries a task, nothing written into the project."""
    from pyspark.sql import SparkSession

    os.environ.pop("SPARK_HOME", None)  # another Spark's jars must not be mixed with this pyspark
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    scratch = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.extraJavaOptions": JVM,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": python_path(),
        "spark.local.dir": scratch / "local",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": 3,
        "spark.sql.warehouse.dir": scratch / "warehouse",
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }
    builder = SparkSession.builder.master("local[2,2]").appName("sparkdl tests")
    for key, value in settings.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else str(value))
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of larger data sets that may lie beside the project; its tests skip where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the larger data sets do not lie beside the project (../shared/data)")
    return folder


@pytest.fixture(scope="session")
def digits_folder() -> Path:
    """The handwritten digits shipped with the project: `train.parquet` and `test.parquet`."""
    return ROOT / "data" / "digits"


@pytest.fixture(scope="session")
def digits(spark: SparkSession, digits_folder: Path) -> tuple[DataFrame, DataFrame]:
    """(train, test): columns `pixels` array<tinyint> of 64, and `label` int."""
    return tuple(spark.read.parquet(str(digits_folder / f"{part}.parquet")) for part in ("train", "test"))
