"""What every compressor promises, over the catalogue: messages, memory, and the sum over ranks."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sparkdl.comm import compress
from sparkdl.comm.compress import Compressor, compressed_allreduce, generator_for
from tests.catalogue import COMPRESSORS, CompressorCase
from tests.ranks import group, run

SIZES = (1, 2, 3, 4, 7)


@dataclass(frozen=True)
class Seg:
    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


# A convolution, its bias, a dense matrix; 10 elements at the end belong to nothing.
SEGMENTS = (Seg("conv/W", 0, 432, (3, 3, 6, 8)), Seg("conv/b", 432, 440, (8,)), Seg("dense/W", 440, 990, (22, 25)))
COUNT = 1000


def of(*cases: bool | Any) -> Any:
    rows = [case for case in COMPRESSORS if all(test(case) for test in cases)]
    return pytest.mark.parametrize("case", rows, ids=lambda case: case.id)


def feeds_back(case: CompressorCase) -> bool:
    return "residual" in case.compressor.init(1)


def without_momentum(case: CompressorCase) -> bool:
    return "momentum" not in case.compressor.init(1)


each = of()
by_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def init(compressor: Compressor, count: int = COUNT, dtype: Any = np.float64) -> dict[str, Any]:
    return compressor.init(count, dtype, SEGMENTS if count == COUNT else ())


def decoded(compressor: Compressor, message: Any, count: int, dtype: Any = np.float64) -> Any:
    out = np.zeros(count, dtype)
    compressor.add_into(out, message)
    return out


def gradient(seed: Any, count: int = COUNT, dtype: Any = np.float64) -> Any:
    """Of uneven magnitude, as gradients are, with some zeros."""
    rng = np.random.default_rng(seed)
    g = rng.standard_normal(count) * np.exp(rng.standard_normal(count))
    g[rng.random(count) < 0.1] = 0
    return g.astype(dtype)


# ---- messages


@each
@by_dtype
def test_messages_are_bytes_of_the_stated_length(case: CompressorCase, dtype: Any) -> None:
    c, rng = case.compressor, np.random.default_rng(0)
    for count in (0, 1, 2, 7, 63, 513, COUNT, 5000):
        segments = SEGMENTS if count == COUNT else ()
        message = c.encode(gradient(count, count, dtype), init(c, count, dtype), rng)
        assert (message.dtype, message.ndim) == (np.uint8, 1)
        stated = c.nbytes(count, np.dtype(dtype).itemsize, segments)
        if not isinstance(c, compress.Threshold) and not getattr(c, "warm_up", 0):
            assert message.size == stated
        assert (message.size == 0) == (count == 0) == (stated == 0)


@each
@by_dtype
def test_zero_stays_zero_and_one_element_keeps_its_sign(case: CompressorCase, dtype: Any) -> None:
    c, rng = case.compressor, np.random.default_rng(0)
    for count in (0, 1, 5, COUNT):
        state = init(c, count, dtype)
        message = c.encode(np.zeros(count, dtype), state, rng)
        np.testing.assert_array_equal(decoded(c, message, count, dtype), np.zeros(count))
        assert not any(state[name].any() for name in state.keys() & {"residual", "momentum"})
    for x in (3.0, -3.0):
        got = decoded(c, c.encode(np.full(1, x, dtype), init(c, 1, dtype), rng), 1, dtype)
        expected = np.sign(x) * c.threshold if isinstance(c, compress.Threshold) else x
        np.testing.assert_allclose(got, [expected], rtol=2**-8)


def bound(c: Compressor, v: Any) -> Any:
    """By how much each element may be off: formulas of the formats."""
    eps, largest = np.finfo(v.dtype).eps, np.abs(v).max()
    if isinstance(c, compress.Uncompressed):
        return np.zeros(v.size)
    if isinstance(c, compress.Float16):
        return np.abs(v) * 2.0**-11 + largest * 2.0**-39
    if isinstance(c, compress.BFloat16):
        return np.abs(v) * (2.0**-8 + eps)
    if isinstance(c, compress.QSGD | compress.TernGrad | compress.Int8):
        rows = [v[i : i + c.block] for i in range(0, v.size, c.block)]
        if isinstance(c, compress.Int8):
            steps = [(r.max() - r.min()) / 255 / 2 + 4 * eps * np.abs(r).max() for r in rows]
        elif isinstance(c, compress.QSGD):
            norm = (lambda r: np.abs(r).max()) if c.norm == "max" else np.linalg.norm
            steps = [norm(r) / c.levels * (1 + 100 * eps) for r in rows]
        else:  # what is clipped may be off by all of itself
            steps = [np.abs(r).max() for r in rows]
        return np.repeat(steps, [len(r) for r in rows])
    return np.abs(v) + largest  # others leave elements out, or share a value; tested one by one below


@each
@by_dtype
def test_round_trip_stays_within_the_formats_error(case: CompressorCase, dtype: Any) -> None:
    c = case.compressor
    for seed in range(5):
        v = gradient(seed, dtype=dtype)
        got = decoded(c, c.encode(v, init(c, COUNT, dtype), np.random.default_rng(seed)), COUNT, dtype)
        if not isinstance(c, compress.RandomK | compress.PowerSGD | compress.OneBit):
            assert (np.abs(got - v) <= bound(c, v)).all()
        again = np.full(COUNT, 2.0, dtype)
        c.add_into(again, c.encode(v, init(c, COUNT, dtype), np.random.default_rng(seed)), 0.5)
        np.testing.assert_allclose(again, 2 + got / 2, rtol=4 * np.finfo(dtype).eps, atol=20 * np.finfo(dtype).eps)


@of(lambda case: not isinstance(case.compressor, compress.BFloat16))
@by_dtype
def test_any_magnitude_will_do(case: CompressorCase, dtype: Any) -> None:
    """A power of two in front changes nothing else; thresholds are in units of the gradient."""
    c = case.compressor
    if isinstance(c, compress.Threshold):
        return
    v = gradient(3, dtype=dtype)
    plain = decoded(c, c.encode(v, init(c, COUNT, dtype), np.random.default_rng(0)), COUNT, dtype)
    for exponent in (-80, 80) if dtype == np.float32 else (-700, 700):
        scaled = c.encode(np.ldexp(v, exponent), init(c, COUNT, dtype), np.random.default_rng(0))
        back = np.ldexp(decoded(c, scaled, COUNT, dtype), -exponent)
        np.testing.assert_allclose(back, plain, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-7)


@of(lambda case: case.unbiased)
@pytest.mark.parametrize("count", [1, 150])
def test_messages_are_right_on_average(case: CompressorCase, count: int) -> None:
    c, v, times = case.compressor, gradient(5, count), 1500
    draws = np.stack([decoded(c, c.encode(v, {}, np.random.default_rng((7, i))), count) for i in range(times)])
    error = 5 * draws.std(axis=0) / np.sqrt(times) + 8 * np.abs(draws).max() / times  # the second, for rare events
    assert (np.abs(draws.mean(axis=0) - v) <= error).all()


def test_others_are_not_right_on_average() -> None:
    """So that the flag in the catalogue means something."""
    v = gradient(5, 150)
    for case in COMPRESSORS:
        if case.id in ("top_k-no-feedback", "int8-no-feedback", "terngrad"):
            c = case.compressor
            mean = np.mean([decoded(c, c.encode(v, {}, np.random.default_rng(i)), 150) for i in range(500)], axis=0)
            assert np.abs(mean - v).max() > 1e-3, case.id


# ---- memory


@of(feeds_back, without_momentum)
def test_what_was_sent_and_what_is_left_make_up_the_whole(case: CompressorCase) -> None:
    c = case.compressor
    state, sent, whole, size = init(c), np.zeros(COUNT), np.zeros(COUNT), np.zeros(COUNT)
    for step in range(30):
        g = gradient(step)
        kept = g.copy()
        c.add_into(sent, c.encode(g, state, np.random.default_rng(step)))
        np.testing.assert_array_equal(g, kept)
        whole += g
        size += np.abs(g)
    scale = max(size.max(), np.abs(sent).max())
    assert np.abs(sent + state["residual"] - whole).max() <= 5e-15 * scale
    assert np.abs(sent - whole).max() > 1e-6 * scale  # the residual did matter
    rest = np.zeros(COUNT)
    left = state["residual"].copy()
    c.memory.flush(rest, state)
    np.testing.assert_array_equal(rest, left)
    assert not state["residual"].any()


@each
def test_state_is_arrays_that_resume_bit_for_bit(case: CompressorCase) -> None:
    c = case.compressor
    state = init(c)
    assert all(isinstance(slot, np.ndarray) and slot.ndim == 1 for slot in state.values())
    for step in range(3):
        c.encode(gradient(step), state, np.random.default_rng(step))
    saved = {name: slot.copy() for name, slot in state.items()}
    for step in range(3, 6):
        first = c.encode(gradient(step), state, np.random.default_rng(step))
        second = c.encode(gradient(step), saved, np.random.default_rng(step))
        np.testing.assert_array_equal(first, second)
    assert {name: slot.tobytes() for name, slot in state.items()} == {n: s.tobytes() for n, s in saved.items()}


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_everywhere_and_leaves_the_memory(case: CompressorCase, bad: float) -> None:
    c = case.compressor
    for count in (1, 40, COUNT):
        state = init(c, count)
        c.encode(gradient(0, count), state, np.random.default_rng(0))
        before = {name: slot.copy() for name, slot in state.items()}
        v = gradient(1, count)
        v[count // 2] = bad
        got = decoded(c, c.encode(v, state, np.random.default_rng(1)), count)
        assert np.isnan(got).all()
        for name, slot in state.items():
            np.testing.assert_array_equal(slot, before[name])


# ---- the sum over ranks


def summed(case: CompressorCase, size: int, steps: int, count: int, dtype: Any = np.float64) -> tuple[Any, Any, Any]:
    """Results of each step (rank, step, count), final states and traffic, by rank."""
    segments = SEGMENTS if count == COUNT else ()

    def work(t: Any) -> Any:
        state, results, traffic = case.compressor.init(count, dtype, segments), [], []
        for step in range(steps):
            vec = gradient((step, t.rank), count, dtype)
            traffic.append(compressed_allreduce(t, case.compressor, vec, state, seed=4, step=step, tag=step))
            results.append(vec)
        return results, state, traffic

    with group("inproc", size) as transports:
        return tuple(zip(*run(transports, work), strict=True))


@each
@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_get_the_same_bits(case: CompressorCase, size: int) -> None:
    for count, dtype in ((0, np.float32), (5, np.float64), (COUNT, np.float32)):
        results, _, _ = summed(case, size, 2, count, dtype)
        assert all(vec.dtype == dtype for of_rank in results for vec in of_rank)
        assert all(len({vec.tobytes() for vec in of_step}) == 1 for of_step in zip(*results, strict=True))


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_over_the_wire_as_in_process(kind: str) -> None:
    def work(t: Any) -> Any:
        results = []
        for case in COMPRESSORS:
            state = case.compressor.init(COUNT, np.float32, SEGMENTS)
            for step in range(2):
                results.append(gradient((step, t.rank), COUNT, np.float32))
                compressed_allreduce(t, case.compressor, results[-1], state, 4, step)
        return results

    with group(kind, 3) as transports, group("inproc", 3) as threads:
        np.testing.assert_array_equal(run(transports, work), run(threads, work))


@of(feeds_back, without_momentum)
@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_sums_and_memories_make_up_all_inputs(case: CompressorCase, size: int) -> None:
    for count in (5, COUNT):
        results, states, _ = summed(case, size, 6, count)
        inputs = [gradient((step, rank), count) for step in range(6) for rank in range(size)]
        total = np.sum(results[0], axis=0) + np.sum([state["residual"] for state in states], axis=0)
        scale = max(np.abs(inputs).sum(axis=0).max(), np.abs(results[0]).max())
        assert np.abs(total - np.sum(inputs, axis=0)).max() <= 5e-15 * scale


@of(lambda case: case.compressor.route == "gather" or case.id == "random_k")
@pytest.mark.parametrize("size", [1, 3])
def test_the_sum_is_that_of_the_decoded_messages(case: CompressorCase, size: int) -> None:
    c = case.compressor
    results, _, _ = summed(case, size, 4, COUNT)
    states = [init(c) for _ in range(size)]
    for step in range(4):
        expected = np.zeros(COUNT)
        for rank in range(size):
            c.add_into(expected, c.encode(gradient((step, rank)), states[rank], generator_for(c, 4, step, rank)))
        np.testing.assert_allclose(results[0][step], expected, rtol=1e-14, atol=1e-14)


@of(lambda case: case.compressor.route == "two_phase" and not feeds_back(case))
@pytest.mark.parametrize("size", SIZES)
def test_casts_sum_in_full_precision(case: CompressorCase, size: int) -> None:
    """Each addend is rounded once, and the sum once, whatever the number of ranks."""
    results, _, _ = summed(case, size, 1, COUNT)
    inputs = np.stack([gradient((0, rank)) for rank in range(size)])
    unit = {compress.Float16: 2.0**-11, compress.BFloat16: 2.0**-8}.get(type(case.compressor), 2 * 8 / 255)
    allowed = unit * (np.abs(inputs).sum(axis=0) + np.abs(results[0][0]))
    if isinstance(case.compressor, compress.Int8):
        allowed = unit * np.abs(inputs).sum(axis=0).max()
    assert (np.abs(results[0][0] - inputs.sum(axis=0)) <= allowed + 1e-9).all()


@each
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, COUNT])
def test_one_rank_that_is_not_finite_stops_all(case: CompressorCase, size: int, count: int) -> None:
    def work(t: Any) -> Any:
        c = case.compressor
        state = c.init(count, np.float64, SEGMENTS if count == COUNT else ())
        compressed_allreduce(t, c, gradient(t.rank, count), state, 0, 0)
        before = copy.deepcopy(state)
        vec = gradient((1, t.rank), count)
        if t.rank == size - 1:
            vec[count - 1] = np.inf
        compressed_allreduce(t, c, vec, state, 0, 1)
        if c.route == "dense":
            assert not np.isfinite(vec[count - 1])
        else:
            assert np.isnan(vec).all()
        for name in state.keys() & {"residual", "momentum", "q"}:
            np.testing.assert_array_equal(state[name], before[name])
        vec = gradient((2, t.rank), count)
        compressed_allreduce(t, c, vec, state, 0, 2)
        assert np.isfinite(vec).all()

    with group("inproc", size) as transports:
        run(transports, work)


@each
@pytest.mark.parametrize("size", [2, 3])
def test_traffic_is_as_predicted(case: CompressorCase, size: int) -> None:
    c = case.compressor
    if isinstance(c, compress.Threshold) or getattr(c, "warm_up", 0):
        return  # as long as the values make them
    _, _, traffic = summed(case, size, 2, COUNT)
    predicted = compress.break_even(c, COUNT, 8, size, SEGMENTS)
    for of_rank in traffic:
        for step in of_rank:
            assert step.dense == int(predicted.dense)
            assert step.sent == pytest.approx(predicted.sent, rel=0.02, abs=128)  # lengths, headers


def suboptimality(compressor: Compressor) -> float:
    """How much of the loss sum_r |A_r x - b_r|^2 / 2 that can be gained is not, after 400 steps on 2 ranks."""
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((2, 12, 10)) / np.sqrt(24), 3 * rng.standard_normal((2, 12))
    whole, values = a.reshape(24, 10), b.reshape(24)
    optimum = np.linalg.lstsq(whole, values, rcond=None)[0]
    loss = {name: np.sum((whole @ x - values) ** 2) for name, x in (("start", np.zeros(10)), ("best", optimum))}

    def work(t: Any) -> Any:
        x, state = np.zeros(10), compressor.init(10, np.float64)
        for step in range(400):
            g = a[t.rank].T @ (a[t.rank] @ x - b[t.rank])
            compressed_allreduce(t, compressor, g, state, 0, step)
            x -= 0.5 / (1 + step / 20) * g
        return x

    with group("inproc", 2) as transports:
        x = run(transports, work)[0]
    return float((np.sum((whole @ x - values) ** 2) - loss["best"]) / (loss["start"] - loss["best"]))


@of(lambda case: case.id in ("int8", "one_bit", "power_sgd", "top_k", "random_k", "dgc-no-momentum"))
def test_with_feedback_the_dense_optimum_is_reached(case: CompressorCase) -> None:
    assert suboptimality(case.compressor) < 3e-3


def test_without_feedback_it_is_not() -> None:
    """The ranks' gradients do not vanish at the optimum, and the largest elements of them are not those of the sum."""
    assert suboptimality(compress.TopK(0.1, feedback=False)) > 0.3


# ---- the objects


@each
def test_pickles_and_compares_by_value(case: CompressorCase) -> None:
    c = case.compressor
    assert pickle.loads(pickle.dumps(c)) == c
    assert hash(c) == hash(copy.deepcopy(c))
    assert eval(repr(c), vars(compress)) == c


@each
def test_other_dtypes_are_refused(case: CompressorCase) -> None:
    with pytest.raises(ValueError, match="compresses float32 and float64; got int64"):
        case.compressor.init(3, np.int64)


def test_every_compressor_has_a_row_a_name_and_an_export() -> None:
    rows = {type(case.compressor) for case in COMPRESSORS}
    assert rows == set(compress.COMPRESSORS.values())
    assert {cls.__name__ for cls in rows} <= set(compress.__all__)
    assert len({case.id for case in COMPRESSORS}) == len(COMPRESSORS)
    assert set(compress.COMPRESSORS) <= {case.id for case in COMPRESSORS}
