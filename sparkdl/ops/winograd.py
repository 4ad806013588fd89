"""Convolution by 3x3 filters at stride 1 with fewer multiplications: Winograd's minimal filtering F(m x m, 3 x 3).

The output is cut into m x m tiles, each seen through a = m + 2 rows and columns of the input d. With constant matrices

    Y = A^T [(G W G^T) * (B^T d B)] A

where * multiplies entry by entry (Lavin & Gray 2016, arXiv:1509.09308). Over all tiles T of a block that fits the
cache, each of the a^2 entries is one matrix product over the channels: V (a^2, T, C) U (a^2, C, F). Multiplications are
fewer than by definition by 4 times (m = 4) or 2.25 times (m = 2). The gradient of W goes back through the same
matrices; that of x is a convolution of dy with the filters reversed.

Largest error in float32, against float64 and as a share of the largest result, over 16 to 512 channels of normal
numbers: 1e-6 for m = 2, 1.5e-5 for m = 4, whose matrices hold larger numbers (im2row: 7e-7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from sparkdl.compiled import twin
from sparkdl.ops.matmul import add_matmul, matmul
from sparkdl.ops.scratch import scratch
from sparkdl.ops.window import Array, Block, Pads, Pair, Window, blocks, patch, windows

__all__ = [
    "applies",
    "gather_outputs",
    "narrow_filters",
    "scatter_inputs",
    "scatter_slopes",
    "widen_filters",
    "winograd",
    "winograd_grad_data",
    "winograd_grad_weights",
]

BLOCK_ELEMENTS = 600_000  # of V and M of one block
MOST_TILES = 256  # rows of a matrix product: as many as it has columns on both sides, up to so many
PART_ELEMENTS, LEAST_PART = 1 << 20, 32  # of U at a time, and channels, where its parts are made as they are used
SKEW = 24  # elements between the a^2 planes beyond their size: at powers of two apart they would share cache lines

A = {
    2: np.array([[1, 0], [1, 1], [1, -1], [0, -1]], float),
    4: np.array([[1, 0, 0, 0], [1, 1, 1, 1], [1, -1, 1, -1], [1, 2, 4, 8], [1, -2, 4, -8], [0, 0, 0, 1]], float),
}
B = {
    2: np.array([[1, 0, 0, 0], [0, 1, -1, 1], [-1, 1, 1, 0], [0, 0, 0, -1]], float),
    4: np.array(
        [
            [4, 0, 0, 0, 0, 0],
            [0, -4, 4, -2, 2, 4],
            [-5, -4, -4, -1, -1, 0],
            [0, 1, -1, 2, -2, -5],
            [1, 1, 1, 1, 1, 0],
            [0, 0, 0, 0, 0, 1],
        ],
        float,
    ),
}
G = {
    2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], float) / 2,
    4: np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], float) / 24,
}


def applies(win: Window, groups: int) -> bool:
    """Whether this is a convolution that can be computed so."""
    return win.kernel == (3, 3) and win.stride == win.dilation == (1, 1) and groups == 1


def winograd(x: Array, W: Array, win: Window, b: Array | None, m: int) -> Array:
    """x (N, H, W, C), W (3, 3, C, F), b (F,) or None -> y (N, OH, OW, F) in the dtype of W; m = 2 or 4."""
    matrix = G[m].astype(W.dtype)

    def filters(part: slice) -> Array:
        return widen_filters(W[..., part], matrix)

    bias = np.zeros(W.shape[3], W.dtype) if b is None else b
    return _filter(x, filters, win.out_size((x.shape[1], x.shape[2])), win.pads, bias, m)


def winograd_grad_data(dy: Array, W: Array, size: Pair, win: Window, m: int) -> Array:
    """dy (N, OH, OW, F), W (3, 3, C, F), size = (H, W) -> dx (N, H, W, C)."""
    rows, cols = ((2 - p[0], n - out + p[0]) for n, out, p in zip(size, dy.shape[1:3], win.pads, strict=True))
    matrix = G[m].astype(W.dtype)

    def filters(part: slice) -> Array:
        return widen_filters(W[::-1, ::-1, part], matrix).transpose(0, 2, 1)

    return _filter(dy, filters, size, (rows, cols), np.zeros(W.shape[2], W.dtype), m)


def winograd_grad_weights(x: Array, dy: Array, win: Window, m: int) -> Array:
    """x (N, H, W, C), dy (N, OH, OW, F) -> dW (3, 3, C, F)."""
    c, f = x.shape[3], dy.shape[3]
    matrix, planes = G[m].astype(dy.dtype), _Planes(dy.shape, m, dy.dtype, (c, f))
    found = list(planes.blocks())
    dU = None if len(found) == 1 else scratch("winograd_dU", ((m + 2) ** 2, c, f), dy.dtype)
    for i, (block, tiles) in enumerate(found):
        V, dM = planes.views(tiles)
        scatter_inputs(x, block, win, planes.tiles[1], planes.buffers[0], m)
        scatter_slopes(_part(dy, block, m), planes.buffers[1], m)
        if dU is None:
            return _narrowed_products(V, dM, matrix)
        if i == 0:
            matmul(V.transpose(0, 2, 1), dM, dU)
        else:
            add_matmul(V.transpose(0, 2, 1), dM, dU)
    return np.zeros((3, 3, c, f), dy.dtype) if dU is None or not found else narrow_filters(dU, matrix)


def _narrowed_products(V: Array, dM: Array, matrix: Array) -> Array:
    """dW = G^T (V^T dM) G, some channels at a time: V (a^2, T, C), dM (a^2, T, F) -> (3, 3, C, F)."""
    planes, _, c = V.shape
    f = dM.shape[2]
    dW = np.empty((3, 3, c, f), dM.dtype)
    for part in _parts(c, planes * f):
        dU = scratch("winograd_dU", (planes, part.stop - part.start, f), dM.dtype)
        dW[:, :, part] = narrow_filters(matmul(V[:, :, part].transpose(0, 2, 1), dM, dU), matrix)
    return dW


def _filter(x: Array, filters: Callable[[slice], Array], size: Pair, pads: Pads, b: Array, m: int) -> Array:
    """x (N, H, W, C), filters(part of F) -> U (a^2, C, part), b (F,), size = (OH, OW) -> y (N, OH, OW, F)."""
    c, f = x.shape[3], len(b)
    y = np.empty((len(x), *size, f), b.dtype)
    planes, win = _Planes(y.shape, m, b.dtype, (c, f)), Window((3, 3), pads=pads)
    found = list(planes.blocks())
    whole = filters(slice(0, f)) if len(found) > 1 else None
    for block, tiles in found:
        V, M = planes.views(tiles)
        scatter_inputs(x, block, win, planes.tiles[1], planes.buffers[0], m)
        if whole is not None:
            matmul(V, whole, M)
        else:  # U of one block is used but once, so it need not exist as a whole
            for part in _parts(f, len(V) * c):
                matmul(V, filters(part), M[:, :, part])
        gather_outputs(planes.buffers[1], _part(y, block, m), b, m)
    return y


def _parts(channels: int, elements: int) -> Iterator[slice]:
    """Cuts channels, each of so many elements of U, into parts that the caches hold."""
    most = max(LEAST_PART, PART_ELEMENTS // elements // LEAST_PART * LEAST_PART)
    for start in range(0, channels, most):
        yield slice(start, min(start + most, channels))


@twin("sparkdl.ops.fast.winograd")
def widen_filters(W: Array, G: Array) -> Array:
    """U = G W G^T: W (3, 3, C, F) -> U (a^2, C, F), which the thread's next call may overwrite."""
    return _sandwich(G, W)


