"""The compiled twin of matrix products, for processors whose registers hold tiles of 8 rows by 2 vectors (AVX-512).

Blocks of both operands that fit the second-level cache pass by tiles that stay in registers (Goto & van de Geijn 2008,
doi:10.1145/1356052.1356053). A block is first copied where its lines lie far apart in memory, or the wrong way round.
Sums of more than BLOCK terms are sums of the blocks' sums, which keeps rounding errors small. The bits of a row depend
on that row, and not on how many there are.

Against OpenBLAS 0.3.31 on a Zen 5: 0.9 to 1.25 times its speed, 1.3 times on 64 rows by transposed weights. A BLAS may
have been built, or be told, for less than the processor at hand; this goes by what there is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real1, inline, kernel, memory, takes
from sparkdl.compiled.blas import multiplies_alone
from sparkdl.compiled.tiles import BYTES, square
from sparkdl.ops.fast.products import WIDE, products
from sparkdl.ops.scratch import scratch

__all__ = ["add_matmul", "matmul"]

Array = np.ndarray[Any, np.dtype[Any]]

LEAST_WORK = 1_000_000  # multiply-adds; calling a kernel takes 4 microseconds more than calling NumPy
LEAST_TERMS = 32  # of a sum; with fewer, most of the time goes into storing the sums
BLOCK = 256  # terms, and columns, of a block of b
ROWS = 128  # of a block of a
PAGE = 4096  # bytes

EMPTY = {char: np.empty(0, char) for char in "fd"}

_move, _turn = square(turned=False), square(turned=True)


def matmul(a: Array, b: Array, out: Array | None = None, bias: Array | None = None) -> Any:
    """See `sparkdl.ops.matmul.matmul`."""
    if not _pays(a, b):
        return NotImplemented
    row = np.zeros(b.shape[-1], a.dtype) if bias is None else np.ascontiguousarray(bias, a.dtype)
    if out is None:
        out = np.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    return _multiply(a, b, out, row)


def add_matmul(a: Array, b: Array, out: Array) -> Any:
    """See `sparkdl.ops.matmul.add_matmul`."""
    return _multiply(a, b, out, out) if _pays(a, b) else NotImplemented


def _pays(a: Array, b: Array) -> bool:
    """Whether these are matrices, or stacks of as many, that take longer to multiply than a kernel to be called.

    Where the BLAS has several cores for a product, it is the faster one.
    """
    if a.ndim != b.ndim or a.size * b.shape[-1] <= LEAST_WORK or a.shape[-1] < LEAST_TERMS:
        return False
    fit = a.ndim in (2, 3) and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
    return fit and takes(a, b) and WIDE and multiplies_alone()


def _multiply(a: Array, b: Array, out: Array, addend: Array) -> Any:
    """out = a b + addend, a row for all of out, or out itself."""
    if out.shape[-1] != b.shape[-1] or out.shape[:-1] != a.shape[:-1] or not takes(a, out):
        return NotImplemented
    rows, inner, cols, size = a.shape[-2], a.shape[-1], b.shape[-1], a.itemsize
    (sa, at, ak), (sb, bk, bj), (sc, ct, cj), (sd, dt, _) = _steps(a), _steps(b), _steps(out), _steps(addend)
    if cj != 1 or 1 not in (at, ak) or 1 not in (bk, bj) or min(sa, at, ak, sb, bk, bj, sc, ct) < 0:
        return NotImplemented
    turn_a = ak > 1 and ak * size >= PAGE
    copy_b = bj > 1 or bk * size >= PAGE // 2 or (rows >= ROWS and ak > 1 and rows * cols >= BLOCK * BLOCK)
    run: Any = _product
    run.compiled(  # what `memory` gives has no need to be opened to kernels
        memory(a), sa, at, ak, memory(b), sb, bk, bj, memory(out), sc, ct, memory(addend), sd, dt,
        len(a) if a.ndim == 3 else 1, rows, inner, cols, int(turn_a), int(copy_b),
        scratch("matmul", (BLOCK * (ROWS + BLOCK),), a.dtype) if turn_a or copy_b else EMPTY[a.dtype.char],
    )  # fmt: skip
    return out


def _steps(x: Array) -> tuple[int, int, int]:
    """Elements from one matrix, row and column to the next; none from one row to others that are not there."""
    if x.ndim == 1:
        return 0, 0, 1
    size, strides, (rows, cols) = x.itemsize, x.strides, x.shape[-2:]
    row, col = strides[-2] // size if rows > 1 else cols, strides[-1] // size if cols > 1 else 1
    return (0 if x.ndim == 2 else strides[0] // size), row, col


@kernel
def _product(
    a: Real1, sa: int, at: int, ak: int, b: Real1, sb: int, bk: int, bj: int, c: Real1, sc: int, ct: int,
    d: Real1, sd: int, dt: int, count: int, rows: int, inner: int, cols: int, turn_a: int, copy_b: int, block: Real1,
) -> None:  # fmt: skip
    of_a, of_b, width = block[: ROWS * BLOCK], block[ROWS * BLOCK :], 2 * BYTES // a.itemsize
    for s in range(count):
        for j in range(0, cols, BLOCK):
            nj = min(BLOCK, cols - j)
            for k in range(0, inner, BLOCK):
                nk, b0 = min(BLOCK, inner - k), s * sb + k * bk + j * bj
                if copy_b:
                    _panels(b, b0, bk, bj, nk, nj, width, of_b)
                for i in range(0, rows, ROWS):
                    ni, a0 = min(ROWS, rows - i), s * sa + i * at + k * ak
                    if turn_a:
                        _turned(a, a0, ak, ni, nk, of_a, 0, nk)
                    left = (of_a, 0, nk, 0, 1) if turn_a else (a, a0, at, 0, ak)
                    c0, d0 = s * sc + i * ct + j, s * sd + i * dt + j
                    if copy_b:
                        for q in range(0, nj, width):
                            sums = (c, c0 + q, ct)
                            addend = sums if k else (d, d0 + q, dt)
                            right = (of_b, q * nk, 0, width)
                            products(left, right, sums, addend, (1, nk), ni, min(width, nj - q))
                    else:
                        sums = (c, c0, ct)
                        products(left, (b, b0, 0, bk), sums, sums if k else (d, d0, dt), (1, nk), ni, nj)


@inline
def _panels(b: Any, start: int, bk: int, bj: int, rows: int, cols: int, width: int, out: Any) -> None:
    """Columns of a block, `width` at a time, with one row's entries side by side."""
    lanes = BYTES // b.itemsize
    if bj == 1:
        whole_rows, whole_cols = rows // lanes * lanes, cols // lanes * lanes
        for k in range(0, whole_rows, lanes):
            for j in range(0, whole_cols, lanes):
                _move((b, start + k * bk + j, bk), (out, j // width * width * rows + k * width + j % width, width))
        for k in range(rows):
            for j in range(whole_cols if k < whole_rows else 0, cols):
                out[j // width * width * rows + k * width + j % width] = b[start + k * bk + j]
    else:
        for q in range(0, cols, width):
            _turned(b, start + q * bj, bj, rows, min(width, cols - q), out, q * rows, width)


@inline
def _turned(a: Any, start: int, step: int, rows: int, cols: int, out: Any, begin: int, stride: int) -> None:
    """out[begin + r stride + c] = a[start + c step + r] for r < rows, c < cols."""
    lanes = BYTES // a.itemsize
    whole_rows, whole_cols = rows // lanes * lanes, cols // lanes * lanes
    for c in range(0, whole_cols, lanes):
        for r in range(0, whole_rows, lanes):
            _turn((a, start + c * step + r, step), (out, begin + r * stride + c, stride))
    for c in range(cols):
        for r in range(whole_rows if c < whole_cols else 0, rows):
            out[begin + r * stride + c] = a[start + c * step + r]
