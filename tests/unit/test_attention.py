"""Attention, positions and the transformer block against loops and torch; masks and causality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from sparkdl.nn import (
    Array,
    Ctx,
    Layer,
    Layout,
    MultiHeadAttention,
    PositionalEncoding,
    ReLU,
    Sequential,
    TransformerBlock,
)
from sparkdl.ops import attention as kernels

RNG = np.random.default_rng(71)
N, T, D = 3, 6, 8


@pytest.fixture(params=["one-block", "many-blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples in one block, or one in each."""
    if request.param == "many-blocks":
        monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 8)


def subject(layer: Layer) -> dict[str, Any]:
    layout = Layout(layer.specs((T, D)))
    return layout.tree(RNG.standard_normal(layout.size) / 2)


def zeros_like(p: dict[str, Any]) -> dict[str, Any]:
    return {k: zeros_like(v) if isinstance(v, dict) else np.zeros_like(v) for k, v in p.items()}


def run(layer: Layer, p: dict[str, Any], x: Array, dy: Array) -> tuple[Array, Array, dict[str, Any]]:
    g = zeros_like(p)
    y, cache = layer.forward(p, x, Ctx(train=True))
    return y, layer.backward(p, cache, dy, g, Ctx(train=True)), g


def by_loops(layer: MultiHeadAttention, p: dict[str, Array], x: Array, keep: Array) -> Array:
    """One sample, head and query at a time."""
    d = D // layer.heads
    y = np.empty_like(x)
    for n in range(len(x)):
        q, k, v = np.split(x[n] @ p["W"] + p["b"], 3, axis=1)
        joined = np.zeros((T, D))
        for h in range(layer.heads):
            part = slice(h * d, (h + 1) * d)
            for t in range(T):
                seen = [s for s in range(T) if keep[n, s] and not (layer.causal and s > t)]
                if seen:
                    joined[t, part] = softmax(k[seen, part] @ q[t, part] / np.sqrt(d)) @ v[seen, part]
        y[n] = joined @ p["Wo"] + p["bo"]
    return y


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.usefixtures("blocks")
def test_attention_is_its_definition(heads: int, causal: bool, masked: bool) -> None:
    layer = MultiHeadAttention(heads, causal, 9.0 if masked else None)
    p, x, keep = subject(layer), RNG.standard_normal((N, T, D)), np.ones((N, T), bool)
    if masked:
        keep = RNG.random((N, T)) < 0.5
        keep[0, 0] = False  # with causal attention, a query that sees nothing
        x[~keep] = 9
    y, _ = layer.forward(p, x, Ctx())
    np.testing.assert_allclose(y[keep], by_loops(layer, p, x, keep)[keep], rtol=1e-11, atol=1e-12)
    assert (y[~keep] == 9).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.usefixtures("blocks")
def test_gradients_against_torch(causal: bool, masked: bool) -> None:
    torch = pytest.importorskip("torch")
    layer = MultiHeadAttention(2, causal, 9.0 if masked else None)
    p, x, dy = subject(layer), RNG.standard_normal((N, T, D)), RNG.standard_normal((N, T, D))
    keep = np.arange(T) < (np.array([[6], [4], [1]]) if masked else T) * np.ones((N, 1))
    x[~keep], dy[~keep] = 9, 0
    other = torch.nn.MultiheadAttention(D, 2, batch_first=True, dtype=torch.float64)
    names = {"W": "in_proj_weight", "b": "in_proj_bias", "Wo": "out_proj.weight", "bo": "out_proj.bias"}
    theirs = dict(other.named_parameters())
    with torch.no_grad():
        for ours, name in names.items():
            theirs[name].copy_(torch.tensor(p[ours].T.copy()))
    tx = torch.tensor(x, requires_grad=True)
    mask = torch.tensor(np.triu(np.ones((T, T), bool), 1)) if causal else None
    ty, _ = other(tx, tx, tx, key_padding_mask=torch.tensor(~keep), attn_mask=mask, need_weights=False)
    ty.backward(torch.tensor(dy))
    y, dx, g = run(layer, p, x, dy)
    np.testing.assert_allclose(y[keep], ty.detach().numpy()[keep], rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-9, atol=1e-11)
    for ours, name in names.items():
        np.testing.assert_allclose(g[ours], theirs[name].grad.numpy().T, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_block_against_torch(pre_norm: bool, activation: str) -> None:
    torch = pytest.importorskip("torch")
    options = {} if activation == "gelu" else {"activation": ReLU()}
    layer = TransformerBlock(2, 5, pre_norm=pre_norm, **options)
    p, x, dy = subject(layer), RNG.standard_normal((N, T, D)), RNG.standard_normal((N, T, D))
    other = torch.nn.TransformerEncoderLayer(
        D, 2, 5, 0.0, activation, batch_first=True, norm_first=pre_norm, dtype=torch.float64
    )
    names = {
        ("attention", "W"): "self_attn.in_proj_weight",
        ("attention", "b"): "self_attn.in_proj_bias",
        ("attention", "Wo"): "self_attn.out_proj.weight",
        ("attention", "bo"): "self_attn.out_proj.bias",
        ("mlp", "dense_0", "W"): "linear1.weight",
        ("mlp", "dense_0", "b"): "linear1.bias",
        ("mlp", "dense_2", "W"): "linear2.weight",
        ("mlp", "dense_2", "b"): "linear2.bias",
        ("norm1", "gamma"): "norm1.weight",
        ("norm1", "beta"): "norm1.bias",
        ("norm2", "gamma"): "norm2.weight",
        ("norm2", "beta"): "norm2.bias",
    }

    def at(tree: Any, path: tuple[str, ...]) -> Array:
        for name in path:
            tree = tree[name]
        return tree

    theirs = dict(other.named_parameters())
    assert set(names.values()) == set(theirs)
    with torch.no_grad():
        for path, name in names.items():
            theirs[name].copy_(torch.tensor(at(p, path).T.copy()))
    tx = torch.tensor(x, requires_grad=True)
    ty = other(tx)
    ty.backward(torch.tensor(dy))
    y, dx, g = run(layer, p, x, dy)
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-8, atol=1e-10)
    for path, name in names.items():
        np.testing.assert_allclose(at(g, path), theirs[name].grad.numpy().T, rtol=1e-8, atol=1e-10)


