"""Update rules against hand-computed cases, plain-Python formulas in float64, and torch."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from sparkdl.optim import LAMB, LARS, SGD, AdaGrad, Adam, AdamW, Elementwise, Nadam, Optimizer, RMSProp, Rule
from sparkdl.optim.base import Array
from sparkdl.optim.blocks import BLOCK, Span, norm, runs, tensors

Plain = Callable[[Any, float, list[float], list[float]], float]


class Seg(NamedTuple):
    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


def matrix(n: int, name: str = "dense/W") -> tuple[Seg, ...]:
    """One segment that is no vector, so decay and trust apply."""
    return (Seg(name, 0, n, (1, n)),)


def walk(rule: Rule, w: Any, grads: Any, lrs: Any = None, segments: Any = None) -> Array:
    """Weights after each update, (steps, n), in float64."""
    w = np.array(w, np.float64).reshape(-1)
    state, path = rule.init(w), []
    for i, g in enumerate(grads):
        g = np.array(g, np.float64).reshape(-1)
        rule.step(w, g, state, rule.lr if lrs is None else lrs[i], matrix(w.size) if segments is None else segments)
        path.append(w.copy())
    return np.array(path)


# Hand-computed: rule, first weight, gradients, weights after each update.
CASES = {
    "sgd": (SGD(0.1), 0, [1, 1], [-0.1, -0.2]),
    "momentum is not scaled by 1-mu": (SGD(0.1, 0.9), 0, [1, 1], [-0.1, -0.29]),
    "nesterov": (SGD(0.1, 0.9, nesterov=True), 0, [1, 1], [-0.19, -0.461]),
    "sgd decay": (SGD(0.1, weight_decay=0.5), 2, [0], [1.9]),
    "sgd decoupled decay": (SGD(0.1, 0.9, weight_decay=0.5, decoupled=True), 2, [0, 0], [1.9, 1.805]),
    "sgd coupled decay enters the velocity": (SGD(0.1, 0.9, weight_decay=0.5), 2, [0, 0], [1.9, 1.715]),
    "adam eps outside the root": (Adam(1.0, eps=1e-3), 0, [1e-3], [-0.5]),
    "adam bias correction": (Adam(0.1), 0, [1, -1], [-0.1, -0.0947368]),
    "adam decay": (Adam(0.1, weight_decay=0.1), 2, [0], [1.9]),
    "adamw decay": (AdamW(0.1, weight_decay=0.1), 2, [0], [1.98]),
    "adagrad": (AdaGrad(0.1), 0, [3, 4], [-0.1, -0.18]),
    "adagrad decoupled decay": (AdaGrad(0.1, weight_decay=0.1, decoupled=True), 2, [0], [1.98]),
    "rmsprop": (RMSProp(0.1, rho=0.75), 0, [2, 0], [-0.2, -0.2]),
    "rmsprop centered": (RMSProp(0.3, rho=0.9, centered=True), 0, [1], [-1.0]),
    "rmsprop momentum": (RMSProp(0.1, rho=0.75, momentum=0.5), 0, [2, 0], [-0.2, -0.3]),
    "rmsprop decoupled decay": (RMSProp(0.1, weight_decay=0.1, decoupled=True), 2, [0], [1.98]),
    "nadam decoupled decay": (Nadam(0.1, weight_decay=0.1, decoupled=True), 2, [0], [1.98]),
    # |w| = 4, |g| = 2: ratio 0.1 * 4 / (2 + 0.25 * 4), direction 2 + 0.25 * 4
    "lars": (LARS(1.0, trust=0.1, weight_decay=0.25), 4, [2], [3.6]),
    "lars without decay": (LARS(1.0, trust=0.1, weight_decay=0.0), 4, [2, 0], [3.6, 3.24]),
    # r = 1 + 0.5 * 4 and |w| / |r| = 4 / 3: whatever r, one tensor of one weight moves by lr |w|
    "lamb": (LAMB(0.1, weight_decay=0.5), 4, [2], [3.6]),
}


@pytest.mark.parametrize(("rule", "w", "grads", "expected"), CASES.values(), ids=CASES)
def test_by_hand(rule: Rule, w: Any, grads: Any, expected: Any) -> None:
    np.testing.assert_allclose(walk(rule, w, grads)[:, 0], expected, rtol=2e-6)


# The rules once more, one weight at a time, as the papers write them.
def plain_sgd(o: Any, w: float, gs: list[float], lrs: list[float]) -> float:
    v = 0.0
    for g, lr in zip(gs, lrs, strict=True):
        g, w = decayed(o, w, g, lr)
        v = o.momentum * v + g
        w -= lr * (g + o.momentum * v if o.nesterov else v)
    return w


def plain_adagrad(o: Any, w: float, gs: list[float], lrs: list[float]) -> float:
    total = 0.0
    for g, lr in zip(gs, lrs, strict=True):
        g, w = decayed(o, w, g, lr)
        total += g * g
        w -= lr * g / (math.sqrt(total) + o.eps)
    return w


def plain_rmsprop(o: Any, w: float, gs: list[float], lrs: list[float]) -> float:
    square = mean = velocity = 0.0
    for g, lr in zip(gs, lrs, strict=True):
        g, w = decayed(o, w, g, lr)
        square = o.rho * square + (1 - o.rho) * g * g
        mean = o.rho * mean + (1 - o.rho) * g
        variance = square - mean * mean if o.centered else square
        velocity = o.momentum * velocity + g / (math.sqrt(variance) + o.eps)
        w -= lr * velocity
    return w


def plain_adam(o: Any, w: float, gs: list[float], lrs: list[float]) -> float:
    m = v = 0.0
    for t, (g, lr) in enumerate(zip(gs, lrs, strict=True), 1):
        g, w = decayed(o, w, g, lr)
        m = o.beta1 * m + (1 - o.beta1) * g
        v = o.beta2 * v + (1 - o.beta2) * g * g
        w -= lr * (m / (1 - o.beta1**t)) / (math.sqrt(v / (1 - o.beta2**t)) + o.eps)
    return w


def plain_nadam(o: Any, w: float, gs: list[float], lrs: list[float]) -> float:
    m = v = 0.0
    mu = [o.beta1 * (1 - 0.5 * 0.96 ** (t / 250)) for t in range(1, len(gs) + 2)]
    for t, (g, lr) in enumerate(zip(gs, lrs, strict=True), 1):
        g, w = decayed(o, w, g, lr)
        m = o.beta1 * m + (1 - o.beta1) * g
        v = o.beta2 * v + (1 - o.beta2) * g * g
        ahead = mu[t] * m / (1 - math.prod(mu[: t + 1])) + (1 - mu[t - 1]) * g / (1 - math.prod(mu[:t]))
        w -= lr * ahead / (math.sqrt(v / (1 - o.beta2**t)) + o.eps)
    return w


def decayed(o: Any, w: float, g: float, lr: float) -> tuple[float, float]:
    return (g, w - lr * o.weight_decay * w) if o.decoupled else (g + o.weight_decay * w, w)


PLAIN = [
    (plain_sgd, SGD()),
    (plain_sgd, SGD(momentum=0.8)),
    (plain_sgd, SGD(momentum=0.8, nesterov=True, weight_decay=0.1)),
    (plain_sgd, SGD(momentum=0.8, nesterov=True, weight_decay=0.1, decoupled=True)),
    (plain_adagrad, AdaGrad()),
    (plain_adagrad, AdaGrad(eps=0.1, weight_decay=0.1)),
    (plain_adagrad, AdaGrad(weight_decay=0.1, decoupled=True)),
    (plain_rmsprop, RMSProp()),
    (plain_rmsprop, RMSProp(rho=0.7, centered=True, weight_decay=0.1)),
    (plain_rmsprop, RMSProp(momentum=0.6, eps=0.1, weight_decay=0.1, decoupled=True)),
    (plain_rmsprop, RMSProp(momentum=0.6, centered=True)),
    (plain_adam, Adam()),
    (plain_adam, Adam(beta1=0.7, beta2=0.9, eps=0.1, weight_decay=0.1)),
    (plain_adam, Adam(beta1=0.0)),
    (plain_adam, AdamW()),
    (plain_adam, AdamW(weight_decay=0.3)),
    (plain_nadam, Nadam()),
    (plain_nadam, Nadam(beta1=0.99, eps=0.1, weight_decay=0.1)),
    (plain_nadam, Nadam(weight_decay=0.1, decoupled=True)),
]


@pytest.mark.parametrize(("plain", "rule"), PLAIN, ids=[repr(rule) for _, rule in PLAIN])
def test_plain_formula(plain: Plain, rule: Rule) -> None:
    rng = np.random.default_rng(3)
    w, grads, lrs = rng.normal(size=3), rng.normal(size=(90, 3)), rng.uniform(0.001, 0.1, 90)
    expected = [plain(rule, float(w[i]), [float(g) for g in grads[:, i]], [float(r) for r in lrs]) for i in range(3)]
    np.testing.assert_allclose(walk(rule, w, grads, lrs)[-1], expected, rtol=1e-10)


def test_lars_and_lamb_over_two_tensors_as_the_papers_write_them() -> None:
    rng = np.random.default_rng(4)
    w, grads, parts = rng.normal(size=7), rng.normal(size=(12, 7)), (slice(0, 4), slice(4, 7))
    segments = (Seg("a/W", 0, 4, (2, 2)), Seg("b/W", 4, 7, (3, 1)))
    lars, lamb = LARS(0.5, 0.8, trust=0.02, weight_decay=0.1), LAMB(0.05, weight_decay=0.1)
    by_lars, by_lamb = w.copy(), w.copy()
    velocity, m, v = np.zeros(7), np.zeros(7), np.zeros(7)
    for t, g in enumerate(grads, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        for at in parts:
            length = np.linalg.norm(by_lars[at])
            ratio = 0.02 * length / (np.linalg.norm(g[at]) + 0.1 * length)
            velocity[at] = 0.8 * velocity[at] + ratio * (g[at] + 0.1 * by_lars[at])
            by_lars[at] -= 0.5 * velocity[at]
            r = m[at] / (1 - 0.9**t) / (np.sqrt(v[at] / (1 - 0.999**t)) + 1e-6) + 0.1 * by_lamb[at]
            by_lamb[at] -= 0.05 * np.linalg.norm(by_lamb[at]) / np.linalg.norm(r) * r
    np.testing.assert_allclose(walk(lars, w, grads, segments=segments)[-1], by_lars, rtol=1e-12)
    np.testing.assert_allclose(walk(lamb, w, grads, segments=segments)[-1], by_lamb, rtol=1e-12)


@pytest.mark.parametrize(
    ("rule", "base"),
    [
        (LARS(0.1, 0.8, weight_decay=0.3), SGD(0.1, 0.8)),
        (LAMB(0.1, weight_decay=0.3), Adam(0.1, eps=1e-6)),
    ],
    ids=["lars", "lamb"],
)
def test_excluded_tensors_have_trust_ratio_1(rule: Rule, base: Rule) -> None:
    rng = np.random.default_rng(5)
    w, grads, vector = rng.normal(size=5), rng.normal(size=(4, 5)), (Seg("norm/gamma", 0, 5, (5,)),)
    np.testing.assert_allclose(walk(rule, w, grads, segments=vector), walk(base, w, grads), rtol=1e-12)


@pytest.mark.parametrize("rule", [LARS(0.1, 0.0, weight_decay=0.0), LAMB(0.1, weight_decay=0.0)], ids=["lars", "lamb"])
def test_trust_ratio_is_1_where_a_norm_is_0(rule: Rule) -> None:
    np.testing.assert_allclose(walk(rule, [0.0, 0.0], [[1.0, -1.0]])[-1], [-0.1, 0.1], rtol=1e-5)
    np.testing.assert_array_equal(walk(rule, [1.0, 2.0], [[0.0, 0.0]])[-1], [1.0, 2.0])


TORCH = [
    (SGD(0.1), "SGD", {}),
    (SGD(0.1, 0.9, weight_decay=0.1), "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    (SGD(0.1, 0.9, nesterov=True), "SGD", {"momentum": 0.9, "nesterov": True}),
    (AdaGrad(0.1, weight_decay=0.1), "Adagrad", {"weight_decay": 0.1}),
    (RMSProp(0.1), "RMSprop", {"alpha": 0.9}),
    (RMSProp(0.1, 0.99, 0.5, weight_decay=0.1), "RMSprop", {"alpha": 0.99, "momentum": 0.5, "weight_decay": 0.1}),
    (RMSProp(0.1, centered=True), "RMSprop", {"alpha": 0.9, "centered": True}),
    (Adam(0.1, weight_decay=0.1), "Adam", {"weight_decay": 0.1}),
    (AdamW(0.1), "AdamW", {}),
    (Nadam(0.1), "NAdam", {}),
    (Nadam(0.1, weight_decay=0.1, decoupled=True), "NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
]


@pytest.mark.parametrize(("rule", "name", "arguments"), TORCH, ids=[repr(rule) for rule, *_ in TORCH])
def test_torch_agrees_over_20_updates(rule: Rule, name: str, arguments: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    w, grads, path = rng.normal(size=6), rng.normal(size=(20, 6)), []
    p = torch.nn.Parameter(torch.tensor(w))
    theirs = getattr(torch.optim, name)([p], lr=0.1, **arguments)
    for g in grads:
        p.grad = torch.tensor(g)
        theirs.step()
        path.append(p.detach().numpy().copy())
    rtol = 1e-7 if name == "NAdam" else 1e-10  # it keeps its product of momenta in float32
    np.testing.assert_allclose(walk(rule, w, grads), path, rtol=rtol)


SEGMENTS = (
    Seg("conv/W", 0, 4, (2, 2)),
    Seg("conv/b", 4, 6, (2,)),
    Seg("head/W", 6, 8, (2, 1)),
    Seg("scale", 8, 9, ()),
)
DECAYING = [
    rule
    for kind in (SGD, AdaGrad, RMSProp, Nadam)
    for rule in (kind(weight_decay=0.3), kind(weight_decay=0.3, decoupled=True))
] + [Adam(weight_decay=0.3), AdamW(weight_decay=0.3), LARS(weight_decay=0.3), LAMB(weight_decay=0.3)]


def ids(rules: list[Rule]) -> list[str]:
    return [repr(rule) for rule in rules]


def with_(rule: Rule, **changes: Any) -> Rule:
    return type(rule)(**{name: getattr(rule, name) for name in rule.__dataclass_fields__} | changes)


@pytest.mark.parametrize(
    ("options", "decays"),
    [
        ({}, [0, 1, 2, 3, 6, 7]),
        ({"exclude_vectors": False}, range(9)),
        ({"exclude_vectors": False, "exclude": ("head/*", "*/b")}, [0, 1, 2, 3, 8]),
        ({"exclude": ["conv/?"]}, [6, 7]),
        ({"exclude": ("CONV/*", "head")}, [0, 1, 2, 3, 6, 7]),
        ({"exclude": ("*",)}, []),
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", DECAYING, ids=ids(DECAYING))
def test_decay_leaves_excluded_weights_bit_unchanged(rule: Rule, options: dict[str, Any], decays: Any) -> None:
    """With no gradient decay is all that moves a weight."""
    w = np.linspace(1, 2, 9).astype(np.float32)
    after, rule = w.copy(), with_(rule, **options)
    rule.step(after, np.zeros(9, np.float32), rule.init(w), 0.1, SEGMENTS)
    assert np.flatnonzero(after != w).tolist() == list(decays)
    assert (after <= w).all()


@pytest.mark.parametrize("rule", DECAYING, ids=ids(DECAYING))
def test_no_decay_without_weight_decay(rule: Rule) -> None:
    w = np.linspace(1, 2, 9)
    path = walk(with_(rule, weight_decay=0.0), w, np.zeros((3, 9)), segments=SEGMENTS)
    np.testing.assert_array_equal(path, [w, w, w])


def test_without_segments_everything_decays() -> None:
    np.testing.assert_allclose(walk(SGD(0.1, weight_decay=1.0), [1.0, 2.0], [[0, 0]], segments=())[-1], [0.9, 1.8])


def test_segments_of_buffers_behind_the_vector_are_ignored() -> None:
    segments = (*SEGMENTS, Seg("norm/mean", 9, 12, (3,)))
    for rule in DECAYING:
        args = np.linspace(1, 2, 9), np.ones((3, 9))
        np.testing.assert_array_equal(walk(rule, *args, segments=segments), walk(rule, *args, segments=SEGMENTS))


RULES = [
    SGD(momentum=0.9),
    SGD(momentum=0.9, nesterov=True),
    AdaGrad(),
    RMSProp(centered=True, momentum=0.9),
    Adam(weight_decay=0.1),
    AdamW(),
    Nadam(weight_decay=0.1),
    LARS(),
    LAMB(),
]


@pytest.mark.parametrize("rule", RULES, ids=ids(RULES))
def test_block_ends_do_not_show(rule: Rule) -> None:
    """Equal weights with equal gradients stay equal over several blocks and a short last one."""
    if not isinstance(rule, Elementwise):
        rule = with_(rule, exclude=("*",))
    n = 2 * BLOCK + 3
    short, long = np.ones(1), np.ones(n)
    states = rule.init(short), rule.init(long)
    for g in (1.0, -0.5, 0.25):
        rule.step(short, np.full(1, g), states[0], 0.1, matrix(1))
        rule.step(long, np.full(n, g), states[1], 0.1, matrix(n))
    np.testing.assert_allclose(long, np.full(n, short[0]), rtol=1e-15)


@pytest.mark.parametrize("rule", RULES, ids=ids(RULES))
def test_a_numpy_rate_does_not_promote_float32(rule: Rule) -> None:
    w = np.ones(4, np.float32)
    twin, grad = w.copy(), np.full(4, 0.3, np.float32)
    rule.step(w, grad.copy(), rule.init(w), 0.1, matrix(4))
    rule.step(twin, grad.copy(), rule.init(w), np.float64(0.1), matrix(4))
    np.testing.assert_array_equal(w, twin)
    assert type(with_(rule, lr=np.float64(0.1)).lr) is float


@pytest.mark.parametrize("rule", RULES, ids=ids(RULES))
def test_an_update_takes_no_memory_worth_mentioning(rule: Rule) -> None:
    n = 40 * BLOCK
    w, g = np.ones(n, np.float32), np.ones(n, np.float32)
    state = rule.init(w)
    tracemalloc.start()
    try:
        rule.step(w, g, state, 0.1, matrix(n))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < w.nbytes / 10


def test_centered_rmsprop_survives_a_gradient_that_never_changes() -> None:
    """Mean square minus squared mean would round below 0 in float32 and give NaN."""
    rule = RMSProp(centered=True)
    w = np.zeros(3, np.float32)
    state = rule.init(w)
    for _ in range(400):
        rule.step(w, np.array([0.1, 1 / 3, 7e3], np.float32), state, 0.0, ())
        assert (state["v"] >= 0).all()
    assert np.isfinite(w).all()


def test_slots_carry_the_papers_names() -> None:
    names = {repr(rule): sorted(rule.init(np.ones(2))) for rule in (SGD(), *RULES)}
    assert list(names.values()) == [
        ["t"],
        ["t", "velocity"],
        ["t", "velocity"],
        ["G", "t"],
        ["m", "t", "v", "velocity"],
        ["m", "t", "v"],
        ["m", "t", "v"],
        ["m", "t", "v"],
        ["t", "velocity"],
        ["m", "t", "v"],
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(lr=0.0), r"SGD\(lr=0.0\): lr must be a number in \(0, inf\)"),
        (lambda: SGD(lr=float("nan")), "lr=nan"),
        (lambda: SGD(lr=float("inf")), "lr=inf"),
        (lambda: SGD(lr="fast"), "lr='fast'"),
        (lambda: SGD(lr=True), "lr=True"),
        (lambda: SGD(lr=None), "lr=None"),
        (lambda: SGD(momentum=1.0), r"momentum must be a number in \[0, 1\)"),
        (lambda: SGD(nesterov=True), "Nesterov needs momentum"),
        (lambda: Adam(beta1=-0.1), "beta1=-0.1"),
        (lambda: Adam(beta2=1), "beta2=1"),
        (lambda: AdaGrad(eps=0), "eps must be"),
        (lambda: RMSProp(rho=1.5), "rho must be"),
        (lambda: AdamW(weight_decay=-1e-4), r"weight_decay must be a number in \[0, inf\)"),
        (lambda: LARS(trust=0), "trust must be"),
        (lambda: LAMB(exclude="*/b"), "exclude must be a tuple of patterns"),
        (lambda: LAMB(exclude=(1,)), "exclude must be a tuple of patterns"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_lr_comes_first() -> None:
    for kind in (SGD, AdaGrad, RMSProp, Adam, AdamW, Nadam, LARS, LAMB):
        assert issubclass(kind, Optimizer)
        assert next(iter(kind.__dataclass_fields__)) == "lr"
        assert kind(0.25).lr == 0.25


def test_tensors_fill_the_gaps_and_runs_join_neighbours() -> None:
    segments = (Seg("a", 1, 3, (2, 1)), Seg("b", 3, 5, (2,)), Seg("c", 5, 6, (1,)), Seg("d", 6, 6, (0, 2)))
    spans = list(tensors(8, segments, lambda s: len(s.shape) == 1))
    assert spans == [
        Span(0, 1, False),
        Span(1, 3, False),
        Span(3, 5, True),
        Span(5, 6, True),
        Span(6, 6, False),
        Span(6, 8, False),
    ]
    assert list(runs(spans)) == [Span(0, 3, False), Span(3, 6, True), Span(6, 8, False)]
    assert list(tensors(0, (), bool)) == []


@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_norm(n: int) -> None:
    assert norm(np.full(n, 2.0, np.float32)) == pytest.approx(2 * math.sqrt(n), rel=1e-12)
