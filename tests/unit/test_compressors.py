"""Compressors one by one, against plain loops and the formulas of their papers."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
import pytest

from sparkdl.comm import compress
from sparkdl.comm.collectives import allreduce
from sparkdl.comm.compress import break_even, compressed_allreduce, powersgd
from sparkdl.comm.compress.packing import pack_codes, packed_bytes, rows_of, unpack_codes
from sparkdl.comm.transport.metered import Metered
from tests.ranks import group, run


@dataclass(frozen=True)
class Seg:
    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


def through(c, v, state=None, seed=0):
    """D(C(v)), with the memory in `state`."""
    out = np.zeros_like(v)
    state = c.init(v.size, v.dtype) if state is None else state
    c.add_into(out, c.encode(v, state, np.random.default_rng(seed)))
    return out


# ---- packing


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 17, 1000])
def test_codes_survive_packing(bits, count):
    codes = np.random.default_rng(count).integers(1 << bits, size=count).astype(np.uint8)
    packed = pack_codes(codes, bits)
    assert packed.size == packed_bytes(count, bits) == -(-count * bits // 8)
    np.testing.assert_array_equal(unpack_codes(packed, bits, count), codes)


def test_rows_are_filled_up():
    v = np.arange(1.0, 6.0)
    assert rows_of(v, 2, 9.0).tolist() == [[1, 2], [3, 4], [5, 9]]
    assert rows_of(v, 100).shape == (1, 5)
    assert np.shares_memory(rows_of(v, 5), v)


# ---- formats


def test_half_precision_neither_overflows_nor_underflows():
    v = np.array([1e38, 7e37, -1e30, 0], np.float32)
    np.testing.assert_allclose(through(compress.Float16(), v), v, rtol=2.0**-11)
    tiny = np.array([3e-30, -1e-30], np.float32)  # half precision alone would give zeros
    np.testing.assert_allclose(through(compress.Float16(), tiny), tiny, rtol=2.0**-11)


def test_bfloat16_rounds_to_even_and_saturates():
    v = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7, -(1 + 2**-8), 3.4e38, -1e300])
    largest = (2 - 2**-7) * 2.0**127
    expected = [1, 1 + 2**-6, 1 + 2**-7, -1, largest, -largest]
    assert through(compress.BFloat16(), v).tolist() == expected


def test_int8_takes_256_steps_from_minimum_to_maximum():
    steps = np.random.default_rng(0).permutation(256)
    v = np.concatenate([-3 + steps * 0.5, np.full(200, 7.25)])
    np.testing.assert_allclose(through(compress.Int8(block=256), v), v, rtol=1e-14)
    ends = np.array([-3e38, 3e38, 0], np.float32)
    np.testing.assert_allclose(through(compress.Int8(), ends)[:2], ends[:2], rtol=1e-6)


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_qsgd_against_a_loop(norm):
    v, levels, block = np.random.default_rng(2).standard_normal(70), 5, 32
    got = through(compress.QSGD(levels, block, norm), v, seed=9)
    u = np.random.default_rng(9).random((3, 32))
    for i, x in enumerate(v):
        part = v[i // block * block : i // block * block + block]
        scale = np.abs(part).max() if norm == "max" else np.linalg.norm(part)
        level = min(levels, floor(levels * abs(x) / scale + u[i // block, i % block]))
        assert got[i] == pytest.approx(np.sign(x) * scale * level / levels, abs=1e-15)


def test_terngrad_clips_outliers():
    v = np.concatenate([np.tile([0.1, -0.1], 500), [50.0]])
    rms = np.sqrt(np.mean(v**2))
    values = np.unique(np.abs(through(compress.TernGrad(), v)))
    np.testing.assert_allclose(values, [0, 2.5 * rms], rtol=1e-12)
    assert np.unique(np.abs(through(compress.TernGrad(clip=0), v))).max() == 50


def test_one_bit_sends_means():
    v = np.array([3.0, -1, 0, -5, 1, 2, -2])
    np.testing.assert_allclose(through(compress.OneBit(block=4), v), [1.5, -3, 1.5, -3, 1.5, 1.5, -2])
    np.testing.assert_allclose(
        through(compress.OneBit("mean_abs", block=4), v), [2.25, -2.25, 2.25, -2.25, 5 / 3, 5 / 3, -5 / 3]
    )


def test_top_k_sends_the_largest():
    v = np.array([0.5, -4, 3, 0, -2, 1, 6, -0.1, 2.5, 0.2])
    assert through(compress.TopK(0.35), v).tolist() == [0, -4, 3, 0, 0, 0, 6, 0, 0, 0]
    assert np.count_nonzero(through(compress.TopK(0.001), v)) == 1
    np.testing.assert_array_equal(through(compress.TopK(1.0), v), v)


def test_random_k_sends_k_of_n_each_as_often():
    v, c = np.arange(1.0, 21), compress.RandomK(0.25, feedback=False)
    draws = np.stack([through(c, v, seed=seed) for seed in range(2000)])
    assert set(np.count_nonzero(draws, axis=1)) == {5}
    np.testing.assert_array_equal(draws[draws > 0] % 4, 0)  # n / k = 4
    assert np.abs((draws > 0).mean(axis=0) - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)


def test_threshold_sends_steps_and_adapts():
    c = compress.Threshold(1.0, ratio=0.5)
    state = c.init(4, np.float64)
    v = np.array([2.5, -1.0, 0.9, 0])
    assert through(c, v, state).tolist() == [1, -1, 0, 0]
    assert state["residual"].tolist() == [1.5, 0, 0.9, 0]
    assert state["threshold"] == [1.0]  # 2 of 4 were sent, as wished
    assert through(c, np.zeros(4), state).tolist() == [1, 0, 0, 0]
    assert state["threshold"] == pytest.approx([np.sqrt(0.5)])
    for _ in range(3000):
        c.encode(np.zeros(4), state, np.random.default_rng(0))
    assert state["threshold"][0] > 0
    fixed = compress.Threshold(1.0, ratio=0)
    state = fixed.init(4, np.float64)
    through(fixed, v, state)
    assert state["threshold"] == [1.0]


# ---- deep gradient compression


def test_dgc_against_a_loop():
    c, n, m = compress.DGC(0.1, momentum=0.7), 40, 0.7
    state, u, v = c.init(n, np.float64), np.zeros(n), np.zeros(n)
    for step in range(20):
        g = np.random.default_rng(step).standard_normal(n)
        u = m * u + g
        v = v + u
        sent = np.argsort(-np.abs(v))[:4]
        expected = np.zeros(n)
        expected[sent] = v[sent]
        u[sent] = v[sent] = 0
        np.testing.assert_allclose(through(c, g, state), expected, atol=1e-12)
        np.testing.assert_allclose(state["momentum"], u, atol=1e-12)
    rest = np.ones(n)
    c.memory.flush(rest, state)
    np.testing.assert_allclose(rest, 1 + v, atol=1e-12)
    assert not state["momentum"].any()


def test_dgc_samples_its_threshold_and_warms_up():
    n, c = 200_000, compress.DGC(0.001, warm_up=4)
    state = c.init(n, np.float64)
    v = np.random.default_rng(3).standard_normal(n)
    for ratio in (1 / 4, 1 / 4 * 0.004**0.25, 1 / 4 * 0.004**0.5, 1 / 4 * 0.004**0.75, 0.001, 0.001):
        sent = np.flatnonzero(through(c, v, state))
        assert 0.8 * ratio * n <= sent.size <= ratio * n
    # What goes out are the largest, as far as they are known: all beyond some magnitude.
    cut = compress.DGC(0.01, momentum=0.0)
    got = through(cut, v)
    left = np.abs(v[got == 0]).max()
    assert left <= np.abs(got[got != 0]).min()


# ---- PowerSGD

MATRIX = (Seg("W", 3, 243, (3, 4, 20)), Seg("b", 243, 250, (7,)))


def low_rank(seed, rank):
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(260)
    v[3:243] = (rng.standard_normal((12, rank)) @ rng.standard_normal((rank, 20))).reshape(-1)
    return v


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_power_sgd_is_exact_where_the_mean_has_low_rank(rank):
    """The ranks' own matrices are full; what differs cancels in the sum."""
    c, size = compress.PowerSGD(3), 4
    total = low_rank(1, rank)
    own = np.random.default_rng(2).standard_normal((size, 260))
    own[-1] = total - own[:-1].sum(axis=0)

    def work(t):
        vec = own[t.rank].copy()
        compressed_allreduce(t, c, vec, c.init(260, np.float64, MATRIX), 0, 0)
        return vec

    with group("inproc", size) as transports:
        for vec in run(transports, work):
            np.testing.assert_allclose(vec, total, atol=1e-11)


