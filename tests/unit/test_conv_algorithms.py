"""The algorithms of convolution: each is the definition, and the choice among them is what was asked for."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from sparkdl.compiled import compiling
from sparkdl.nn import Conv2D, Ctx
from sparkdl.ops import algorithms, conv, direct, fft, winograd
from sparkdl.ops.algorithms import ALGORITHMS, Problem, by_rule, choose, preferring, tune
from sparkdl.ops.window import Window
from tests.conv_cases import CASES, Case, by_loops, each_case

RNG = np.random.default_rng(6)
PADDED = Window((3, 3), pads=((1, 1), (1, 1)))

# Tiles that overhang, images smaller than a tile, none of whose sizes is a multiple of another.
CASES = CASES | {
    "tiles-overhang": Case((11, 6), PADDED, channels=5, filters=3),
    "smaller-than-a-tile": Case((1, 2), PADDED, channels=2, filters=2),
    "cropped-by-half": Case((9, 10), Window((3, 3), pads=((0, 2), (1, 0))), channels=4, filters=6),
    "large-kernel": Case((12, 13), Window((7, 9), pads=((3, 3), (4, 4)))),
}


@pytest.fixture(params=["plain", "compiled"])
def twins(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything in NumPy, then with compiled twins."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    with compiling(request.param == "compiled"):
        yield


@pytest.fixture(params=["one-block", "many-blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in one block, or in blocks so small that they cut images."""
    monkeypatch.setattr(winograd, "PART_ELEMENTS", 1)
    monkeypatch.setattr(winograd, "LEAST_PART", 2)
    if request.param == "many-blocks":
        monkeypatch.setattr(conv, "BLOCK_PIXELS", (1, 7))
        monkeypatch.setattr(direct, "BLOCK_ELEMENTS", 40)
        monkeypatch.setattr(fft, "BLOCK_ELEMENTS", 1)
        monkeypatch.setattr(winograd, "BLOCK_ELEMENTS", 1)
        monkeypatch.setattr(winograd, "MOST_TILES", 3)


def problem(case: Case, rows: int = 3) -> Problem:
    return Problem((rows, *case.size, case.channels), case.filters, case.win, case.groups, "<f8")


class Reference(NamedTuple):
    """x, W, dy and b; y by its definition; <dy, y(x', W)> and <dy, y(x, W')> for other x', W'."""

    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
    b: np.ndarray
    y: np.ndarray
    other_x: np.ndarray
    other_W: np.ndarray
    along_x: float
    along_W: float


@functools.cache
def reference(kind: str) -> Reference:
    case = CASES[kind]
    x, W, dy = case.arrays()
    other_x, other_W, _ = case.arrays()
    y, y_x, y_W = (by_loops(*pair, case.win, case.groups) for pair in ((x, W), (other_x, W), (x, other_W)))
    b = RNG.standard_normal(case.filters)
    return Reference((x, W, dy), b, y, other_x, other_W, float(np.vdot(dy, y_x)), float(np.vdot(dy, y_W)))


APPLYING = [(name, k) for name, a in ALGORITHMS.items() for k, c in CASES.items() if a.applies(c.win, c.groups)]


@pytest.mark.parametrize(("name", "kind"), APPLYING, ids=["-".join(pair) for pair in APPLYING])
@pytest.mark.usefixtures("twins", "blocks")
def test_every_algorithm_is_the_definition(name: str, kind: str) -> None:
    algorithm, case, known = ALGORITHMS[name], CASES[kind], reference(kind)
    x, W, dy = known.arrays
    for bias in (None, known.b):
        y = algorithm.forward(x, W, case.win, case.groups, bias)
        np.testing.assert_allclose(y, known.y + (0 if bias is None else bias), rtol=1e-11, atol=1e-11)
    dx = algorithm.grad_data(dy, W, case.size, case.win, case.groups)
    dW = algorithm.grad_weights(x, dy, case.win, case.groups)
    assert (dx.shape, dW.shape) == (x.shape, W.shape)
    np.testing.assert_allclose(np.vdot(dx, known.other_x), known.along_x, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.vdot(dW, known.other_W), known.along_W, rtol=1e-10, atol=1e-10)


