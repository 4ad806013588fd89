"""Recurrent layers against plain loops, onnxruntime and torch; masks, cuts and recomputation."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from sparkdl.nn import GRU, LSTM, MSE, Array, Ctx, Embedding, Layout, Model, Sequential, SimpleRNN
from tests.onnx_node import run_node

RNG = np.random.default_rng(61)
T, D, H = 7, 4, 3
LAYERS = [SimpleRNN, GRU, LSTM]
each_layer = pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
PARTS = {SimpleRNN: "h", GRU: "rzn", LSTM: "oifg"}  # our order of the gates


def subject(cls: type, width: int = D, dtype: type = np.float64, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A layer and random parameters for it, nested."""
    layer = cls(H, **options)
    layout = Layout(layer.specs((T, width)))
    return layer, layout.tree(RNG.standard_normal(layout.size).astype(dtype) / 2)


def zeros_like(p: dict[str, Any]) -> dict[str, Any]:
    return {k: zeros_like(v) if isinstance(v, dict) else np.zeros_like(v) for k, v in p.items()}


def flat(p: dict[str, Any]) -> dict[str, Array]:
    return {f"{level}/{k}": a for level, own in p.items() for k, a in own.items()}


def run(layer: Any, p: dict[str, Any], x: Array, dy: Array) -> tuple[Array, Array, dict[str, Array]]:
    g = zeros_like(p)
    y, cache = layer.forward(p, x, Ctx(train=True))
    return y, layer.backward(p, cache, dy, g, Ctx(train=True)), flat(g)


def gates(cls: type, p: dict[str, Array], name: str) -> dict[str, Array]:
    return dict(zip(PARTS[cls], np.split(p[name], len(PARTS[cls]), axis=-1), strict=True))


def by_loops(cls: type, p: dict[str, Array], x: Array) -> Array:
    """One layer, one direction, one row and one step at a time: x (N, T, D) -> (N, T, H)."""
    W, U, b = (gates(cls, p, name) for name in ("W", "U", "b"))
    y = np.empty((*x.shape[:2], H))
    for n in range(len(x)):
        h, c = np.zeros(H), np.zeros(H)
        for t in range(x.shape[1]):
            a = {k: x[n, t] @ W[k] + b[k] + (0 if k == "n" else h @ U[k]) for k in PARTS[cls]}
            if cls is SimpleRNN:
                h = np.tanh(a["h"])
            elif cls is GRU:
                r, z = expit(a["r"]), expit(a["z"])
                h = (1 - z) * np.tanh(a["n"] + r * (h @ U["n"] + p["bU"])) + z * h
            else:
                c = expit(a["f"]) * c + expit(a["i"]) * np.tanh(a["g"])
                h = expit(a["o"]) * np.tanh(c)
            y[n, t] = h
    return y


@each_layer
def test_one_layer_is_its_definition(cls: type) -> None:
    layer, p = subject(cls, return_sequences=True)
    x = RNG.standard_normal((3, T, D))
    expected = by_loops(cls, p["l0"], x)
    np.testing.assert_allclose(layer.forward(p, x, Ctx())[0], expected, rtol=1e-12, atol=1e-12)
    last, _ = subject(cls)
    np.testing.assert_allclose(last.forward(p, x, Ctx())[0], expected[:, -1], rtol=1e-12, atol=1e-12)


@each_layer
def test_layers_stack_and_directions_lie_side_by_side(cls: type) -> None:
    layer, p = subject(cls, layers=2, bidirectional=True, return_sequences=True)
    x = expected = RNG.standard_normal((3, T, D))
    for level in ("l0", "l1"):
        ahead, back = by_loops(cls, p[level], expected), by_loops(cls, p[f"{level}_reverse"], expected[:, ::-1])
        expected = np.concatenate([ahead, back[:, ::-1]], axis=2)
    np.testing.assert_allclose(layer.forward(p, x, Ctx())[0], expected, rtol=1e-12, atol=1e-12)
    last, _ = subject(cls, layers=2, bidirectional=True)
    ends = np.concatenate([expected[:, -1, :H], expected[:, 0, H:]], axis=1)
    np.testing.assert_allclose(last.forward(p, x, Ctx())[0], ends, rtol=1e-12, atol=1e-12)


