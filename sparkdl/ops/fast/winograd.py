"""The transforms of `sparkdl.ops.winograd`, compiled: each tile passes through registers once for each axis.

Constants take the dtype of the arrays: numba would compute in float64 with a plain number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real1, Real2, Real3, Real4, kernel, takes
from sparkdl.ops.scratch import scratch
from sparkdl.ops.window import Array, Block, Window

__all__ = ["gather_outputs", "narrow_filters", "scatter_inputs", "scatter_slopes", "widen_filters"]

PIECE = 512  # entries of a filter bank that pass through the first-level cache at a time


def scatter_inputs(x: Array, block: Block, win: Window, cols: int, planes: Array, m: int) -> Any:
    """See `sparkdl.ops.winograd.scatter_inputs`."""
    if not takes(x, planes):
        return NotImplemented
    images, rows = block
    part = np.ascontiguousarray(x[images])
    return (_inputs2 if m == 2 else _inputs4)(part, rows.start, rows.stop, cols, win.pads[0][0], win.pads[1][0], planes)


def gather_outputs(planes: Array, y: Array, b: Array, m: int) -> Any:
    """See `sparkdl.ops.winograd.gather_outputs`."""
    if not takes(planes, y, b) or not y.flags.c_contiguous:
        return NotImplemented
    return (_outputs2 if m == 2 else _outputs4)(planes, y, np.ascontiguousarray(b))


def scatter_slopes(dy: Array, planes: Array, m: int) -> Any:
    """See `sparkdl.ops.winograd.scatter_slopes`."""
    if not takes(dy, planes):
        return NotImplemented
    return (_slopes2 if m == 2 else _slopes4)(np.ascontiguousarray(dy), planes)


def widen_filters(W: Array, G: Array) -> Any:
    """See `sparkdl.ops.winograd.widen_filters`."""
    if not takes(W, G):
        return NotImplemented
    _, _, c, f = W.shape
    U = scratch("winograd_U", (len(G) ** 2, c, f), W.dtype)
    _widen(np.ascontiguousarray(W).reshape(3, 3, c * f), G, U.reshape(len(G), len(G), c * f))
    return U


def narrow_filters(dU: Array, G: Array) -> Any:
    """See `sparkdl.ops.winograd.narrow_filters`."""
    if not takes(dU, G):
        return NotImplemented
    _, c, f = dU.shape
    dW = np.empty((3, 3, c, f), dU.dtype)
    _narrow(dU.reshape(len(G), len(G), c * f), G, dW.reshape(3, 3, c * f))
    return dW


@kernel
def _widen(W: Real3, G: Real2, U: Real3) -> None:
    a, size = len(G), W.shape[2]
    e = np.empty((3, PIECE), W.dtype)
    for start in range(0, size, PIECE):
        stop = min(start + PIECE, size)
        for i in range(a):
            for k in range(3):
                g0, g1, g2 = G[i, 0], G[i, 1], G[i, 2]
                w0, w1, w2, out = W[0, k, start:stop], W[1, k, start:stop], W[2, k, start:stop], e[k]
                for p in range(stop - start):
                    out[p] = g0 * w0[p] + g1 * w1[p] + g2 * w2[p]
            e0, e1, e2 = e[0], e[1], e[2]
            for j in range(a):
                g0, g1, g2, out = G[j, 0], G[j, 1], G[j, 2], U[i, j, start:stop]
                for p in range(stop - start):
                    out[p] = g0 * e0[p] + g1 * e1[p] + g2 * e2[p]


@kernel
def _narrow(dU: Real3, G: Real2, dW: Real3) -> None:
    a, size = len(G), dU.shape[2]
    dW[:] = 0
    e = np.empty((3, PIECE), dU.dtype)
    e0, e1, e2 = e[0], e[1], e[2]
    for start in range(0, size, PIECE):
        stop = min(start + PIECE, size)
        for i in range(a):
            e[:] = 0
            for j in range(a):
                g0, g1, g2, u = G[j, 0], G[j, 1], G[j, 2], dU[i, j, start:stop]
                for p in range(stop - start):
                    e0[p] += g0 * u[p]
                    e1[p] += g1 * u[p]
                    e2[p] += g2 * u[p]
            for k in range(3):
                for r in range(3):
                    g, out, source = G[i, k], dW[k, r, start:stop], e[r]
                    for p in range(stop - start):
                        out[p] += g * source[p]


@kernel
def _inputs4(x: Real4, first: int, last: int, cols: int, top: int, left: int, planes: Real2) -> None:
    n, height, width, c = x.shape
    two, four, five = x.dtype.type(2), x.dtype.type(4), x.dtype.type(5)
    start = max(0, -left) * c  # of what lies inside, in a row of x
    size = max(0, min(width * c - start, (4 * cols + 2 - max(0, left)) * c))
    e = np.zeros((6, (4 * cols + 2) * c), x.dtype)  # 0 outside of the image, throughout
    inside = e[:, max(0, left) * c : max(0, left) * c + size]
    e0, e1, e2, e3, e4, e5 = inside[0], inside[1], inside[2], inside[3], inside[4], inside[5]
    none = np.zeros(size, x.dtype)
    t = 0
    for image in range(n):
        lines = x[image].reshape(height, width * c)[:, start : start + size]
        for h in range(4 * first - top, 4 * last - top, 4):
            a0 = lines[h] if 0 <= h < height else none
            a1 = lines[h + 1] if 0 <= h + 1 < height else none
            a2 = lines[h + 2] if 0 <= h + 2 < height else none
            a3 = lines[h + 3] if 0 <= h + 3 < height else none
            a4 = lines[h + 4] if 0 <= h + 4 < height else none
            a5 = lines[h + 5] if 0 <= h + 5 < height else none
            for p in range(size):
                s, u, q, r = a4[p] - four * a2[p], a3[p] - four * a1[p], a4[p] - a2[p], two * (a3[p] - a1[p])
                e0[p] = four * a0[p] - five * a2[p] + a4[p]
                e1[p], e2[p], e3[p], e4[p] = s + u, s - u, q + r, q - r
                e5[p] = four * a1[p] - five * a3[p] + a5[p]
            for w in range(0, 4 * cols, 4):
                for i in range(6):
                    d = e[i, w * c : (w + 6) * c]
                    v0, v1, v2 = planes[6 * i, t:], planes[6 * i + 1, t:], planes[6 * i + 2, t:]
                    v3, v4, v5 = planes[6 * i + 3, t:], planes[6 * i + 4, t:], planes[6 * i + 5, t:]
                    for k in range(c):
                        d1, d2, d3, d4 = d[c + k], d[2 * c + k], d[3 * c + k], d[4 * c + k]
                        s, u, q, r = d4 - four * d2, d3 - four * d1, d4 - d2, two * (d3 - d1)
                        v0[k] = four * d[k] - five * d2 + d4
                        v1[k], v2[k], v3[k], v4[k] = s + u, s - u, q + r, q - r
                        v5[k] = four * d1 - five * d3 + d[5 * c + k]
                t += c


@kernel
def _outputs4(planes: Real2, y: Real4, b: Real1) -> None:
    n, height, width, f = y.shape
    two, four = y.dtype.type(2), y.dtype.type(4)
    e = np.empty((4, 6, f), y.dtype)
    over = np.empty(f, y.dtype)  # where pixels go that overhang
    t = 0
    for image in range(n):
        for h in range(0, height, 4):
            for w in range(0, width, 4):
                for j in range(6):
                    m0, m1, m2 = planes[j, t:], planes[6 + j, t:], planes[12 + j, t:]
                    m3, m4, m5 = planes[18 + j, t:], planes[24 + j, t:], planes[30 + j, t:]
                    e0, e1, e2, e3 = e[0, j], e[1, j], e[2, j], e[3, j]
                    for k in range(f):
                        s, d, u, r = m1[k] + m2[k], m1[k] - m2[k], m3[k] + m4[k], two * (m3[k] - m4[k])
                        e0[k], e1[k], e2[k], e3[k] = m0[k] + s + u, d + r, s + four * u, d + four * r + m5[k]
                for i in range(min(4, height - h)):
                    z0, z1, z2, z3, z4, z5 = e[i, 0], e[i, 1], e[i, 2], e[i, 3], e[i, 4], e[i, 5]
                    y0 = y[image, h + i, w]
                    y1 = y[image, h + i, w + 1] if w + 1 < width else over
                    y2 = y[image, h + i, w + 2] if w + 2 < width else over
                    y3 = y[image, h + i, w + 3] if w + 3 < width else over
                    for k in range(f):
                        s, d, u, r = z1[k] + z2[k], z1[k] - z2[k], z3[k] + z4[k], two * (z3[k] - z4[k])
                        y0[k], y1[k] = z0[k] + s + u + b[k], d + r + b[k]
                        y2[k], y3[k] = s + four * u + b[k], d + four * r + z5[k] + b[k]
                t += f


@kernel
def _slopes4(dy: Real4, planes: Real2) -> None:
    n, height, width, f = dy.shape
    two, four = dy.dtype.type(2), dy.dtype.type(4)
    e = np.empty((6, 4, f), dy.dtype)
    none = np.zeros(f, dy.dtype)
    t = 0
    for image in range(n):
        for h in range(0, height, 4):
            for w in range(0, width, 4):
                for j in range(4):
                    inside = w + j < width
                    a0 = dy[image, h, w + j] if inside else none
                    a1 = dy[image, h + 1, w + j] if inside and h + 1 < height else none
                    a2 = dy[image, h + 2, w + j] if inside and h + 2 < height else none
                    a3 = dy[image, h + 3, w + j] if inside and h + 3 < height else none
                    e0, e1, e2, e3, e4, e5 = e[0, j], e[1, j], e[2, j], e[3, j], e[4, j], e[5, j]
                    for k in range(f):
                        s, u, q, r = a0[k] + a2[k], a1[k] + a3[k], a0[k] + four * a2[k], two * (a1[k] + four * a3[k])
                        e0[k], e1[k], e2[k], e3[k], e4[k], e5[k] = a0[k], s + u, s - u, q + r, q - r, a3[k]
                for i in range(6):
                    z0, z1, z2, z3 = e[i, 0], e[i, 1], e[i, 2], e[i, 3]
                    v0, v1, v2 = planes[6 * i, t:], planes[6 * i + 1, t:], planes[6 * i + 2, t:]
                    v3, v4, v5 = planes[6 * i + 3, t:], planes[6 * i + 4, t:], planes[6 * i + 5, t:]
                    for k in range(f):
                        s, u, q, r = z0[k] + z2[k], z1[k] + z3[k], z0[k] + four * z2[k], two * (z1[k] + four * z3[k])
                        v0[k], v1[k], v2[k], v3[k], v4[k], v5[k] = z0[k], s + u, s - u, q + r, q - r, z3[k]
                t += f


@kernel
def _inputs2(x: Real4, first: int, last: int, cols: int, top: int, left: int, planes: Real2) -> None:
    n, height, width, c = x.shape
    start = max(0, -left) * c  # of what lies inside, in a row of x
    size = max(0, min(width * c - start, (2 * cols + 2 - max(0, left)) * c))
    e = np.zeros((4, (2 * cols + 2) * c), x.dtype)  # 0 outside of the image, throughout
    inside = e[:, max(0, left) * c : max(0, left) * c + size]
    e0, e1, e2, e3 = inside[0], inside[1], inside[2], inside[3]
    none = np.zeros(size, x.dtype)
    t = 0
    for image in range(n):
        lines = x[image].reshape(height, width * c)[:, start : start + size]
        for h in range(2 * first - top, 2 * last - top, 2):
            a0 = lines[h] if 0 <= h < height else none
            a1 = lines[h + 1] if 0 <= h + 1 < height else none
            a2 = lines[h + 2] if 0 <= h + 2 < height else none
            a3 = lines[h + 3] if 0 <= h + 3 < height else none
            for p in range(size):
                e0[p], e1[p], e2[p], e3[p] = a0[p] - a2[p], a1[p] + a2[p], a2[p] - a1[p], a1[p] - a3[p]
            for w in range(0, 2 * cols, 2):
                for i in range(4):
                    d = e[i, w * c : (w + 4) * c]
                    v0, v1, v2, v3 = (
                        planes[4 * i, t:],
                        planes[4 * i + 1, t:],
                        planes[4 * i + 2, t:],
                        planes[4 * i + 3, t:],
                    )
                    for k in range(c):
                        d1, d2 = d[c + k], d[2 * c + k]
                        v0[k], v1[k], v2[k], v3[k] = d[k] - d2, d1 + d2, d2 - d1, d1 - d[3 * c + k]
                t += c


@kernel
def _outputs2(planes: Real2, y: Real4, b: Real1) -> None:
    n, height, width, f = y.shape
    e = np.empty((2, 4, f), y.dtype)
    over = np.empty(f, y.dtype)
    t = 0
    for image in range(n):
        for h in range(0, height, 2):
            for w in range(0, width, 2):
                for j in range(4):
                    m0, m1, m2, m3 = planes[j, t:], planes[4 + j, t:], planes[8 + j, t:], planes[12 + j, t:]
                    e0, e1 = e[0, j], e[1, j]
                    for k in range(f):
                        e0[k], e1[k] = m0[k] + m1[k] + m2[k], m1[k] - m2[k] - m3[k]
                for i in range(min(2, height - h)):
                    z0, z1, z2, z3 = e[i, 0], e[i, 1], e[i, 2], e[i, 3]
                    y0 = y[image, h + i, w]
                    y1 = y[image, h + i, w + 1] if w + 1 < width else over
                    for k in range(f):
                        y0[k], y1[k] = z0[k] + z1[k] + z2[k] + b[k], z1[k] - z2[k] - z3[k] + b[k]
                t += f


@kernel
def _slopes2(dy: Real4, planes: Real2) -> None:
    n, height, width, f = dy.shape
    e = np.empty((4, 2, f), dy.dtype)
    none = np.zeros(f, dy.dtype)
    t = 0
    for image in range(n):
        for h in range(0, height, 2):
            for w in range(0, width, 2):
                for j in range(2):
                    inside = w + j < width
                    a0 = dy[image, h, w + j] if inside else none
                    a1 = dy[image, h + 1, w + j] if inside and h + 1 < height else none
                    e0, e1, e2, e3 = e[0, j], e[1, j], e[2, j], e[3, j]
                    for k in range(f):
                        e0[k], e1[k], e2[k], e3[k] = a0[k], a0[k] + a1[k], a0[k] - a1[k], -a1[k]
                for i in range(4):
                    z0, z1 = e[i, 0], e[i, 1]
                    v0, v1, v2, v3 = (
                        planes[4 * i, t:],
                        planes[4 * i + 1, t:],
                        planes[4 * i + 2, t:],
                        planes[4 * i + 3, t:],
                    )
                    for k in range(f):
                        v0[k], v1[k], v2[k], v3[k] = z0[k], z0[k] + z1[k], z0[k] - z1[k], -z1[k]
                t += f
