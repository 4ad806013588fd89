"""Sums of products over strided operands, in tiles: the loops that convolutions by definition have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkdl.compiled import inline
from sparkdl.compiled.tiles import BYTES, tile, wide

__all__ = ["lanewise_products", "products"]

WIDE = wide()  # then 32 registers hold the sums of a tile of 16 vectors, else 16 those of a quarter as many


def _rows(most: int, vectors: int, whole: bool = False, lanewise: bool = False) -> Callable[..., None]:
    """Tiles of one kind for t < count and first <= f < stop, of `most` rows and at last fewer, for kernels."""
    one, two, three, four = (tile(rows, vectors, whole, lanewise) for rows in (1, 2, 3, 4))
    eight = tile(8, vectors, whole, lanewise) if most >= 8 else four
    largest = tile(16, vectors, whole, lanewise) if most >= 16 else eight
    width = vectors * BYTES

    @inline
    def run(a: Any, b: Any, c: Any, d: Any, size: tuple[int, int], count: int, first: int, stop: int) -> None:
        for f in range(first, stop, width // a[0].itemsize):
            bf, left = (b[0], b[1] + f, b[2], b[3]), stop - f
            a0, c0, d0 = a[1] + (f if lanewise else 0), c[1] + f, d[1] + f
            t = 0
            while t < count:
                at = (a[0], a0 + t * a[2], a[2], a[3], a[4])
                ct, dt = (c[0], c0 + t * c[2], c[2]), (d[0], d0 + t * d[2], d[2])
                more = count - t
                if more >= most:
                    largest(at, bf, ct, dt, size, left)
                    t += most
                elif most > 8 and more >= 8:
                    eight(at, bf, ct, dt, size, left)
                    t += 8
                elif most > 4 and more >= 4:
                    four(at, bf, ct, dt, size, left)
                    t += 4
                elif more == 3:
                    three(at, bf, ct, dt, size, left)
                    t += 3
                elif more == 2:
                    two(at, bf, ct, dt, size, left)
                    t += 2
                else:
                    one(at, bf, ct, dt, size, left)
                    t += 1

    return run


PAIRS = _rows(8, 2)  # where WIDE
WHOLES = _rows(4, 1, whole=True)  # of 16 registers none is left to say which lanes there are
SINGLES = _rows(16 if WIDE else 4, 1)
LANEWISE_WHOLES, LANEWISE = (_rows(4, 1, whole, lanewise=True) for whole in (True, False))


@inline
def products(a: Any, b: Any, c: Any, d: Any, size: tuple[int, int], count: int, width: int) -> None:
    """The sums of `sparkdl.compiled.tiles` for t < count, f < width; c must not overlap a or b."""
    lanes = BYTES // a[0].itemsize
    if WIDE:  # all but the last vector, if their number is odd
        done = (width + lanes - 1) // (2 * lanes) * 2 * lanes
        PAIRS(a, b, c, d, size, count, 0, min(done, width))
    else:
        done = width // lanes * lanes
        WHOLES(a, b, c, d, size, count, 0, done)
    SINGLES(a, b, c, d, size, count, done, width)


@inline
def lanewise_products(a: Any, b: Any, c: Any, d: Any, size: tuple[int, int], count: int, width: int) -> None:
    """The same sums lane by lane."""
    lanes = BYTES // a[0].itemsize
    done = width // lanes * lanes
    LANEWISE_WHOLES(a, b, c, d, size, count, 0, done)
    LANEWISE(a, b, c, d, size, count, done, width)