@each_layer
def test_float32_against_onnxruntime(cls: type) -> None:
    layer, p = subject(cls, dtype=np.float32, bidirectional=True, return_sequences=True)
    x = RNG.standard_normal((3, T, D)).astype(np.float32)
    order = {SimpleRNN: "h", GRU: "zrn", LSTM: "iofg"}[cls]
    directions = [p["l0"], p["l0_reverse"]]
    W, R = ([np.concatenate([gates(cls, d, k)[o].T for o in order]) for d in directions] for k in "WU")
    inner = [np.zeros((len(order), H), np.float32) for _ in directions]
    if cls is GRU:
        for own, d in zip(inner, directions, strict=True):
            own[2] = d["bU"]
    B = [
        np.concatenate([*(gates(cls, d, "b")[o] for o in order), own.ravel()])
        for d, own in zip(directions, inner, strict=True)
    ]
    op, extra = {SimpleRNN: ("RNN", {}), GRU: ("GRU", {"linear_before_reset": 1}), LSTM: ("LSTM", {})}[cls]
    y = run_node(op, x.transpose(1, 0, 2), *map(np.stack, (W, R, B)), hidden_size=H, direction="bidirectional", **extra)
    ours = layer.forward(p, x, Ctx())[0]
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, y.transpose(2, 0, 1, 3).reshape(3, T, 2 * H), rtol=1e-4, atol=1e-5)


@each_layer
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("return_sequences", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_gradients_against_torch(cls: type, bidirectional: bool, return_sequences: bool, recompute: bool) -> None:
    torch = pytest.importorskip("torch")
    options = {"layers": 2, "bidirectional": bidirectional, "recompute": recompute}
    layer, p = subject(cls, return_sequences=return_sequences, **options)
    order = {SimpleRNN: "h", GRU: "rzn", LSTM: "ifgo"}[cls]
    kind = {SimpleRNN: torch.nn.RNN, GRU: torch.nn.GRU, LSTM: torch.nn.LSTM}[cls]
    other = kind(D, H, 2, batch_first=True, bidirectional=bidirectional, dtype=torch.float64)

    def reordered(own: dict[str, Array], name: str) -> Array:
        return np.concatenate([gates(cls, own, name)[o].T for o in order])

    with torch.no_grad():
        for level, own in p.items():
            end = level.replace("_reverse", "")[1:] + ("_reverse" if level.endswith("_reverse") else "")
            getattr(other, f"weight_ih_l{end}").copy_(torch.tensor(reordered(own, "W")))
            getattr(other, f"weight_hh_l{end}").copy_(torch.tensor(reordered(own, "U")))
            getattr(other, f"bias_ih_l{end}").copy_(torch.tensor(reordered(own, "b")))
            inner = getattr(other, f"bias_hh_l{end}").zero_()
            if cls is GRU:
                inner[2 * H :] = torch.tensor(own["bU"])
    x = RNG.standard_normal((3, T, D))
    tx = torch.tensor(x, requires_grad=True)
    ty, state = other(tx)
    if not return_sequences:
        h = state[0] if cls is LSTM else state
        ty = torch.cat([h[-2], h[-1]], dim=1) if bidirectional else h[-1]
    dy = RNG.standard_normal(ty.shape)
    ty.backward(torch.tensor(dy))
    y, dx, g = run(layer, p, x, dy)
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-9, atol=1e-10)
    theirs = dict(other.named_parameters())
    for level in p:
        end = level.replace("_reverse", "")[1:] + ("_reverse" if level.endswith("_reverse") else "")
        for name, suffix in (("W", "weight_ih"), ("U", "weight_hh"), ("b", "bias_ih")):
            grouped = {k.rpartition("/")[2]: a for k, a in g.items() if k.rpartition("/")[0] == level}
            expected = theirs[f"{suffix}_l{end}"].grad.numpy()
            np.testing.assert_allclose(reordered(grouped, name), expected, rtol=1e-9, atol=1e-10)