def test_each_applies_where_it_can() -> None:
    applying = {name: {kind for other, kind in APPLYING if other == name} for name in ALGORITHMS}
    assert applying["im2row"] == applying["fft"] == set(CASES)
    assert {"1x1-padded", "dilation", "stride", "mostly-padding"} <= applying["direct"]
    assert not {"groups", "depthwise"} & applying["direct"]
    assert applying["winograd2"] == applying["winograd4"]
    assert {"3x3", "tiles-overhang", "mostly-padding"} <= applying["winograd4"]
    assert not {"1x1", "stride", "dilation", "groups", "few-channels"} & applying["winograd4"]


BOUNDS = {"im2row": 7e-7, "direct": 3e-6, "fft": 5e-7, "winograd2": 1e-6, "winograd4": 1.5e-5}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("channels", [16, 256])
@pytest.mark.usefixtures("twins")
def test_errors_in_float32_are_as_stated(name: str, channels: int) -> None:
    case = Case((8, 8), PADDED, channels, channels)
    x, W, dy = case.arrays(rows=2, dtype=np.float32)
    algorithm, exact = ALGORITHMS[name], ALGORITHMS["im2row"]
    wide = x.astype(float), W.astype(float), dy.astype(float)
    pairs = [
        (algorithm.forward(x, W, PADDED, 1, None), exact.forward(wide[0], wide[1], PADDED, 1, None)),
        (algorithm.grad_weights(x, dy, PADDED, 1), exact.grad_weights(wide[0], wide[2], PADDED, 1)),
        (algorithm.grad_data(dy, W, (8, 8), PADDED, 1), exact.grad_data(wide[2], wide[1], (8, 8), PADDED, 1)),
    ]
    for got, expected in pairs:
        assert got.dtype == np.float32
        assert np.abs(got - expected).max() / np.abs(expected).max() < BOUNDS[name]


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if ALGORITHMS[name].applies(PADDED, 1)])
@pytest.mark.usefixtures("twins")
def test_no_rows(name: str) -> None:
    x, W, dy = Case((5, 6), PADDED).arrays(rows=0)
    algorithm = ALGORITHMS[name]
    assert algorithm.forward(x, W, PADDED, 1, None).shape == dy.shape
    assert algorithm.grad_data(dy, W, (5, 6), PADDED, 1).shape == x.shape
    assert not algorithm.grad_weights(x, dy, PADDED, 1).any()


@each_case
def test_the_rule_names_what_applies(case: Case) -> None:
    for strict in (False, True):
        name = by_rule(problem(case), strict)
        assert ALGORITHMS[name].applies(case.win, case.groups)
        assert not (strict and ALGORITHMS[name].coarse)


@pytest.mark.parametrize(
    ("case", "name", "strict_name"),
    [
        (Case((32, 32), PADDED, 16, 16), "direct", "direct"),
        (Case((32, 32), PADDED, 64, 64), "winograd4", "winograd2"),
        (Case((2, 2), PADDED, 512, 512), "winograd2", "winograd2"),
        (Case((32, 32), PADDED, 3, 64), "direct", "direct"),
        (Case((32, 32), Window((3, 3), (2, 2)), 64, 64), "direct", "direct"),
        (Case((32, 32), Window((3, 3), (2, 2)), 256, 256), "im2row", "im2row"),
        (Case((32, 32), Window((3, 3), dilation=(2, 2)), 64, 64), "im2row", "im2row"),
        (Case((32, 32), Window((1, 1)), 64, 64), "im2row", "im2row"),
        (Case((64, 64), Window((15, 15)), 8, 8), "fft", "direct"),
    ],
)
def test_the_rule_on_known_shapes(case: Case, name: str, strict_name: str) -> None:
    pytest.importorskip("numba")
    with compiling(True):
        assert by_rule(problem(case, 64)) == name
        assert by_rule(problem(case, 64), strict=True) == strict_name


