"""Sums of products over strided operands, by einsum over views of the same memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

numba = pytest.importorskip("numba")

from sparkdl.ops.fast.products import products  # noqa: E402


@numba.njit  # type: ignore[untyped-decorator]
def run(a: Any, b: Any, c: Any, d: Any, size: tuple[int, int], count: int, width: int) -> None:
    products(a, b, c, d, size, count, width)


def check(count: int, width: int, dtype: str, transposed: bool, adding: bool = False) -> None:
    """Compare with einsum over views of A and B; the addend is one row for all, or what C holds."""
    rng, (i, k) = np.random.default_rng(0), (3, 5)
    at, ai, ak = (1, 40, 37) if transposed else (4, 150, 1)
    bi, bk, ct = 70 * k, 70, width + 3
    A, B, D = (rng.standard_normal(size).astype(dtype) for size in (1000, 1200, 70))
    C = np.full(2 + count * ct, 9, dtype)
    run((A, 3, at, ai, ak), (B, 5, bi, bk), (C, 2, ct), (C, 2, ct) if adding else (D, 1, 0), (i, k), count, width)
    size = A.itemsize
    left = as_strided(A[3:], (count, i, k), (at * size, ai * size, ak * size))
    right = as_strided(B[5:], (i, k, width), (bi * size, bk * size, size))
    expected = np.einsum("tik,ikf->tf", left.astype(float), right.astype(float))
    expected += 9 if adding else D[1 : 1 + width]
    got = C[2:].reshape(count, ct)
    np.testing.assert_allclose(got[:, :width], expected, rtol=0, atol=1e-5 if dtype == "f4" else 1e-13)
    assert (got[:, width:] == 9).all()  # nothing is written beside
    assert (C[:2] == 9).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("width", [1, 7, 8, 16, 17, 24, 33, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 16, 31])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("adding", [False, True])
def test_products_over_strided_operands(count: int, width: int, dtype: str, transposed: bool, adding: bool) -> None:
    check(count, width, dtype, transposed, adding)


OTHERS = """
from tests.unit.test_products import check
from sparkdl.compiled.tiles import wide
assert not wide()
for count in (1, 3, 9):
    for width in (5, 8, 16, 21, 40):
        for dtype in ("f4", "f8"):
            check(count, width, dtype, False)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a processor of that kind")
def test_products_of_narrow_registers() -> None:
    """As on a processor without AVX-512, which any that has it can play."""
    narrow = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma,+bmi,+bmi2"}
    root = Path(__file__).parents[2]
    env = os.environ | narrow | {"PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", OTHERS], env=env, cwd=root, check=True, timeout=120)


def test_no_rows_no_terms() -> None:
    A, C = np.ones(8), np.zeros(8)
    run((A, 0, 1, 1, 1), (A, 0, 1, 1), (C, 0, 4), (A, 0, 0), (1, 1), 0, 4)
    assert not C.any()
    run((A, 0, 1, 1, 1), (A, 0, 1, 1), (C, 0, 4), (A, 0, 0), (0, 0), 2, 4)
    assert C.sum() == 8  # what is added