def test_power_sgd_against_power_iteration_with_qr():
    c = compress.PowerSGD(2)
    state = c.init(260, np.float64, MATRIX)
    q = state["q"].reshape(2, 20).T.copy()
    error = np.zeros((12, 20))
    for step in range(6):
        v = low_rank(step, 12)
        got = through(c, v, state)
        m = v[3:243].reshape(12, 20) + error
        p = np.linalg.qr(m @ q)[0]
        q = m.T @ p
        error = m - p @ q.T
        np.testing.assert_allclose(got[3:243].reshape(12, 20), p @ q.T, atol=1e-10)
        np.testing.assert_array_equal(got[:3], v[:3])
        np.testing.assert_array_equal(got[243:], v[243:])


def test_power_sgd_warm_start_finds_the_leading_directions():
    """The same matrix again and again, without what was left: rank-2 truncation, as the SVD gives it."""
    c, v = compress.PowerSGD(2), low_rank(7, 12)
    state = c.init(260, np.float64, MATRIX)
    for _ in range(200):
        state["residual"].fill(0)
        got = through(c, v, state)
    u, s, vt = np.linalg.svd(v[3:243].reshape(12, 20))
    np.testing.assert_allclose(got[3:243].reshape(12, 20), u[:, :2] * s[:2] @ vt[:2], atol=1e-6)