def test_strict_accuracy_keeps_coarse_algorithms_out() -> None:
    pytest.importorskip("numba")
    shape = Problem((64, 32, 32, 64), 64, PADDED, 1, "<f4")
    with compiling(True), preferring(strict=True):
        assert choose("auto", shape) is ALGORITHMS["winograd2"]
        assert choose("winograd4", shape) is ALGORITHMS["winograd4"]  # asked for by name
    assert choose("auto", shape) is ALGORITHMS["winograd4"]


def test_a_preference_gives_way_where_it_does_not_apply() -> None:
    strided = Problem((2, 8, 8, 4), 4, Window((3, 3), (2, 2)), 1, "<f4")
    with preferring("winograd4"):
        assert choose("auto", strided) is ALGORITHMS[by_rule(strided)]
        assert choose("auto", strided._replace(win=PADDED)) is ALGORITHMS["winograd4"]
    with pytest.raises(ValueError, match=r"'winograd4' does not apply .*leave the choice"):
        choose("winograd4", strided)
    with pytest.raises(ValueError, match=r"no algorithm 'gemm'.*rule, tuned, im2row"), preferring("gemm"):
        pass


def test_the_tuner_takes_the_fastest_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = {"im2row": 3.0, "direct": 9.0, "fft": 2.0, "winograd2": 1.0, "winograd4": 0.5}
    runs: list[str] = []

    def seconds(run: object) -> float:
        runs.append(next(n for n, a in ALGORITHMS.items() if a is run.args[0]))  # type: ignore[attr-defined]
        return cost[runs[-1]]

    monkeypatch.setattr(algorithms, "_seconds", seconds)
    shape = Problem((2, 9, 9, 3), 5, PADDED, 1, "<f4")
    try:
        assert tune(shape, False, False) == "winograd4"
        assert {name: runs.count(name) for name in cost} == {
            "im2row": 6,
            "direct": 2,
            "fft": 6,
            "winograd2": 6,
            "winograd4": 6,
        }  # a warm-up, and five timings unless the first is hopeless
        count = len(runs)
        assert tune(shape, False, False) == "winograd4"
        assert len(runs) == count
        assert tune(shape, True, False) == "winograd2"
    finally:
        tune.cache_clear()


def test_the_tuner_runs() -> None:
    name = tune(Problem((2, 6, 6, 3), 4, PADDED, 1, "<f4"), False, False)
    assert name in ALGORITHMS
    assert tune(Problem((0, 6, 6, 3), 4, PADDED, 1, "<f4"), False, False) == "im2row"


@pytest.mark.parametrize("name", ["auto", "rule", "tuned", *ALGORITHMS])
def test_a_layer_gives_the_same_by_any_algorithm(name: str) -> None:
    x, W, _ = Case((8, 9), PADDED, 16, 16).arrays()
    p, g = {"W": W, "b": RNG.standard_normal(16)}, {"W": np.zeros_like(W), "b": np.zeros(16)}
    layer = Conv2D(16, 3, algorithm=name)
    y, cache = layer.forward(p, x, Ctx(train=True))
    np.testing.assert_allclose(y, by_loops(x, W, PADDED, 1) + p["b"], rtol=1e-11, atol=1e-11)
    dx = layer.backward(p, cache, y, g, Ctx(train=True))
    assert math.isclose(np.vdot(dx, x), np.vdot(y, y - p["b"]), rel_tol=1e-11)
    assert math.isclose(np.vdot(g["W"], W), np.vdot(y, y - p["b"]), rel_tol=1e-11)


def test_a_layer_refuses_an_algorithm_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"Conv2D\(algorithm='gemm'\): algorithm must be one of auto, direct"):
        Conv2D(4, 3, algorithm="gemm")
