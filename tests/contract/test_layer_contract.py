"""What every layer promises, over the catalogue: gradients, shapes, dtypes, purity, persistence."""

from __future__ import annotations

import json
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

from sparkdl.nn import Array, BatchNorm, Ctx, Layout
from sparkdl.nn.codec import decode_layer, encode
from tests.catalogue import LAYERS, LayerCase

ROWS = 5
each_layer = pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
each_mode = pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])


class Result(NamedTuple):
    y: Array
    dx: Array
    g: Array


class Subject:
    """A catalogue row with random parameters, none of them zero or one by design of an initializer."""

    def __init__(self, case: LayerCase, dtype: Any = np.float64) -> None:
        self.case, self.layer = case, case.layer
        self.layout = Layout(case.layer.specs(case.in_shape))
        self.rng = np.random.default_rng(7)
        vec = self.layout.init(self.rng, np.float64)
        vec += 0.1 * self.rng.standard_normal(vec.shape)
        vec[self.layout.num_trainable :] = 0.5 + self.rng.random(self.layout.size - self.layout.num_trainable)
        self.vec = vec.astype(dtype)

    def x(self, rows: int = ROWS) -> Array:
        return self.case.make_x(self.rng, (rows, *self.case.in_shape)).astype(self.vec.dtype)

    def dy(self, rows: int = ROWS) -> Array:
        shape = (rows, *self.layer.out_shape(self.case.in_shape))
        return self.rng.standard_normal(shape).astype(self.vec.dtype)

    def forward(self, vec: Array, x: Array, train: bool) -> tuple[Array, Any]:
        ctx = Ctx(train=train, rng=np.random.default_rng(3))  # the same draws in every pass
        return self.layer.forward(self.layout.tree(vec), x, ctx)

    def run(self, x: Array, dy: Array, train: bool = True, g: Array | None = None) -> Result:
        g = np.zeros_like(self.vec) if g is None else g
        y, cache = self.forward(self.vec, x, train)
        dx = self.layer.backward(self.layout.tree(self.vec), cache, dy, self.layout.tree(g), Ctx(train=train))
        return Result(y, dx, g)


def assert_same_slope(numeric: float, analytic: float) -> None:
    assert abs(numeric - analytic) <= 1e-6 * max(1.0, abs(numeric)), f"numeric {numeric!r}, analytic {analytic!r}"


@each_layer
@each_mode
def test_input_gradient_is_the_adjoint(case: LayerCase, train: bool) -> None:
    s, eps = Subject(case), 1e-6
    x, u = s.x(), s.dy()
    if case.discrete:
        assert not s.run(x, u, train).dx.any()
        return
    v = np.where(x == case.mark, 0, s.rng.standard_normal(x.shape))  # a mark that is moved is none
    up, down = (s.forward(s.vec, x + e * v, train)[0] for e in (eps, -eps))
    assert_same_slope(np.vdot(u, (up - down) / (2 * eps)), np.vdot(s.run(x, u, train).dx, v))


@each_layer
@each_mode
def test_parameter_gradient_is_the_adjoint(case: LayerCase, train: bool) -> None:
    s, eps = Subject(case), 1e-6
    n = s.layout.num_trainable
    if n == 0:
        assert s.run(s.x(), s.dy(), train).g.size == s.layout.size - n
        return
    x, u, v = s.x(), s.dy(), np.zeros_like(s.vec)
    v[:n] = s.rng.standard_normal(n)
    up, down = (s.forward(s.vec + e * v, x, train)[0] for e in (eps, -eps))
    assert_same_slope(np.vdot(u, (up - down) / (2 * eps)), np.vdot(s.run(x, u, train).g[:n], v[:n]))


@each_layer
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_shapes(case: LayerCase, rows: int) -> None:
    s = Subject(case)
    for train in (False, True):
        y, dx, _ = s.run(s.x(rows), s.dy(rows), train)
        assert y.shape == (rows, *case.layer.out_shape(case.in_shape))
        assert dx.shape == (rows, *case.in_shape)
        assert np.isfinite(y).all()
        assert np.isfinite(dx).all()


@each_layer
@each_mode
def test_no_rows_add_nothing(case: LayerCase, train: bool) -> None:
    s = Subject(case)
    before = s.rng.standard_normal(s.layout.size)
    assert np.array_equal(s.run(s.x(0), s.dy(0), train, before.copy()).g, before)


@each_layer
def test_gradients_are_added(case: LayerCase) -> None:
    s = Subject(case)
    x, dy = s.x(), s.dy()
    before = s.rng.standard_normal(s.layout.size)
    np.testing.assert_allclose(s.run(x, dy, g=before.copy()).g, before + s.run(x, dy).g, rtol=1e-12, atol=1e-12)