MASKED = {
    "attention": MultiHeadAttention(2, mask_value=9.0),
    "causal": MultiHeadAttention(2, causal=True, mask_value=9.0),
    "pre": TransformerBlock(2, mask_value=9.0),
    "post": TransformerBlock(2, pre_norm=False, mask_value=9.0),
    "stack": Sequential([PositionalEncoding(mask_value=9.0), *[TransformerBlock(2, mask_value=9.0)] * 2]),
}


@pytest.mark.parametrize("layer", MASKED.values(), ids=MASKED)
def test_steps_after_the_end_are_as_if_absent(layer: Layer) -> None:
    p, x, dy = subject(layer), RNG.standard_normal((N, T, D)), RNG.standard_normal((N, T, D))
    keep = np.arange(T) < np.array([[6], [4], [1]])
    x[~keep] = 9
    y, dx, g = run(layer, p, x, dy)
    assert (y[~keep] == 9).all()
    assert not dx[~keep].any()
    total = zeros_like(p)
    for n in range(N):
        end = keep[n].sum()
        y_n, cache = layer.forward(p, x[n : n + 1, :end], Ctx())
        dx_n = layer.backward(p, cache, dy[n : n + 1, :end], total, Ctx())
        np.testing.assert_allclose(y[n, :end], y_n[0], rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(dx[n, :end], dx_n[0], rtol=1e-9, atol=1e-11)
    layout = Layout(layer.specs((T, D)))
    for s in layout.segments:
        a, b = g, total
        for name in s.name.split("/"):
            a, b = a[name], b[name]
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "layer", [MultiHeadAttention(2, causal=True), TransformerBlock(2, causal=True)], ids=["attention", "block"]
)
def test_causal_attention_does_not_look_ahead(layer: Layer) -> None:
    p, x = subject(layer), RNG.standard_normal((N, T, D))
    later = x.copy()
    later[:, 4:] += 1
    before, after = layer.forward(p, x, Ctx())[0], layer.forward(p, later, Ctx())[0]
    np.testing.assert_allclose(before[:, :4], after[:, :4], rtol=1e-12)
    assert not np.isclose(before[:, 4:], after[:, 4:]).all(axis=2).any()


def test_dropout_acts_on_what_is_added() -> None:
    x = RNG.standard_normal((N, T, D))
    everything = TransformerBlock(2, dropout=1.0)
    p = subject(everything)
    y, _ = everything.forward(p, x, Ctx(train=True, rng=np.random.default_rng(0)))
    assert np.array_equal(y, x)
    assert not np.allclose(everything.forward(p, x, Ctx())[0], x)


def test_large_scores_do_not_overflow() -> None:
    layer = MultiHeadAttention(1)
    p = {k: v.astype(np.float32) for k, v in subject(layer).items()}
    y, _ = layer.forward(p, 1e3 * RNG.standard_normal((N, T, D)).astype(np.float32), Ctx())
    assert np.isfinite(y).all()


def test_positions_by_formula() -> None:
    y, _ = PositionalEncoding().forward({}, np.zeros((1, 50, 5)), Ctx())
    for t, i in np.ndindex(50, 5):
        angle = t / 10_000 ** (2 * (i // 2) / 5)
        assert y[0, t, i] == pytest.approx(np.cos(angle) if i % 2 else np.sin(angle), abs=1e-12)
    assert PositionalEncoding().specs((50, 5)) == {}


def test_learned_positions_are_added_and_learn() -> None:
    layer = PositionalEncoding(learned=True)
    p, x, dy = subject(layer), RNG.standard_normal((N, T, D)), RNG.standard_normal((N, T, D))
    y, dx, g = run(layer, p, x, dy)
    assert np.array_equal(y, x + p["P"])
    assert np.array_equal(dx, dy)
    np.testing.assert_allclose(g["P"], dy.sum(0), rtol=1e-12)
    with pytest.raises(ValueError, match=r"learned positions for \(6, 8\); got x of shape \(1, 5, 8\)"):
        layer.forward(p, x[:1, :5], Ctx())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHeadAttention(0), "heads must be an integer of at least 1"),
        (lambda: MultiHeadAttention(3).out_shape((T, D)), r"width D must be a multiple of heads; samples are \(6, 8\)"),
        (lambda: MultiHeadAttention(2).out_shape((D,)), r"expects samples of shape \(T, C\)"),
        (
            lambda: MultiHeadAttention(2).forward(subject(MultiHeadAttention(2)), np.ones((1, T, 6)), Ctx()),
            r"\(N, T, 8\)",
        ),
        (lambda: TransformerBlock(2, hidden=0), "hidden must be an integer of at least 1"),
        (lambda: TransformerBlock(2, dropout=2), "the rate is a probability"),
        (lambda: TransformerBlock(2, activation="gelu"), r"activation='gelu'\): must be a layer"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_multiply_adds() -> None:
    assert MultiHeadAttention(2).madds((T, D)) == T * D * 4 * D + 2 * T * T * D
    assert TransformerBlock(2).madds((T, D)) == T * D * 12 * D + 2 * T * T * D