@each_layer
@pytest.mark.parametrize("bidirectional", [True, False])
def test_steps_that_do_not_count_are_as_if_absent(cls: type, bidirectional: bool) -> None:
    options = {"layers": 2, "bidirectional": bidirectional}
    masked, p = subject(cls, mask_value=-1.0, return_sequences=True, **options)
    plain, _ = subject(cls, return_sequences=True, **options)
    ends, plain_ends = (subject(cls, **options, **more)[0] for more in ({"mask_value": -1.0}, {}))
    there = np.array([[1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0, 1]], bool)
    x = np.where(there[:, :, None], RNG.standard_normal((3, T, D)), -1.0)
    x[0, 0, :2] = -1  # some entries like the mark do not make a mark
    dy = RNG.standard_normal((3, T, masked.out_shape((T, D))[1]))
    y, dx, g = run(masked, p, x, dy)
    y_end, dx_end, _ = run(ends, p, x, dy[:, 0])
    total = {name: np.zeros_like(a) for name, a in g.items()}
    for n in range(3):
        short = x[n : n + 1, there[n]]
        y_n, dx_n, g_n = run(plain, p, short, dy[n : n + 1, there[n]])
        np.testing.assert_allclose(y[n, there[n]], y_n[0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(dx[n, there[n]], dx_n[0], rtol=1e-11, atol=1e-12)
        total = {name: a + g_n[name] for name, a in total.items()}
        y_n, dx_n, _ = run(plain_ends, p, short, dy[n : n + 1, 0])
        np.testing.assert_allclose(y_end[n], y_n[0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(dx_end[n, there[n]], dx_n[0], rtol=1e-11, atol=1e-12)
    assert (y[~there] == -1).all()  # a next layer can skip them too
    assert not dx[~there].any()
    assert not dx_end[~there].any()
    for name, a in total.items():
        np.testing.assert_allclose(g[name], a, rtol=1e-10, atol=1e-12)


@each_layer
def test_a_sequence_without_steps_that_count_gives_the_resting_state(cls: type) -> None:
    layer, p = subject(cls, mask_value=0.0, bidirectional=True)
    y, dx, g = run(layer, p, np.zeros((2, T, D)), np.ones((2, 2 * H)))
    assert not y.any()
    assert not dx.any()
    assert not any(a.any() for a in g.values())


def test_padding_of_an_embedding_is_a_mark() -> None:
    net = Sequential([Embedding(9, D, padding_idx=0), LSTM(H, mask_value=0.0)])
    model = Model(net, MSE(), (T,))
    vec = model.init(np.random.default_rng(0), np.float64)
    words = np.array([[3, 5, 1, 0, 0, 0, 0]])
    assert np.allclose(model.outputs(vec, words), net.forward(model.layout.tree(vec), words[:, :3], Ctx())[0])


@each_layer
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("truncate", [1, 3, 4])
def test_truncation_cuts_the_gradient_of_the_state(cls: type, truncate: int, recompute: bool) -> None:
    """The gradients are those of pieces, each of which is run from the states before it as constants."""
    whole, p = subject(cls, return_sequences=True)
    cut, _ = subject(cls, return_sequences=True, truncate=truncate, recompute=recompute)
    x, dy = RNG.standard_normal((2, T, D)), RNG.standard_normal((2, T, H))
    y, dx, g = run(cut, p, x, dy)
    assert np.array_equal(y, run(whole, p, x, dy)[0])
    cell = whole._cell
    states, total, pieces = cell.rest(2, float), zeros_like(p), []
    for start in range(0, T, truncate):
        seq = x[:, start : start + truncate].transpose(1, 0, 2)
        _, after, cache = cell.forward(p["l0"], seq, states, None)
        d = dy[:, start : start + truncate].transpose(1, 0, 2)
        pieces.append(cell.backward(p["l0"], cache, d, cell.rest(2, float), None, total["l0"])[0])
        states = after
    np.testing.assert_allclose(dx, np.concatenate(pieces).transpose(1, 0, 2), rtol=1e-11, atol=1e-12)
    for name, a in flat(total).items():
        np.testing.assert_allclose(g[name], a, rtol=1e-11, atol=1e-12)
    assert not np.allclose(dx, run(whole, p, x, dy)[1])


@each_layer
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"mask_value": 9.0}, {"truncate": 2}], ids=str)
def test_recomputation_changes_no_gradient(cls: type, options: dict[str, Any]) -> None:
    kept, p = subject(cls, layers=2, **options)
    again, _ = subject(cls, layers=2, recompute=True, **options)
    x, dy = RNG.standard_normal((3, T, D)), RNG.standard_normal((3, kept.out_shape((T, D))[0]))
    x[0, 4:] = 9
    for a, b in zip(run(kept, p, x, dy)[:2], run(again, p, x, dy)[:2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    for name, a in run(kept, p, x, dy)[2].items():
        np.testing.assert_allclose(a, run(again, p, x, dy)[2][name], rtol=1e-11, atol=1e-13)


def test_recomputation_needs_less_memory() -> None:
    held = {}
    for recompute in (False, True):
        layer = LSTM(32, layers=3, recompute=recompute)
        layout = Layout(layer.specs((144, 4)))
        p = layout.tree(layout.init(np.random.default_rng(0)))
        x = np.ones((8, 144, 4), np.float32)
        tracemalloc.start()
        _, cache = layer.forward(p, x, Ctx(train=True))
        held[recompute] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert cache
    # All of it: gates, states, squashed memory of 3 layers over 144 steps; or states at 12 of them, and the input.
    everything = 3 * 144 * 8 * (4 + 1 + 1 + 1) * 32 * 4
    assert held[False] > everything
    assert held[True] < 0.1 * everything


@pytest.mark.parametrize("gate", range(4))
def test_the_memory_starts_open(gate: int) -> None:
    spec = LSTM(H).specs((T, D))["l0/b"]
    drawn = spec.init(np.random.default_rng(0), spec.shape).reshape(4, H)
    assert (drawn[gate] == (1 if PARTS[LSTM][gate] == "f" else 0)).all()


@each_layer
def test_each_gate_is_drawn_as_a_matrix_of_its_own(cls: type) -> None:
    layer = cls(64)
    vec = Layout(layer.specs((T, 128))).init(np.random.default_rng(0), np.float64)
    p = Layout(layer.specs((T, 128))).views(vec)
    for name in PARTS[cls]:
        k = PARTS[cls].index(name) * 64
        U, W = p["l0/U"][:, k : k + 64], p["l0/W"][:, k : k + 64]
        np.testing.assert_allclose(U @ U.T, np.eye(64), atol=1e-12)
        assert W.var() == pytest.approx(2 / (128 + 64), rel=0.1)  # Glorot


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LSTM(0), r"LSTM\(units=0\)"),
        (lambda: GRU(3, layers=0), r"GRU\(layers=0\)"),
        (lambda: SimpleRNN(3, truncate=0), r"SimpleRNN\(truncate=0\)"),
        (lambda: LSTM(3).out_shape((5,)), r"LSTM expects samples of shape \(T, C\); got \(5,\)"),
        (lambda: LSTM(3).out_shape((0, 5)), "at least one step"),
        (lambda: subject(GRU)[0].forward(subject(GRU)[1], np.ones((2, T, 5)), Ctx()), r"\(N, T, 4\); got \(2, 7, 5\)"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_multiply_adds() -> None:
    assert LSTM(H).madds((T, D)) == T * 4 * H * (D + H)
    assert GRU(H, layers=2, bidirectional=True).madds((T, D)) == T * 2 * 3 * H * (D + H + 2 * H + H)


@pytest.mark.parametrize("cls", [GRU, LSTM], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gates_far_from_zero_do_not_overflow(cls: type, dtype: type) -> None:
    layer, p = subject(cls, dtype=dtype, return_sequences=True)
    y, dx, _ = run(layer, p, 1e4 * RNG.standard_normal((3, T, D)).astype(dtype), np.ones((3, T, H), dtype))
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
