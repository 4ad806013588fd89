"""The algorithms of convolution, and which one a layer takes.

All are exact up to rounding and interchangeable, each forward and in both gradients: `im2row` (any convolution),
`direct` (without groups), `fft` (any), `winograd2` and `winograd4` (3x3 at stride 1).

The choice by default is a rule: a function of the shapes, and of whether kernels are compiled, so that the same
configuration gives the same bits in every run, on every rank and after a resumed checkpoint, where all have them or
none. A clock promises none of that; so "tuned", which times the candidates once a shape, forward and backward together,
and remembers the fastest in the process, is chosen on request only: for a layer (`Conv2D(algorithm=...)`), or for all
that leave it open by the environment variable SPARKDL_CONV or `preferring`. With `strict`, or SPARKDL_CONV_STRICT=1,
algorithms that round more coarsely than the definition are not taken unasked: F(4x4, 3x3), and the Fourier transform.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sparkdl.compiled import enabled
from sparkdl.ops import conv, direct, fft, winograd
from sparkdl.ops.window import Array, Pair, Shape, Window

__all__ = ["ALGORITHMS", "CHOICES", "Algorithm", "Problem", "by_rule", "choose", "preferring", "tune"]

REPEATS = 5  # timings of a candidate; one that takes HOPELESS times the best median after the first is dropped
HOPELESS = 2.0
LARGE_KERNEL = 100  # taps from which on the Fourier transform pays
LEAST_CHANNELS = 16  # below, transforms cost more than they save
MOST_WEIGHTS = 160_000  # of filters that stay in the second-level cache while compiled `direct` runs
LANES = 16  # filters are as good as so many, or a multiple, to compiled `direct`
MOVED = {2: 24, 4: 50}  # multiply-adds that an element costs which passes through Winograd's transforms, compiled
MOVED_BY_NUMPY = 60
GATHERED, GATHERED_BY_NUMPY = 16.0, 4.0  # the same of an element of a window that is gathered


class Problem(NamedTuple):
    """What a choice depends on: x (N, H, W, C) in `dtype`, the filters, the window and the groups."""

    x: Shape
    filters: int
    win: Window
    groups: int
    dtype: str

    @property
    def pixels(self) -> int:
        """Outputs of one filter."""
        return self.x[0] * math.prod(self.win.out_size((self.x[1], self.x[2])))


class Algorithm(NamedTuple):
    """One way to convolve: forward(x, W, win, groups, b), grad_weights(x, dy, win, groups), grad_data(...).

    `coarse` if its rounding errors exceed those of the definition.
    """

    applies: Callable[[Window, int], bool]
    forward: Callable[[Array, Array, Window, int, Array | None], Array]
    grad_weights: Callable[[Array, Array, Window, int], Array]
    grad_data: Callable[[Array, Array, Pair, Window, int], Array]
    coarse: bool = False


def _winograd(m: int, coarse: bool) -> Algorithm:
    return Algorithm(
        winograd.applies,
        lambda x, W, win, groups, b: winograd.winograd(x, W, win, b, m),
        lambda x, dy, win, groups: winograd.winograd_grad_weights(x, dy, win, m),
        lambda dy, W, size, win, groups: winograd.winograd_grad_data(dy, W, size, win, m),
        coarse,
    )


ALGORITHMS = {
    "im2row": Algorithm(lambda win, groups: True, conv.conv2d, conv.conv2d_grad_weights, conv.conv2d_grad_data),
    "direct": Algorithm(
        direct.applies,
        lambda x, W, win, groups, b: direct.direct(x, W, win, b),
        lambda x, dy, win, groups: direct.direct_grad_weights(x, dy, win),
        lambda dy, W, size, win, groups: direct.direct_grad_data(dy, W, size, win),
    ),
    "fft": Algorithm(fft.applies, fft.fft, fft.fft_grad_weights, fft.fft_grad_data, coarse=True),
    "winograd2": _winograd(2, coarse=False),
    "winograd4": _winograd(4, coarse=True),
}
CHOICES = ("auto", "rule", "tuned", *ALGORITHMS)

_preferred = os.environ.get("SPARKDL_CONV", "rule")
_strict = os.environ.get("SPARKDL_CONV_STRICT", "0") == "1"


@contextmanager
def preferring(algorithm: str = "rule", strict: bool = False) -> Iterator[None]:
    """Inside, in all threads, what layers with algorithm="auto" take: "rule", "tuned", or one where it applies."""
    global _preferred, _strict
    if algorithm not in CHOICES[1:]:
        raise ValueError(f"There is no algorithm {algorithm!r} for convolution; there are {', '.join(CHOICES[1:])}.")
    before = _preferred, _strict
    _preferred, _strict = algorithm, strict
    try:
        yield
    finally:
        _preferred, _strict = before


def choose(wish: str, problem: Problem) -> Algorithm:
    """The algorithm for a problem. Raises ValueError where a layer's wish, unless "auto", does not apply to it."""
    name = _preferred if wish == "auto" else wish
    if name == "tuned":
        name = tune(problem, _strict, enabled())
    elif name == "rule":
        name = by_rule(problem, _strict)
    algorithm = ALGORITHMS[name]
    if not algorithm.applies(problem.win, problem.groups):
        if wish != "auto":
            raise ValueError(
                f"The algorithm {wish!r} does not apply to groups={problem.groups} and {problem.win}; leave the choice "
                f'to algorithm="auto"?'
            )
        algorithm = ALGORITHMS[by_rule(problem, _strict)]
    return algorithm


