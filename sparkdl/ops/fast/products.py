"""Sums of products over strided operands, in tiles: the loops that convolutions by definition have in common."""

from __future__ import annotations

from typing import Any

from sparkdl.compiled import inline
from sparkdl.compiled.tiles import BYTES, tile, wide

__all__ = ["products"]

WIDE = wide()  # then 32 registers hold the sums of a tile of 16 vectors
TILE_1_1, TILE_2_1, TILE_4_1, TILE_8_1, TILE_16_1 = (tile(rows, 1) for rows in (1, 2, 4, 8, 16))
WHOLE_1, WHOLE_2, WHOLE_4 = (tile(rows, 1, whole=True) for rows in (1, 2, 4))
TILE_1_2, TILE_2_2, TILE_4_2, TILE_8_2 = (tile(rows, 2) for rows in (1, 2, 4, 8))


@inline
def products(a: Any, b: Any, c: Any, d: Any, size: tuple[int, int], count: int, width: int) -> None:
    """The sums of `sparkdl.compiled.tiles` for t < count, f < width.

    The last tile of a row begins early where it would reach too far, and writes again what it finds there; c must not
    overlap a, b or d.
    """
    lanes, f = BYTES // a[0].itemsize, 0
    if WIDE:
        while width - f > lanes:
            _row_by_two(
                a, (b[0], b[1] + f, b[2], b[3]), (c[0], c[1] + f, c[2]), (d[0], d[1] + f), size, count, width - f
            )
            f += 2 * lanes
    else:  # 16 registers are spoken for: none is left to say which lanes there are
        while width - f >= lanes:
            bf, cf, df = (b[0], b[1] + f, b[2], b[3]), (c[0], c[1] + f, c[2]), (d[0], d[1] + f)
            _whole_row(a, bf, cf, df, size, count, width - f)
            f += lanes
    while f < width:
        _row_by_one(a, (b[0], b[1] + f, b[2], b[3]), (c[0], c[1] + f, c[2]), (d[0], d[1] + f), size, count, width - f)
        f += lanes


@inline
def _row_by_one(a: Any, b: Any, c: Any, d: Any, size: tuple[int, int], count: int, width: int) -> None:
    step = _step(count, 16 if WIDE else 4)
    for start in range(0, count, step):
        t = min(start, count - step)
        at, ct = (a[0], a[1] + t * a[2], a[2], a[3], a[4]), (c[0], c[1] + t * c[2], c[2])
        if WIDE and step == 16:
            TILE_16_1(at, b, ct, d, size, width)
        elif WIDE and step == 8:
            TILE_8_1(at, b, ct, d, size, width)
        elif step == 4:
            TILE_4_1(at, b, ct, d, size, width)
        elif step == 2:
            TILE_2_1(at, b, ct, d, size, width)
        else:
            TILE_1_1(at, b, ct, d, size, width)


@inline
def _whole_row(a: Any, b: Any, c: Any, d: Any, size: tuple[int, int], count: int, width: int) -> None:
    step = _step(count, 4)
    for start in range(0, count, step):
        t = min(start, count - step)
        at, ct = (a[0], a[1] + t * a[2], a[2], a[3], a[4]), (c[0], c[1] + t * c[2], c[2])
        if step == 4:
            WHOLE_4(at, b, ct, d, size, width)
        elif step == 2:
            WHOLE_2(at, b, ct, d, size, width)
        else:
            WHOLE_1(at, b, ct, d, size, width)


@inline
def _row_by_two(a: Any, b: Any, c: Any, d: Any, size: tuple[int, int], count: int, width: int) -> None:
    step = _step(count, 8)
    for start in range(0, count, step):
        t = min(start, count - step)
        at, ct = (a[0], a[1] + t * a[2], a[2], a[3], a[4]), (c[0], c[1] + t * c[2], c[2])
        if step == 8:
            TILE_8_2(at, b, ct, d, size, width)
        elif step == 4:
            TILE_4_2(at, b, ct, d, size, width)
        elif step == 2:
            TILE_2_2(at, b, ct, d, size, width)
        else:
            TILE_1_2(at, b, ct, d, size, width)


@inline
def _step(count: int, most: int) -> int:
    """Rows of a tile: as many as there are, in powers of two, or half as many where the last tile would redo much."""
    step = most
    while step > max(1, count):
        step //= 2
    if step >= 8 and -(-count // step) * step - count >= step // 2 and count < 3 * step:
        step //= 2
    return step
