"""Compiled twins of the kernels of `sparkdl.ops.conv`."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real2, Real3, Real4, Real6, kernel, takes
from sparkdl.ops.window import Array, Shape, Window

__all__ = ["gather_rows", "scatter_rows"]

SHORT_RUN = 16  # a window's row of fewer contiguous elements is gathered tap by tap, along the image


def gather_rows(seen: Array, win: Window, groups: int, buffer: Array) -> Any:
    """See `sparkdl.ops.conv.gather_rows`."""
    if groups > 1 or win.kernel == (1, 1) or not takes(seen, buffer):
        return NotImplemented
    (kh, kw), (sh, sw), (dh, dw), (eh, ew) = win.kernel, win.stride, win.dilation, win.extent
    n, height, width, c = seen.shape
    oh, ow = (height - eh) // sh + 1, (width - ew) // sw + 1
    rows = buffer[: n * oh * ow * kh * kw * c].reshape(n * oh * ow, kh * kw * c)
    seen = np.ascontiguousarray(seen)
    if kw * c < SHORT_RUN:
        columns = buffer[: n * oh * ow * kh * kw * c].reshape(kh, kw, c, n, oh, ow)
        _gather_columns(seen, columns, sh, sw, dh, dw)
        return columns.reshape(1, kh * kw * c, n * oh * ow).transpose(0, 2, 1)
    rows = buffer[: n * oh * ow * kh * kw * c].reshape(n * oh * ow, kh * kw * c)
    run, taps = _runs(win, c)
    _gather(seen.reshape(n, height, width * c), oh, ow, kh, taps, run, sh, sw * c, dh, dw * c, rows)
    return rows[None]


def scatter_rows(rows: Array, shape: Shape, win: Window) -> Any:
    """See `sparkdl.ops.conv.scatter_rows`."""
    if not takes(rows):
        return NotImplemented
    n, height, width, c = shape
    (kh, _), (sh, sw), (dh, dw), ((top, bottom), (left, right)) = win.kernel, win.stride, win.dilation, win.pads
    oh, ow = win.out_size((height, width))
    padded = np.zeros((n, height + top + bottom, (width + left + right) * c), rows.dtype)
    run, taps = _runs(win, c)
    _scatter(rows, oh, ow, kh, taps, run, sh, sw * c, dh, dw * c, padded)
    return padded.reshape(n, height + top + bottom, width + left + right, c)[:, top : top + height, left : left + width]


def _runs(win: Window, c: int) -> tuple[int, int]:
    """Elements of a window's row that lie side by side, and how many such runs make up the row."""
    kw, dw = win.kernel[1], win.dilation[1]
    return (kw * c, 1) if dw == 1 else (c, kw)


@kernel
def _gather(
    lines: Real3, oh: int, ow: int, kh: int, taps: int, run: int, sh: int, step: int, dh: int, dc: int, rows: Real2
) -> None:
    r = 0
    for n in range(len(lines)):
        for h in range(oh):
            for w in range(ow):
                row, at = rows[r], 0
                for i in range(kh):
                    line = lines[n, h * sh + i * dh]
                    for j in range(taps):
                        part, start = row[at : at + run], w * step + j * dc
                        source = line[start : start + run]
                        for k in range(run):
                            part[k] = source[k]
                        at += run
                r += 1


@kernel
def _gather_columns(seen: Real4, columns: Real6, sh: int, sw: int, dh: int, dw: int) -> None:
    kh, kw, c, _, oh, ow = columns.shape
    n, height, width = seen.shape[:3]
    planes = np.empty((c, height, width), seen.dtype)
    for image in range(n):
        for k in range(c):
            for h in range(height):
                plane, line = planes[k, h], seen[image, h]
                for w in range(width):
                    plane[w] = line[w, k]
        for i in range(kh):
            for j in range(kw):
                for k in range(c):
                    for h in range(oh):
                        out, plane = columns[i, j, k, image, h], planes[k, h * sh + i * dh, j * dw :]
                        if sw == 1:
                            for w in range(ow):
                                out[w] = plane[w]
                        else:
                            for w in range(ow):
                                out[w] = plane[w * sw]


@kernel
def _scatter(
    rows: Real2, oh: int, ow: int, kh: int, taps: int, run: int, sh: int, step: int, dh: int, dc: int, lines: Real3
) -> None:
    r = 0
    for n in range(len(lines)):
        for h in range(oh):
            for w in range(ow):
                row, at = rows[r], 0
                for i in range(kh):
                    line = lines[n, h * sh + i * dh]
                    for j in range(taps):
                        part, start = row[at : at + run], w * step + j * dc
                        target = line[start : start + run]
                        for k in range(run):
                            target[k] += part[k]
                        at += run
                r += 1
