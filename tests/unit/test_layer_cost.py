"""Closed forms of costs against plain loops that count what they do, and that compute what the layer computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparkdl import nn
from sparkdl.nn import Cost, Ctx, Layout
from sparkdl.nn.cost import tree
from sparkdl.nn.zoo import ZOO
from tests.catalogue import LAYERS, LayerCase
from tests.counting import Counter, Number, dot, largest, numbers, sigmoid, together, total, values

Loop = Callable[[Any, Any, Any], Any]  # (layer, parameters, x) -> y, for one sample


def padded(x: Any, pads: Any) -> Any:
    (top, bottom), (left, right) = pads
    zero = Number(0.0, x.ravel()[0].counter)
    y = np.full((top + len(x) + bottom, left + x.shape[1] + right, x.shape[2]), zero, object)
    y[top : top + len(x), left : left + x.shape[1]] = x
    return y


def places(x: Any, kernel: Any, stride: Any = (1, 1), dilation: Any = (1, 1)) -> Any:
    """(h, w) -> the window there, of a padded image."""
    ends = [n - (k - 1) * d for n, k, d in zip(x.shape, kernel, dilation, strict=False)]
    rows, cols = (range(0, end, s) for end, s in zip(ends, stride, strict=True))
    return {
        (i, j): x[h : h + (kernel[0] - 1) * dilation[0] + 1 : dilation[0]][
            :, w : w + (kernel[1] - 1) * dilation[1] + 1 : dilation[1]
        ]
        for i, h in enumerate(rows)
        for j, w in enumerate(cols)
    }


def of_places(parts: dict[tuple[int, int], list[Number]]) -> Any:
    h, w = max(parts)
    return np.array([[parts[i, j] for j in range(w + 1)] for i in range(h + 1)], object)


def dense(layer: Any, p: Any, x: Any) -> Any:
    more = [[b] for b in p["b"]] if layer.bias else [[]] * layer.units
    rows = x.reshape(-1, x.shape[-1])
    y = [[dot(row, p["W"][:, k], *more[k]) for k in range(layer.units)] for row in rows]
    return np.array(y, object).reshape(*x.shape[:-1], layer.units)


def conv(layer: Any, p: Any, x: Any, pads: Any = ((1, 1), (1, 1))) -> Any:
    W, per = p["W"], layer.filters // layer.groups
    stride, dilation = ((n, n) if isinstance(n, int) else n for n in (layer.stride, layer.dilation))
    out = {}
    for at, seen in places(padded(x, pads), W.shape[:2], stride, dilation).items():
        y = []
        for f in range(layer.filters):
            c = f // per * W.shape[2]
            more = [p["b"][f]] if layer.bias else []
            y.append(dot(seen[:, :, c : c + W.shape[2]].ravel(), W[..., f].ravel(), *more))
        out[at] = y
    return of_places(out)


def unpadded(layer: Any, p: Any, x: Any) -> Any:
    return conv(layer, p, x, ((0, 0), (0, 0)))


def transposed(layer: Any, p: Any, x: Any) -> Any:
    """Every product is added to an output that starts at the bias or at zero."""
    (kh, kw, _, filters), s, d = p["W"].shape, layer.stride, layer.dilation
    size = [(n - 1) * s + (k - 1) * d + 1 for n, k in zip(x.shape, (kh, kw), strict=False)]
    zero = Number(0.0, x.ravel()[0].counter)
    terms = {at: [p["b"][at[2]] if layer.bias else zero] for at in np.ndindex(*size, filters)}
    for h, w, ch, i, j, f in np.ndindex(*x.shape, kh, kw, filters):
        terms[h * s + i * d, w * s + j * d, f].append(x[h, w, ch] * p["W"][i, j, ch, f])
    return np.array([total(terms[at]) for at in np.ndindex(*size, filters)], object).reshape(*size, filters)


def local(layer: Any, p: Any, x: Any) -> Any:
    out = {}
    for at, seen in places(x, p["W"].shape[2:4]).items():
        ks = range(layer.filters)
        out[at] = [dot(seen.ravel(), p["W"][at][..., f].ravel(), *([p["b"][at][f]] if layer.bias else [])) for f in ks]
    return of_places(out)


def max_pool(layer: Any, p: Any, x: Any) -> Any:
    seen = places(x, (2, 2), (2, 2))
    return of_places({at: [largest(part[..., c].ravel()) for c in range(x.shape[2])] for at, part in seen.items()})


def avg_pool(layer: Any, p: Any, x: Any) -> Any:
    seen = places(x, (2, 3), (2, 3))
    return of_places({at: [total(part[..., c].ravel()) / 6 for c in range(x.shape[2])] for at, part in seen.items()})


def mean_of_all(layer: Any, p: Any, x: Any) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    return np.array([total(column) / len(rows) for column in rows.T], object)


def batch_norm(layer: Any, p: Any, x: Any) -> Any:
    gamma, beta, mean, var = (values(p[k]) for k in ("gamma", "beta", "mean", "var"))
    s = gamma / np.sqrt(var + layer.eps)
    t = beta - mean * s
    return x * s + t


def normalised(row: Any, eps: float) -> list[Number]:
    mean = total(row) / len(row)
    centred = [x - mean for x in row]
    root = (total([c * c for c in centred]) / len(row) + eps).apply(math.sqrt)
    return [c / root for c in centred]


def scaled(layer: Any, p: Any, row: Any) -> Any:
    return [n * a + b for n, a, b in zip(row, p["gamma"], p["beta"], strict=True)] if layer.affine else row


def layer_norm(layer: Any, p: Any, x: Any) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    return np.array([scaled(layer, p, normalised(row, layer.eps)) for row in rows], object).reshape(x.shape)


def group_norm(layer: Any, p: Any, x: Any) -> Any:
    y, width = np.empty(x.shape, object), x.shape[2] // layer.groups
    for c in range(0, x.shape[2], width):
        part = x[..., c : c + width]
        y[..., c : c + width] = np.array(normalised(part.ravel(), layer.eps), object).reshape(part.shape)
    rows = y.reshape(-1, x.shape[2])
    return np.array([scaled(layer, p, row) for row in rows], object).reshape(x.shape)


def softmax_row(row: Any) -> list[Number]:
    top = largest(row)
    powers = [(x - top).apply(math.exp) for x in row]
    whole = total(powers)
    return [e / whole for e in powers]


def softmax(layer: Any, p: Any, x: Any) -> Any:
    return np.array([softmax_row(row) for row in x], object)


def log_softmax(layer: Any, p: Any, x: Any) -> Any:
    y = []
    for row in x:
        top = largest(row)
        shifted = [n - top for n in row]
        log = total([s.apply(math.exp) for s in shifted]).apply(math.log)
        y.append([s - log for s in shifted])
    return np.array(y, object)


def relu(layer: Any, p: Any, x: Any) -> Any:
    return np.array([n.apply(lambda v: max(v, 0.0)) for n in x.ravel()], object).reshape(x.shape)


def tanh(n: Number) -> Number:
    return n.apply(math.tanh)


def gate(p: Any, x: Any, h: Any, k: int, f: Callable[[Number], Number] = sigmoid) -> list[Number]:
    """The k-th gate of a cell."""
    units = len(h)
    columns = range(k * units, (k + 1) * units)
    bias = [[p["b"][j]] if "b" in p else [] for j in columns]
    sums = [dot([*x, *h], [*p["W"][:, j], *p["U"][:, j]], *more) for j, more in zip(columns, bias, strict=True)]
    return [f(s) for s in sums]


def rnn_step(p: Any, x: Any, state: Any) -> Any:
    return (gate(p, x, state[0], 0, tanh),)


def lstm_step(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    o, i, f = (gate(p, x, h, k) for k in range(3))
    g = gate(p, x, h, 3, tanh)
    c = [f[j] * c[j] + i[j] * g[j] for j in range(len(h))]
    return [o[j] * tanh(c[j]) for j in range(len(h))], c


def gru_step(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    r, z = (gate(p, x, h, k) for k in range(2))
    y = []
    for j in range(len(h)):
        column = 2 * len(h) + j
        of_x = dot(x, p["W"][:, column], *([p["b"][column]] if "b" in p else []))
        q = dot(h, p["U"][:, column], *([p["bU"][j]] if "b" in p else []))
        n = tanh(of_x + r[j] * q)
        y.append(n + z[j] * (h[j] - n))
    return (y,)


def recurrent(step: Any, states: int) -> Loop:
    def run(layer: Any, p: Any, x: Any) -> Any:
        zero = [Number(0.0, x.ravel()[0].counter)] * layer.units
        rows = list(x)
        for name in (f"l{i}" for i in range(layer.layers)):
            ways = []
            for way in [name, f"{name}_reverse"][: 1 + layer.bidirectional]:
                state, ys = (zero,) * states, []
                for row in rows[:: -1 if way.endswith("reverse") else 1]:
                    row, *state = together(row, *state)
                    state = step(p[way], row, state)
                    ys.append(state[0])
                ways.append(ys[:: -1 if way.endswith("reverse") else 1])
            last = [*ways[0][-1], *(ways[1][0] if layer.bidirectional else [])]
            rows = [[n for way in ways for n in way[t]] for t in range(len(x))]
        return np.array(rows if layer.return_sequences else last, object)

    return run


def attention(layer: Any, p: Any, x: Any) -> Any:
    (t, d), width = x.shape, x.shape[1] // layer.heads
    qkv = dense(nn.Dense(3 * d, bias=layer.bias), p, x)
    y = np.empty((t, d), object)
    for head in range(layer.heads):
        q, k, v = (qkv[:, i * d + head * width :][:, :width] for i in range(3))
        for row in range(t):
            shares = softmax_row([dot(q[row], k[s]) * (1 / math.sqrt(width)) for s in range(t)])
            y[row, head * width :][:width] = [dot(shares, v[:, j]) for j in range(width)]
    out = {"W": p["Wo"]} | ({"b": p["bo"]} if layer.bias else {})
    return dense(nn.Dense(d, bias=layer.bias), out, y)


def residual(layer: Any, p: Any, x: Any) -> Any:
    return dense(layer.body, p["body"], x) + dense(layer.shortcut, p["shortcut"], x)


def joined(layer: Any, p: Any, x: Any) -> Any:
    one, two = (dense(f, p[k], x) for f, k in zip(layer.branches, ("dense_0", "dense_1"), strict=True))
    return np.concatenate([one, two])


def in_a_row(layer: Any, p: Any, x: Any) -> Any:
    return relu(None, {}, dense(layer.layers[0], p["dense_0"], x))


def inside(layer: Any, p: Any, x: Any) -> Any:
    return dense(layer.block, p["block"], x)


def block(layer: Any, p: Any, x: Any) -> Any:
    def add(a: Any, b: Any) -> Any:
        return a + b

    a = add(x, attention(nn.MultiHeadAttention(2), p["attention"], layer_norm(nn.LayerNorm(), p["norm1"], x)))
    mlp, width = p["mlp"], x.shape[1]
    inner = relu(None, {}, dense(nn.Dense(4 * width), mlp["dense_0"], layer_norm(nn.LayerNorm(), p["norm2"], a)))
    return add(a, dense(nn.Dense(width), mlp["dense_2"], inner))


def graph(layer: Any, p: Any, x: Any) -> Any:
    first = dense(nn.Dense(3), p["a"], x)
    second = dense(nn.Dense(3), p["a"], first)  # shared
    (joined,) = together(np.concatenate([first, second]))
    terms = together(dense(nn.Dense(3), p["b"], joined), first, second)
    return np.array([total(list(three)) for three in zip(*terms, strict=True)], object)


def bilinear(layer: Any, p: Any, x: Any) -> Any:
    def enlarged(x: Any) -> Any:
        """Twice as many rows, three quarters of one neighbour and one quarter of the other."""
        y = []
        for i in range(2 * len(x)):
            near, far = i // 2, min(max(i // 2 + (1 if i % 2 else -1), 0), len(x) - 1)
            y.append(x[near] * 0.75 + x[far] * 0.25)
        return np.array(y, object)

    return np.swapaxes(enlarged(np.swapaxes(enlarged(x), 0, 1)), 0, 1)


GRAPH = nn.Graph(
    [
        nn.Node("a", "input", nn.Dense(3)),
        nn.Node("c", "a", shares="a"),
        nn.Node("b", ("a", "c"), nn.Dense(3)),
        nn.Node("y", ("b", "a", "c"), merge="add"),
    ],
    "y",
)
IMAGE = (6, 5, 4)
CASES: list[tuple[nn.Layer, tuple[int, ...], Loop]] = [
    (nn.Dense(3), (5,), dense),
    (nn.Dense(3, bias=False), (8,), dense),
    (nn.Dense(2), (3, 4), dense),
    (nn.Conv2D(3, 3), IMAGE, conv),
    (nn.Conv2D(4, 3, stride=2, padding=1, groups=2, bias=False), IMAGE, conv),
    (nn.Conv2D(2, 2, dilation=(2, 3), padding="valid"), IMAGE, unpadded),
    (nn.Conv2DTranspose(2, 3, padding="valid", stride=2), (3, 2, 3), transposed),
    (nn.Conv2DTranspose(2, 3, padding="valid", stride=2, bias=False), (3, 4, 2), transposed),
    (nn.Conv2DTranspose(1, 2, padding="valid", stride=3), (2, 2, 3), transposed),
    (nn.Conv2DTranspose(1, 3, padding="valid", stride=2, dilation=2, bias=False), (4, 4, 1), transposed),
    (nn.LocallyConnected2D(2, 3), (4, 4, 2), local),
    (nn.LocallyConnected2D(2, 2, bias=False), (3, 4, 2), local),
    (nn.MaxPool2D(), IMAGE, max_pool),
    (nn.AvgPool2D((2, 3)), IMAGE, avg_pool),
    (nn.GlobalAvgPool(), IMAGE, mean_of_all),
    (nn.GlobalAvgPool(), (6, 4), mean_of_all),
    (nn.BatchNorm(), IMAGE, batch_norm),
    (nn.LayerNorm(), (3, 5), layer_norm),
    (nn.LayerNorm(affine=False), (4,), layer_norm),
    (nn.GroupNorm(2), (2, 3, 4), group_norm),
    (nn.Softmax(), (2, 5), softmax),
    (nn.LogSoftmax(), (2, 4), log_softmax),
    (nn.ReLU(), IMAGE, relu),
    (nn.UpSample2D(mode="bilinear"), (3, 2, 2), bilinear),
    (nn.SimpleRNN(3, return_sequences=True), (4, 2), recurrent(rnn_step, 1)),
    (nn.LSTM(2, layers=3), (4, 5), recurrent(lstm_step, 2)),
    (nn.LSTM(2, bias=False), (3, 1), recurrent(lstm_step, 2)),
    (nn.LSTM(2, layers=2, bidirectional=True, return_sequences=True), (3, 4), recurrent(lstm_step, 2)),
    (nn.GRU(3, layers=2), (3, 2), recurrent(gru_step, 1)),
    (nn.GRU(3, bias=False), (2, 4), recurrent(gru_step, 1)),
    (nn.MultiHeadAttention(2), (3, 4), attention),
    (nn.MultiHeadAttention(1, bias=False), (5, 3), attention),
    (nn.Residual(nn.Dense(3), nn.Dense(3, bias=False)), (4,), residual),
    (nn.Concat([nn.Dense(3), nn.Dense(2, bias=False)]), (4,), joined),
    (nn.Sequential([nn.Dense(3), nn.ReLU()]), (4,), in_a_row),
    (nn.Checkpointed(nn.Dense(3)), (4,), inside),
    (nn.TransformerBlock(2, activation=nn.ReLU()), (3, 4), block),
    (GRAPH, (3,), graph),
]


def trees(p: Any, counter: Counter) -> Any:
    return {k: trees(v, counter) if isinstance(v, dict) else numbers(v, counter) for k, v in p.items()}


@pytest.mark.parametrize(("layer", "in_shape", "loop"), CASES, ids=[type(c[0]).__name__ for c in CASES])
def test_operations_and_depth_are_those_of_a_plain_loop(layer: nn.Layer, in_shape: Any, loop: Loop) -> None:
    rng, counter = np.random.default_rng(0), Counter()
    layout = Layout(layer.specs(in_shape))
    vec = 0.5 + rng.random(layout.size)
    x = rng.standard_normal((1, *in_shape))
    y = loop(layer, trees(layout.tree(vec), counter), numbers(x[0], counter))
    np.testing.assert_allclose(values(y), layer.forward(layout.tree(vec), x, Ctx())[0][0], rtol=1e-10, atol=1e-12)
    cost = layer.cost(in_shape)
    assert (cost.work, cost.depth) == (counter.work, max(n.depth for n in y.ravel()))


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
def test_memory_is_that_of_what_layers_read_and_keep(case: LayerCase) -> None:
    layer, cost = case.layer, case.layer.cost(case.in_shape)
    assert cost.parameters == Layout(layer.specs(case.in_shape)).size
    views = (nn.Flatten, nn.Reshape, nn.Permute, nn.Crop2D, nn.Dropout)
    if isinstance(layer, nn.Embedding):
        rows = math.prod(case.in_shape)
        assert cost.moved == rows + rows * layer.dim + math.prod(layer.out_shape(case.in_shape))
    elif not isinstance(layer, (nn.Container, nn.MultiHeadAttention, nn.LSTM, nn.GRU, nn.SimpleRNN)):
        whole = math.prod(case.in_shape) + cost.parameters + math.prod(layer.out_shape(case.in_shape))
        assert cost.moved == (0 if isinstance(layer, views) else whole)
    assert cost.depth <= cost.work


@pytest.mark.parametrize(
    ("layer", "in_shape", "moved"),
    [
        (nn.Residual(nn.ReLU()), (4,), 2 * 4 + 3 * 4),
        (nn.Concat([nn.ReLU(), nn.ReLU()]), (4,), 2 * 8 + 2 * 8),
        (nn.Sequential([nn.ReLU(), nn.Flatten(), nn.ReLU()]), (2, 2), 2 * 8),
        (GRAPH, (3,), (3 + 12 + 3) + (3 + 12 + 3) + 2 * 6 + (6 + 21 + 3) + 4 * 3),
        (nn.Graph([nn.Node("a", "input", nn.ReLU())], ("a", "input")), (4,), 2 * 4 + 2 * 8),
        (nn.LSTM(2, layers=2), (5, 3), 5 * 3 + 2 * 5 * 2 + 2 + 8 * (3 + 2 + 1) + 8 * (2 + 2 + 1)),
        (nn.MultiHeadAttention(2), (3, 4), 12 + 80 + 12 + 2 * (36 + 12) + 4 * 2 * 9),
    ],
    ids=lambda v: str(v)[:40],
)
def test_memory_moved_between_layers(layer: nn.Layer, in_shape: Any, moved: int) -> None:
    assert layer.cost(in_shape).moved == moved


def test_costs_add_up() -> None:
    a, b = Cost(1, 2, 3, 4, 5), Cost(10, 20, 30, 40, 50)
    assert a.then(b) == Cost(11, 22, 33, 44, 55)
    assert a.beside(b) == b.beside(a) == Cost(11, 22, 30, 44, 55)
    assert a.times(3) == Cost(3, 6, 3, 12, 15)


def test_depth_of_a_tree() -> None:
    assert [tree(n) for n in (0, 1, 2, 3, 4, 5, 8, 9)] == [0, 0, 1, 2, 2, 3, 3, 4]


GIGA = {
    "alexnet": 0.71,
    "densenet121": 2.83,
    "densenet169": 3.36,
    "densenet201": 4.29,
    "googlenet": 1.50,
    "inception_v3": 5.71,
    "mobilenet_v1": 0.57,
    "resnet18": 1.81,
    "resnet34": 3.66,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
    "vgg11": 7.61,
    "vgg13": 11.31,
    "vgg16": 15.47,
    "vgg19": 19.63,
}


@pytest.mark.parametrize("name", GIGA)
def test_multiply_adds_of_known_networks(name: str) -> None:
    """10^9 of them: torchvision's tables, and Howard et al. 2017 for MobileNet. Strides and padding show here."""
    side = 299 if name == "inception_v3" else 224
    madds = ZOO[name]((side, side, 3), 1000).madds((side, side, 3))
    assert madds / 1e9 == pytest.approx(GIGA[name], abs=0.0051)