def test_power_sgd_comes_back_from_a_zero_gradient():
    c = compress.PowerSGD(3)
    state = c.init(260, np.float64, MATRIX)
    assert not through(c, np.zeros(260), state).any()
    v = low_rank(1, 3)
    np.testing.assert_allclose(through(c, v, state), v, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_orthonormal_rows_and_dead_ones(dtype):
    p = np.random.default_rng(0).standard_normal((4, 50)).astype(dtype)
    p[2] = p[0] - 3 * p[1]
    q = powersgd._orthonormal(p).astype(np.float64)
    np.testing.assert_allclose(q @ q.T, np.diag([1, 1, 0, 1]), atol=1e-5 if dtype == np.float32 else 1e-14)
    small = powersgd._orthonormal(p * dtype(1e-35))
    np.testing.assert_allclose(small[:2], q[:2], atol=1e-4)


def test_power_sgd_leaves_what_would_not_shrink():
    segments = (Seg("a", 0, 6, (2, 3)), Seg("b", 6, 106, (10, 10)), Seg("beyond", 106, 306, (10, 20)))
    state = compress.PowerSGD(2).init(110, np.float32, segments)
    assert state["matrices"].tolist() == [6, 10, 10, 2]
    assert state["q"].shape == (20,)


# ---- traffic


@pytest.mark.parametrize("ranks", [2, 8, 64, 100])
def test_gathered_pairs_pay_below_a_ratio_of_1_to_p(ranks):
    for factor, pays in ((0.9, True), (1.1, False)):
        found = break_even(compress.TopK(factor / ranks), 10**6, 4, ranks)
        assert (found.warning is None) is pays
        assert found.ratio == pytest.approx(factor, rel=1e-3)


def test_bits_pay_gathered_below_64_ranks_and_in_two_phases_always():
    c, n = compress.OneBit(block=1 << 20), 1 << 24
    assert break_even(c, n, 4, 63, route="gather").warning is None
    assert "64 ranks" in break_even(c, n, 4, 66, route="gather").warning.replace("66", "64")
    for ranks in (2, 64, 1000):
        found = break_even(c, n, 4, ranks)
        assert found.warning is None
        assert found.sent == pytest.approx(2 * 4 * n / 32 * (ranks - 1) / ranks, rel=0.01)


def test_a_warning_names_figures_and_remedy():
    found = break_even(compress.TopK(0.5), 1000, 4, 8)
    assert found.sent == 7 * 500 * 8
    assert found.dense == 2 * 7 / 8 * 4000
    assert "TopK(ratio=0.5, feedback=True) sends 28,000 bytes" in found.warning
    assert "among 8 ranks, where none sends 7,000" in found.warning
    assert "Lower the ratio" in found.warning
    assert "fewer bits" in break_even(compress.Int8(block=1), 1000, 4, 8).warning
    assert break_even(compress.Uncompressed(), 1000, 4, 1).ratio == 1


def test_metered_counts_what_is_sent():
    def work(t):
        meter = Metered(t)
        assert (meter.rank, meter.size, meter.hosts) == (t.rank, t.size, t.hosts)
        vec = np.arange(30.0)
        allreduce(meter, vec)
        return meter.sent_messages, meter.sent_bytes, vec[1]

    with group("inproc", 3) as transports:
        assert run(transports, work) == [(4, 4 * 10 * 8, 3.0)] * 3


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (compress.TopK, {"ratio": 0}, r"TopK\(ratio=0\): ratio must be a number in \(0, 1\]"),
        (compress.DGC, {"momentum": 1}, "momentum must be"),
        (compress.QSGD, {"levels": 128}, r"levels must be an integer in \[1, 127\]"),
        (compress.QSGD, {"norm": "l1"}, 'norm must be "max" or "l2"'),
        (compress.OneBit, {"scale": "mean"}, 'scale must be "two_means" or "mean_abs"'),
        (compress.PowerSGD, {"rank": 0}, "rank must be an integer"),
        (compress.Threshold, {"threshold": 0.0}, "threshold must be"),
        (compress.Int8, {"block": 1.5}, "block must be an integer"),
        (compress.TernGrad, {"clip": -1}, "clip must be"),
    ],
)
def test_fields_have_limits(cls, fields, message):
    with pytest.raises(ValueError, match=message):
        cls(**fields)