@each_layer
@each_mode
def test_parameters_get_the_same_gradient_where_dx_is_not_wanted(case: LayerCase, train: bool) -> None:
    s = Subject(case)
    x, dy = s.x(), s.dy()
    x0, dy0, g = x.copy(), dy.copy(), np.zeros_like(s.vec)
    _, cache = s.forward(s.vec, x, train)
    case.layer.backward(s.layout.tree(s.vec), cache, dy, s.layout.tree(g), Ctx(train=train, dx=False))
    assert np.array_equal(g, s.run(x0, dy0, train).g)
    assert np.array_equal(x, x0)
    assert np.array_equal(dy, dy0)


@each_layer
def test_evaluation_takes_rows_one_by_one(case: LayerCase) -> None:
    s = Subject(case)
    x = s.x()
    whole = s.forward(s.vec, x, train=False)[0]
    parts = [s.forward(s.vec, x[i : i + 1], train=False)[0] for i in range(ROWS)]
    np.testing.assert_allclose(whole, np.concatenate(parts), rtol=1e-12, atol=1e-12)


@each_layer
@each_mode
def test_float32_stays_float32(case: LayerCase, train: bool) -> None:
    s, exact = Subject(case, np.float32), Subject(case)
    y, dx, _ = s.run(s.x(), s.dy(), train)
    assert (y.dtype, dx.dtype) == (np.float32, np.float32)
    reference = exact.run(exact.x(), exact.dy(), train)
    if not train:  # in training, dropout draws other masks in another dtype
        np.testing.assert_allclose(y, reference.y, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dx, reference.dx, rtol=1e-4, atol=1e-4)


@each_layer
@each_mode
def test_inputs_are_left_alone(case: LayerCase, train: bool) -> None:
    s = Subject(case)
    x, dy, vec = s.x(), s.dy(), s.vec.copy()
    x0, dy0 = x.copy(), dy.copy()
    for array in (x, dy, s.vec):
        array.flags.writeable = False
    s.run(x, dy, train)
    assert np.array_equal(x, x0)
    assert np.array_equal(dy, dy0)
    assert np.array_equal(s.vec, vec)


def strided(a: Array) -> list[Array]:
    """Arrays equal to a that are not contiguous: every other element of a larger one, reversed, and axes swapped."""
    wide = np.full((*a.shape[:-1], 2 * a.shape[-1]), np.nan, a.dtype)
    wide[..., ::2] = a
    tall = np.full((2 * len(a), *a.shape[1:]), np.nan, a.dtype)
    tall[::2] = a
    return [wide[..., ::2], tall[::2], a[:, ::-1].copy()[:, ::-1], a.T.copy().T]


@each_layer
@pytest.mark.parametrize("how", range(4), ids=["last-axis", "rows", "reversed", "transposed"])
def test_strides_do_not_matter(case: LayerCase, how: int) -> None:
    s = Subject(case)
    x, dy = s.x(), s.dy()
    for got, expected in zip(s.run(strided(x)[how], strided(dy)[how]), s.run(x, dy), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


NORMS = [case for case in LAYERS if isinstance(case.layer, BatchNorm)]


@pytest.mark.parametrize("case", NORMS, ids=lambda case: case.id)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_buffers_get_rows_times_their_new_value(case: LayerCase, rows: int) -> None:
    s = Subject(case)
    x = s.x(rows)
    added, old = s.layout.tree(s.run(x, s.dy(rows)).g), s.layout.tree(s.vec)
    values, kept = x.reshape(-1, x.shape[-1]), case.layer.momentum
    mean = kept * old["mean"] + (1 - kept) * values.mean(axis=0)
    var = kept * old["var"] + (1 - kept) * values.var(axis=0, ddof=1) if len(values) > 1 else old["var"]
    np.testing.assert_allclose(added["mean"], rows * mean, rtol=1e-12)
    np.testing.assert_allclose(added["var"], rows * var, rtol=1e-12)


@each_layer
def test_layers_are_small_values(case: LayerCase) -> None:
    pickled = pickle.dumps(case.layer)
    copy = pickle.loads(pickled)
    assert copy == case.layer
    assert hash(copy) == hash(case.layer)
    assert len(pickled) < 4096
    with pytest.raises((AttributeError, TypeError)):
        case.layer.anything = 1


@each_layer
def test_layers_are_data(case: LayerCase) -> None:
    data = json.loads(json.dumps(encode(case.layer)))
    assert decode_layer(data) == case.layer


@each_layer
def test_multiply_adds_are_counted(case: LayerCase) -> None:
    madds = case.layer.madds(case.in_shape)
    assert isinstance(madds, int)
    names = {name.split("/")[-1] for name in case.layer.specs(case.in_shape)}
    assert (madds > 0) == any(name.startswith(("W", "U")) for name in names)  # weights; a table is looked up