def by_rule(problem: Problem, strict: bool = False) -> str:
    """The algorithm that an estimate of the work, fitted to measurements, favours, with compiled kernels or without."""
    return _ruled(problem, strict, enabled())


@functools.lru_cache(maxsize=1024)
def _ruled(problem: Problem, strict: bool, compiled: bool) -> str:
    win, c, f = problem.win, problem.x[3], problem.filters
    taps = math.prod(win.kernel)
    if not strict and taps >= LARGE_KERNEL and problem.groups == 1 and min(c, f) >= 4 and fft.applies(win, 1):
        return "fft"
    work = {"im2row": taps * c * (f + (GATHERED if compiled else GATHERED_BY_NUMPY))}
    if compiled and _stays_in_registers(problem):
        work["direct"] = taps * c * -(-f // LANES) * LANES
    if winograd.applies(win, problem.groups) and min(c, f) >= LEAST_CHANNELS and problem.pixels > 0:
        work |= {f"winograd{m}": _winograd_work(problem, m, compiled) for m in (2, 4) if m == 2 or not strict}
    return min(work, key=lambda name: work[name])


def _stays_in_registers(problem: Problem) -> bool:
    """Whether compiled `direct` is at its best: a window larger than a pixel, and filters that fit the cache."""
    win = problem.win
    taps = math.prod(win.kernel)
    few = taps * problem.x[3] * problem.filters <= MOST_WEIGHTS
    return direct.applies(win, problem.groups) and taps > 1 and win.dilation[1] == 1 and few


def _winograd_work(problem: Problem, m: int, compiled: bool) -> float:
    """Multiply-adds for each output pixel, what moves memory counted as so many of them."""
    c, f, a = problem.x[3], problem.filters, m + 2
    oh, ow = problem.win.out_size((problem.x[1], problem.x[2]))
    tiles = problem.x[0] * -(-oh // m) * -(-ow // m)
    moved = MOVED[m] if compiled else MOVED_BY_NUMPY
    return (tiles * a * a * (c * f + moved * (c + f)) + 30 * a * a * c * f) / problem.pixels


@functools.cache
def tune(problem: Problem, strict: bool, compiled: bool) -> str:
    """The fastest on this machine: the median of a forward and a backward pass over random numbers. Measured once."""
    rng = np.random.default_rng(0)
    names = [
        name for name, a in ALGORITHMS.items() if a.applies(problem.win, problem.groups) and not (strict and a.coarse)
    ]
    if len(names) < 2 or problem.pixels < 1:
        return "im2row"
    win, kernel = problem.win, (*problem.win.kernel, problem.x[3] // problem.groups, problem.filters)
    out = (problem.x[0], *win.out_size((problem.x[1], problem.x[2])), problem.filters)
    x, W, dy = (rng.standard_normal(shape).astype(problem.dtype) for shape in (problem.x, kernel, out))
    best, fastest = math.inf, names[0]
    for name in names:
        run = functools.partial(_both_ways, ALGORITHMS[name], x, W, dy, problem)
        _seconds(run)  # compiles, and warms the caches
        times = [_seconds(run)]
        while len(times) < REPEATS and times[0] < HOPELESS * best:
            times.append(_seconds(run))
        if (median := statistics.median(times)) < best:
            best, fastest = median, name
    return fastest


def _both_ways(algorithm: Algorithm, x: Array, W: Array, dy: Array, problem: Problem) -> None:
    algorithm.forward(x, W, problem.win, problem.groups, None)
    algorithm.grad_weights(x, dy, problem.win, problem.groups)
    algorithm.grad_data(dy, W, (x.shape[1], x.shape[2]), problem.win, problem.groups)


def _seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
