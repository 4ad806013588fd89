"""Matrix products in all layouts, compiled and by NumPy, against products in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sparkdl.compiled import compiling, memory
from sparkdl.nn import Array
from sparkdl.ops.matmul import add_matmul, matmul

pytest.importorskip("numba")

from sparkdl.ops.fast import matmul as fast

SHAPES = [(128, 256, 32), (7, 500, 300), (130, 259, 291), (33, 17, 1025), (1030, 8, 63), (1, 2048, 260), (300, 1, 2000)]
ERROR = {"f4": 4e-7, "f8": 1e-15}  # of the largest result, for each root of a term


def turned(a: Array) -> Array:
    return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)


def spread(a: Array) -> Array:
    """Rows that lie further apart than they are long."""
    wide = np.full((*a.shape[:-1], a.shape[-1] + 5), np.nan, a.dtype)
    wide[..., 2:-3] = a
    return wide[..., 2:-3]


LAYOUTS: dict[str, Callable[[Array], Array]] = {"rows": np.ascontiguousarray, "columns": turned, "spread": spread}
PAIRS = list(itertools.product(LAYOUTS, repeat=2))


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Small products are multiplied by the kernel, too."""
    monkeypatch.setattr(fast, "LEAST_WORK", 0)
    monkeypatch.setattr(fast, "LEAST_TERMS", 1)
    monkeypatch.setattr(fast, "multiplies_alone", lambda: True)
    with compiling(request.param):
        yield request.param


def drawn(*shape: int, dtype: str = "f4") -> Array:
    array: Array = np.random.default_rng(shape).standard_normal(shape).astype(dtype)
    return array


def check(got: Array, a: Array, b: Array, plus: Any = 0) -> None:
    exact = np.float64 if a.dtype == np.float32 else np.longdouble
    expected = a.astype(exact) @ b.astype(exact) + plus
    assert got.dtype == a.dtype
    assert got.shape == expected.shape
    limit = ERROR[a.dtype.str[1:]] * a.shape[-1] ** 0.5 * max(1, np.abs(expected).max())
    np.testing.assert_allclose(got, expected.astype(float), rtol=0, atol=float(limit))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("layouts", PAIRS, ids="-".join)
def test_layouts(shape: tuple[int, int, int], dtype: str, layouts: tuple[str, str]) -> None:
    rows, inner, cols = shape
    first, second = (LAYOUTS[name] for name in layouts)
    a, b, bias = first(drawn(rows, inner, dtype=dtype)), second(drawn(inner, cols, dtype=dtype)), drawn(cols)
    check(matmul(a, b), a, b)
    check(matmul(a, b, bias=bias), a, b, bias)
    around = np.full((rows + 2, cols + 3), 7, dtype)
    out = around[1:-1, 1:-2]
    assert matmul(a, b, out, bias.astype(dtype)) is out
    check(out, a, b, bias)
    before = out.copy()
    assert add_matmul(a, b, out) is out
    check(out, a, b, before)
    out[...] = 7
    assert (around == 7).all(), "something is written beside the product"


@pytest.mark.parametrize("layouts", PAIRS, ids="-".join)
def test_the_kernel_takes_all_layouts(layouts: tuple[str, str]) -> None:
    if not fast.WIDE:
        pytest.skip("it serves processors with AVX-512")
    for shapes in (((60, 70), (70, 80)), ((3, 60, 70), (3, 70, 80))):
        a, b = (LAYOUTS[name](drawn(*shape)) for name, shape in zip(layouts, shapes, strict=True))
        found = fast.matmul(a, b)
        assert found is not NotImplemented
        check(found, a, b)
        assert fast.add_matmul(a, b, np.zeros_like(found)) is not NotImplemented


@pytest.mark.parametrize("layouts", PAIRS, ids="-".join)
def test_stacks(layouts: tuple[str, str]) -> None:
    a, b = (LAYOUTS[name](x) for name, x in zip(layouts, (drawn(5, 40, 300), drawn(5, 300, 34)), strict=True))
    check(matmul(a, b), a, b)
    M = np.ones((5, 40, 100), np.float32)
    check(add_matmul(a, b, M[:, :, 50:84]), a, b, 1)
    assert (M[:, :, :50] == 1).all()
    assert (M[:, :, 84:] == 1).all()


