"""Clipping by value and by global norm."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from sparkdl.optim import Clip, clip_by_norm, clip_by_value, norm

BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("grad", "max_norm", "expected", "found"),
    [
        ([3, 4], 1, [0.6, 0.8], 5),
        ([3, -4], 5, [3, -4], 5),
        ([3, 4], 6, [3, 4], 5),
        ([0, 0], 1, [0, 0], 0),
        ([], 1, [], 0),
        ([3e30, 4e30], 1, [0.6, 0.8], 5e30),  # the squares do not fit float32
    ],
)
def test_by_norm(grad: list[float], max_norm: float, expected: Any, found: float, dtype: Any) -> None:
    g = np.array(grad, dtype)
    assert clip_by_norm(g, max_norm) == pytest.approx(found)
    np.testing.assert_allclose(g, expected, rtol=1e-6)
    assert g.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_value(dtype: Any) -> None:
    g = np.array([-3, -0.5, 0, 0.5, 3, math.nan, math.inf], dtype)
    clip_by_value(g, 1)
    np.testing.assert_array_equal(g, np.array([-1, -0.5, 0, 0.5, 1, math.nan, 1], dtype))


def test_the_norm_is_summed_in_float64() -> None:
    """In float32 2^28 + 1 is 2^28, and a running sum would lose the ones."""
    g = np.ones(2**18, np.float32)
    g[0] = 2**14
    assert norm(g) ** 2 == pytest.approx(2**28 + 2**18 - 1, rel=1e-14)


def test_squares_beyond_float64_have_an_infinite_norm() -> None:
    assert norm(np.array([1e200, 1.0])) == math.inf


def test_no_copy_of_the_gradient() -> None:
    g = np.ones(1_000_000, np.float32)
    tracemalloc.start()
    try:
        Clip(value=0.5, norm=1.0).apply(g)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < g.nbytes / 10


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (Clip(), [3, 4]),
        (Clip(value=3.5), [3, 3.5]),
        (Clip(norm=1), [0.6, 0.8]),
        (Clip(norm=10), [3, 4]),
        (Clip(value=3, norm=1), [math.sqrt(0.5), math.sqrt(0.5)]),  # value first
        (Clip(value=10, norm=10), [3, 4]),
    ],
    ids=repr,
)
def test_clip_returns_the_norm_before(clip: Clip, expected: Any) -> None:
    g = np.array([3.0, 4.0])
    assert clip.apply(g) == 5.0
    np.testing.assert_allclose(g, expected, rtol=1e-12)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("clip", [Clip(), Clip(value=1), Clip(norm=1), Clip(value=1, norm=1)], ids=repr)
def test_a_gradient_that_is_not_finite_is_reported_and_left_alone(clip: Clip, bad: float) -> None:
    g = np.array([5.0, bad, -5.0], np.float32)
    assert not math.isfinite(clip.apply(g))
    np.testing.assert_array_equal(g, np.array([5.0, bad, -5.0], np.float32))


@pytest.mark.parametrize("limits", [{"value": 0}, {"norm": -1}, {"norm": math.nan}, {"value": math.inf}, {"norm": "1"}])
def test_wrong_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be a number in \(0, inf\)"):
        Clip(**limits)