@twin("sparkdl.ops.fast.winograd")
def narrow_filters(dU: Array, G: Array) -> Array:
    """dW = G^T dU G: dU (a^2, C, F) -> dW (3, 3, C, F)."""
    a, (c, f) = len(G), dU.shape[1:]
    return _sandwich(G.T, dU.reshape(a, a, c, f)).reshape(3, 3, c, f)


@twin("sparkdl.ops.fast.winograd")
def scatter_inputs(x: Array, block: Block, win: Window, cols: int, planes: Array, m: int) -> None:
    """B^T d B of every tile d of a block, `cols` to a row, of the padded x (N, H, W, C) into planes, in place.

    planes (a^2, T C + ...), where T runs over the block's images, rows of tiles and columns.
    """
    a, c = m + 2, x.shape[3]
    tiled = Window((a, a), (m, m), (1, 1), win.pads)
    tiles = windows(patch(x, block, tiled, cols), tiled).transpose(3, 4, 0, 1, 2, 5)
    done = _sandwich(B[m].T.astype(planes.dtype), tiles.reshape(a, a, -1, c))
    planes[:, : done[0].size] = done.reshape(a * a, -1)


@twin("sparkdl.ops.fast.winograd")
def gather_outputs(planes: Array, y: Array, b: Array, m: int) -> None:
    """A^T M A + b of every tile M of planes (a^2, T F + ...) into y (n, OH, OW, F), in place; overhang is dropped."""
    n, oh, ow, f = y.shape
    a, rows, cols = m + 2, -(-oh // m), -(-ow // m)
    M = planes[:, : n * rows * cols * f].reshape(a, a, n * rows * cols, f)
    done = _sandwich(A[m].T.astype(planes.dtype), M).reshape(m, m, n, rows, cols, f)
    whole = done.transpose(2, 3, 0, 4, 1, 5).reshape(n, m * rows, m * cols, f)
    np.add(whole[:, :oh, :ow], b, out=y)


@twin("sparkdl.ops.fast.winograd")
def scatter_slopes(dy: Array, planes: Array, m: int) -> None:
    """A dy A^T of every tile of dy (n, OH, OW, F), zero where it overhangs, into planes (a^2, T F + ...), in place."""
    n, oh, ow, f = dy.shape
    rows, cols = -(-oh // m), -(-ow // m)
    whole = np.zeros((n, m * rows, m * cols, f), dy.dtype)
    whole[:, :oh, :ow] = dy
    tiles = whole.reshape(n, rows, m, cols, m, f).transpose(2, 4, 0, 1, 3, 5).reshape(m, m, -1, f)
    done = _sandwich(A[m].astype(planes.dtype), tiles)
    planes[:, : done[0].size] = done.reshape((m + 2) ** 2, -1)


class _Planes:
    """The memory of V and M for blocks of an output (N, OH, OW, ...) of m x m tiles, and how it is cut into blocks."""

    def __init__(self, shape: tuple[int, ...], m: int, dtype: np.dtype[np.float32], widths: tuple[int, ...]) -> None:
        n, oh, ow = shape[:3]
        self.shape, self.widths, self.tiles = (n, -(-oh // m), -(-ow // m)), widths, (-(-oh // m), -(-ow // m))
        self.most = max(min(sum(widths), MOST_TILES), BLOCK_ELEMENTS // ((m + 2) ** 2 * sum(widths)))
        largest = max((t for _, t in self.blocks()), default=0)
        self.buffers = [
            scratch(f"winograd_{i}", ((m + 2) ** 2, largest * width + SKEW), dtype) for i, width in enumerate(widths)
        ]

    def blocks(self) -> Iterator[tuple[Block, int]]:
        """Images and rows of tiles of each block, and how many tiles that makes."""
        for images, rows in blocks(self.shape, self.most):
            yield (images, rows), (images.stop - images.start) * (rows.stop - rows.start) * self.shape[2]

    def views(self, tiles: int) -> list[Array]:
        """V (a^2, T, C) and M (a^2, T, F)."""
        pairs = zip(self.buffers, self.widths, strict=True)
        return [buffer[:, : tiles * width].reshape(len(buffer), tiles, width) for buffer, width in pairs]


def _part(y: Array, block: Block, m: int) -> Array:
    """The pixels of y (N, OH, OW, F) that the tiles of a block make up."""
    images, rows = block
    return y[images, rows.start * m : rows.stop * m]


def _sandwich(T: Array, d: Array) -> Array:
    """T d T^T over the first two axes: T (r, q), d (q, q, ...) -> (r * r, ...)."""
    r, q = T.shape
    rest = d.shape[2:]
    first = T @ d.reshape(q, q * math.prod(rest))
    both: Array = np.matmul(T, first.reshape(r, q, math.prod(rest)))
    return both.reshape(r * r, *rest)
