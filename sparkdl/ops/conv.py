"""Two-dimensional convolution (cross-correlation) and its two gradients: blocked im2row and matrix products.

x (N, H, W, C), W (kh, kw, C/groups, F), y (N, OH, OW, F). Group k maps the k-th of `groups` equal slices of the
channels to the k-th slice of the filters; within it

    y[n, h, w, f] = b[f] + sum_ijc x[n, h*sh - top + i*dh, w*sw - left + j*dw, c] W[i, j, c, f]

The windows of a block of output pixels are gathered as the rows of a matrix (T, kh*kw*C) that stays in the cache,
and BLAS multiplies it with the filters (Chellapilla et al. 2006). The block's memory is reused across the batch;
neither the rows nor the padded input of a whole batch ever exist.

Largest error in float32, against float64 and as a share of the largest result, over 16 to 512 channels of normal
numbers: 7e-7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sparkdl.compiled import enabled, twin
from sparkdl.ops.depthwise import depthwise, depthwise_grad_data, depthwise_grad_weights
from sparkdl.ops.matmul import add_matmul, matmul
from sparkdl.ops.phases import Phase, phases
from sparkdl.ops.window import Array, Block, Pair, Shape, Window, blocks, patch, taps, windows

__all__ = ["conv2d", "conv2d_grad_data", "conv2d_grad_weights", "gather_rows", "scatter_rows"]

BLOCK_ELEMENTS = 1 << 20  # in one block's rows, within
BLOCK_PIXELS = (512, 8192)  # pixels: BLAS falls off below, the caches above
SHORT_RUN = 16  # a window's row of fewer contiguous elements is gathered tap by tap, along the image
DEPTHWISE_CHANNELS = 16  # from here on einsum's loop over channels beats one product of (T, kh*kw) by (kh*kw, 1) each


def conv2d(x: Array, W: Array, win: Window, groups: int = 1, b: Array | None = None) -> Array:
    """x (N, H, W, C), W (kh, kw, C/groups, F), b (F,) or None -> y (N, OH, OW, F) in the dtype of W."""
    if _is_depthwise(W.shape, groups):
        y = depthwise(x, W[:, :, 0], win)
        if b is not None:
            y += b
        return y
    y = np.empty((len(x), *win.out_size((x.shape[1], x.shape[2])), W.shape[3]), W.dtype)
    filters = _by_group(W, groups)
    for block, rows in _im2row(x, y.shape, win, groups):
        out = y[block]
        matmul(rows, filters, _by_group(out, groups), b if groups == 1 else None)
        if b is not None and groups > 1:
            out += b
    return y


def conv2d_grad_weights(x: Array, dy: Array, win: Window, groups: int = 1) -> Array:
    """x (N, H, W, C), dy (N, OH, OW, F) -> dW (kh, kw, C/groups, F): the sum over blocks of rows^T dy."""
    dW = np.zeros((*win.kernel, x.shape[3] // groups, dy.shape[3]), dy.dtype)
    if _is_depthwise(dW.shape, groups):
        dW[:, :, 0] = depthwise_grad_weights(x, dy, win)
        return dW
    grouped = _by_group(dW, groups)
    for block, rows in _im2row(x, dy.shape, win, groups):
        add_matmul(rows.transpose(0, 2, 1), _by_group(dy[block], groups), grouped)
    return dW


def conv2d_grad_data(dy: Array, W: Array, size: Pair, win: Window, groups: int = 1) -> Array:
    """dy (N, OH, OW, F), W (kh, kw, C/groups, F), size = (H, W) -> dx (N, H, W, C).

    dx is itself a convolution: of dy, at stride 1, with the filters reversed in space and transposed. With a stride,
    rows h = start (mod stride) of dx each see their own subset of the filters' rows, and columns likewise, so dx is
    several smaller convolutions, interleaved: nothing is multiplied by zeros put between the outputs. Compiled, where
    that means fewer elements, the rows' own gradients dy W^T are added up where the rows were taken from.
    """
    if _is_depthwise(W.shape, groups):
        return depthwise_grad_data(dy, W[:, :, 0], size, win)
    if enabled() and groups == 1 and _scatters(dy.shape, W.shape, size, win):
        return _grad_by_rows(dy, W, size, win)
    rows, cols = phases(size, (dy.shape[1], dy.shape[2]), win)
    if win.stride == (1, 1):
        return _grad_phase(dy, W, groups, rows[0], cols[0])
    dx = np.zeros((len(dy), *size, W.shape[2] * groups), W.dtype)
    for r in rows:
        for c in cols:
            dx[:, r.start :: win.stride[0], c.start :: win.stride[1]] = _grad_phase(dy, W, groups, r, c)
    return dx


def _scatters(out: Shape, filters: Shape, size: Pair, win: Window) -> bool:
    """Whether dx is cheaper by scattering kh kw C elements for each output than by gathering kh kw F for each input."""
    n, c, f = max(1, out[0]), filters[2], filters[3]
    gathered = math.prod(size) // math.prod(win.stride) * f + 2 * c * f // n  # and the filters must be turned over
    return win.kernel != (1, 1) and min(map(min, win.pads)) >= 0 and out[1] * out[2] * c < gathered


def _grad_by_rows(dy: Array, W: Array, size: Pair, win: Window) -> Array:
    kh, kw, c, f = W.shape
    dx = np.empty((len(dy), *size, c), W.dtype)
    pixels = dy.shape[1] * dy.shape[2]
    step = max(1, BLOCK_ELEMENTS // (pixels * kh * kw * c))
    filters = W.reshape(kh * kw * c, f).T
    for start in range(0, len(dy), step):
        part = dx[start : start + step]
        rows = matmul(dy[start : start + step].reshape(len(part) * pixels, f), filters)
        part[...] = scatter_rows(rows, part.shape, win)
    return dx


@twin("sparkdl.ops.fast.conv")
def scatter_rows(rows: Array, shape: Shape, win: Window) -> Array:
    """The adjoint of gathering: rows (T, kh*kw*C) added up where they lie in an image (n, H, W, C) = shape."""
    n, height, width, c = shape
    out = win.out_size((height, width))
    dx, parts = np.zeros(shape, rows.dtype), rows.reshape(n, *out, math.prod(win.kernel), c)
    for tap in taps((height, width), out, win):
        dx[:, *tap.inside] += parts[:, *tap.out, tap.place]
    return dx


def _grad_phase(dy: Array, W: Array, groups: int, r: Phase, c: Phase) -> Array:
    kh, kw, channels, f = (taps := W[r.taps, c.taps]).shape
    flipped = taps[::-1, ::-1].reshape(kh, kw, channels, groups, f // groups).transpose(0, 1, 4, 3, 2)
    win = Window((kh, kw), (1, 1), (r.dilation, c.dilation), (r.pads, c.pads))
    return conv2d(dy, flipped.reshape(kh, kw, f // groups, groups * channels), win, groups)


def _is_depthwise(shape: Shape, groups: int) -> bool:
    """Whether filters of this shape map each channel, of enough, to one filter of its own."""
    return shape[2] == 1 and shape[3] == groups >= DEPTHWISE_CHANNELS


def _by_group(a: Array, groups: int) -> Array:
    """(..., groups * K) -> (groups, T, K), T all other axes in one: a view, whose matrices BLAS takes as they lie."""
    return a.reshape(math.prod(a.shape[:-1]), groups, a.shape[-1] // groups).transpose(1, 0, 2)


def _seen(x: Array, out_shape: Shape, win: Window) -> Iterator[tuple[Block, Array]]:
    """Per block of output pixels: its index into (N, OH), and what it sees of the padded x (n, h, w, C)."""
    least, most = BLOCK_PIXELS
    pixels = min(max(BLOCK_ELEMENTS // (math.prod(win.kernel) * x.shape[3]), least), most)
    for block in blocks(out_shape, pixels):
        yield block, patch(x, block, win, out_shape[2])


def _im2row(x: Array, out_shape: Shape, win: Window, groups: int) -> Iterator[tuple[Block, Array]]:
    """Per block of output pixels: its index into (N, OH), and its windows as rows (groups, T, kh*kw*C/groups).

    The next block overwrites the rows.
    """
    buffer = np.empty(0, x.dtype)
    for block, seen in _seen(x, out_shape, win):
        pixels = (block[0].stop - block[0].start) * (block[1].stop - block[1].start) * out_shape[2]
        size = pixels * math.prod(win.kernel) * x.shape[3]
        if buffer.size < size:
            buffer = np.empty(size, x.dtype)
        yield block, gather_rows(seen, win, groups, buffer[:size])


@twin("sparkdl.ops.fast.conv")
def gather_rows(seen: Array, win: Window, groups: int, buffer: Array) -> Array:
    """The windows over seen (n, h, w, C) as rows (groups, T, kh*kw*C/groups), in the buffer where they must move."""
    found = windows(seen, win)
    n, oh, ow, kh, kw, c = found.shape
    pixels, k = n * oh * ow, c // groups
    if kh == kw == 1:  # at stride 1 the pixels as they lie
        return found.reshape(pixels, groups, k).transpose(1, 0, 2)
    found = found.reshape(n, oh, ow, kh, kw, groups, k)
    if kw * k < SHORT_RUN:  # as columns, which are copied in longer runs; BLAS takes either order
        np.copyto(buffer.reshape(groups, kh, kw, k, n, oh, ow), found.transpose(5, 3, 4, 6, 0, 1, 2))
        return buffer.reshape(groups, kh * kw * k, pixels).transpose(0, 2, 1)
    np.copyto(buffer.reshape(groups, n, oh, ow, kh, kw, k), found.transpose(5, 0, 1, 2, 3, 4, 6))
    return buffer.reshape(groups, pixels, kh * kw * k)
