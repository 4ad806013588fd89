"""Whether products take one core is asked of the library that multiplies, in processes set up one way and another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("threadpoolctl")

ASK = """
from sparkdl.compiled.blas import multiplies_alone, multiply_alone
first = multiplies_alone()
multiply_alone()
print(first, multiplies_alone())
"""
WITHOUT = """
from sparkdl.compiled import blas
blas.find_spec = lambda name: None
print(blas.multiplies_alone())
"""


def answers(script: str, **settings: str) -> str:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    env = {name: value for name, value in os.environ.items() if name not in names} | settings
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def test_as_spark_sets_it() -> None:
    assert answers(ASK, OMP_NUM_THREADS="1") == "True True"


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core is all there is")
def test_several_cores_until_they_are_limited() -> None:
    assert answers(ASK, OMP_NUM_THREADS="2") == "False True"


def test_without_threadpoolctl_the_environment_decides() -> None:
    assert answers(WITHOUT, OMP_NUM_THREADS="1") == "True"
    assert answers(WITHOUT) == str(os.cpu_count() == 1)