def test_parts_of_one_array() -> None:
    """As groups of channels lie within an image."""
    x, W = drawn(600, 4, 24), drawn(24, 4, 40)
    y = np.empty((600, 4, 40), np.float32)
    matmul(x.transpose(1, 0, 2), W.transpose(1, 0, 2), y.transpose(1, 0, 2))
    check(y.transpose(1, 0, 2), x.transpose(1, 0, 2), W.transpose(1, 0, 2))


@pytest.mark.parametrize(
    "pair",
    [
        (drawn(6, 8), drawn(8, 5)[::-1]),
        (drawn(6, 8)[:, ::2], drawn(4, 5)),
        (drawn(6, 8, dtype="f8"), drawn(8, 5)),
        (drawn(2, 3, 6, 8), drawn(2, 3, 8, 5)),
        (drawn(3, 6, 8), drawn(8, 5)),
        (np.ones((4, 3), int), np.ones((3, 2), int)),
        (drawn(0, 8), drawn(8, 5)),
        (drawn(6, 0), drawn(0, 5)),
        (drawn(6, 8), drawn(8, 0)),
        (np.broadcast_to(drawn(1, 8), (6, 8)), drawn(8, 5)),
        (drawn(6, 8).astype(">f4"), drawn(8, 5).astype(">f4")),
    ],
    ids=["upwards", "every other", "two dtypes", "stacks of stacks", "one for all", "integers", "no rows", "no terms",
         "no columns", "one row again and again", "bytes the other way round"],
)  # fmt: skip
def test_whatever_numpy_multiplies(pair: tuple[Array, Array]) -> None:
    a, b = pair
    np.testing.assert_allclose(matmul(a, b), a @ b, rtol=1e-6, atol=1e-6)
    once = matmul(a, b)
    np.testing.assert_allclose(add_matmul(a, b, once.copy()), 2 * once, rtol=1e-6, atol=1e-6)


def test_matrices_that_do_not_fit() -> None:
    for a, b in ((drawn(300, 40), drawn(41, 300)), (drawn(3, 30, 40), drawn(4, 40, 30))):
        with pytest.raises(ValueError, match=r"matmul|broadcast"):
            matmul(a, b)
    for out in (np.empty((300, 299), np.float32), np.empty((299, 300), np.float32)):
        with pytest.raises(ValueError):
            matmul(drawn(300, 40), drawn(40, 300), out)


def test_infinities_and_nan_reach_their_row_and_column_only() -> None:
    a, b = drawn(40, 300), drawn(300, 60)
    a[3, 250], b[7, 59] = np.inf, np.nan
    y = matmul(a, b)
    bad = np.zeros(y.shape, bool)
    bad[3], bad[:, 59] = True, True
    assert (~np.isfinite(y) == bad).all()


def test_operands_marked_read_only() -> None:
    a, b = drawn(100, 300), turned(drawn(300, 70))
    for array in (a, b):
        array.flags.writeable = False
    check(matmul(a, b), a, b)
    check(matmul(a[:, 10:200], b[10:200]), a[:, 10:200], b[10:200])


def test_long_sums_round_little() -> None:
    """As gradients of weights are: all terms of one sign, whose running sum grows and grows."""
    terms = 100_000
    a, b = np.full((8, terms), 0.1, np.float32), np.ones((terms, 32), np.float32)
    exact = terms * float(np.float32(0.1))
    assert np.abs(matmul(a, b) / exact - 1).max() < 2e-5


def test_a_row_has_the_same_bits_among_any_others(kernels: bool) -> None:
    if not kernels or not fast.WIDE:
        pytest.skip("not promised by a BLAS")
    a, b = drawn(200, 700), drawn(700, 90)
    whole = matmul(a, b)
    for rows in (slice(0, 1), slice(3, 14), slice(150, 200)):
        assert matmul(a[rows], b).tobytes() == whole[rows].tobytes()


def test_memory_of_an_array_reaches_from_its_first_entry_to_its_last() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(memory(x[:, 1:, 1:3]), np.arange(5.0, 23.0))
    np.testing.assert_array_equal(memory(x.T), np.arange(24.0))
    assert np.shares_memory(memory(x[:, 1:]), x)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert memory(frozen).flags.writeable  # what kernels are compiled for; they do not write to it
