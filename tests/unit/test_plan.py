"""Minibatches: every row once an epoch, the same batches for any number of workers, each with its share of them."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data import Plan
from sparkdl.errors import ConfigError, DataError


def edges(rows, parts, empty=None):
    """Unequal ranges that cover 0..rows-1; the part `empty` has no rows."""
    cuts = np.sort(np.random.default_rng(rows + parts).integers(0, rows + 1, parts - 1))
    cuts = np.concatenate([[0], cuts, [rows]])
    if empty is not None:
        cuts[empty + 1] = cuts[empty]
        cuts[-1] = rows
    return cuts


def dealt(plan, cuts, epoch):
    """The global batches as the union of what the parts read, one array of row numbers a step."""
    mine = [plan.batches(a, b, epoch) for a, b in pairwise(cuts)]
    return [np.concatenate([m[s] + a for m, a in zip(mine, cuts, strict=False)]) for s in range(plan.steps)]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("rows", "batch"), [(1, 1), (7, 3), (100, 100), (1000, 32), (1001, 300), (50, 64)])
def test_each_row_once_and_the_same_batches_for_any_number_of_workers(rows, batch, parts):
    plan = Plan(rows, batch, seed=3)
    whole = plan.batches(0, rows, 1)
    assert [len(b) for b in whole] == [batch] * (rows // batch) + ([rows % batch] if rows % batch else [])
    assert sorted(np.concatenate(whole).tolist()) == list(range(rows))
    for empty in (None, parts - 1):
        split = dealt(plan, edges(rows, parts, empty), 1)
        assert [sorted(b.tolist()) for b in split] == [sorted(b.tolist()) for b in whole]


def test_an_empty_shard_takes_part_with_empty_batches():
    batches = Plan(10, 4, 0).batches(5, 5, 0)
    assert [b.tolist() for b in batches] == [[], [], []]
    assert all(b.dtype == np.int64 for b in batches)


@given(st.integers(1, 3000), st.integers(1, 400), st.integers(0, 5), st.floats(0, 1), st.integers(0))
@settings(max_examples=60, deadline=None)
def test_two_workers_complete_each_other(rows, batch, epoch, cut, seed):
    plan, at = Plan(rows, batch, seed), int(cut * rows)
    split = dealt(plan, [0, at, rows], epoch)
    assert {len(b) for b in split[:-1]} <= {batch}
    assert sorted(np.concatenate(split).tolist()) == list(range(rows))


@pytest.mark.parametrize("parts", [2, 3, 5, 8])
@pytest.mark.parametrize(("rows", "batch"), [(60_000, 128), (60_000, 256), (1797, 32), (10_007, 200)])
def test_each_worker_has_its_share_of_each_batch(rows, batch, parts):
    cuts = np.arange(parts + 1) * rows // parts
    for a, b in pairwise(cuts):
        sizes = np.array([len(i) for i in Plan(rows, batch, 1).batches(a, b, 0)[:-1]])
        # Two strata at the edges may fall either way in each of at most two rounds that a batch touches.
        assert np.abs(sizes - batch * (b - a) / rows).max() <= 4
        assert np.abs(sizes - batch * (b - a) / rows).mean() <= 2


def test_epochs_and_seeds_differ_and_repeat():
    plan = Plan(1000, 50, 0)
    first, again, later = plan.batches(0, 1000, 0), Plan(1000, 50, 0).batches(0, 1000, 0), plan.batches(0, 1000, 1)
    other = Plan(1000, 50, 1).batches(0, 1000, 0)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    for shuffled in (later, other):
        # A random batch of 50 in 1000 shares 2.5 rows with another on average.
        assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(first, shuffled, strict=True)]) < 8


def test_neighbours_in_number_do_not_stay_together():
    """Any two rows share a batch in about batch / rows of the epochs, also those of one stratum's edge."""
    plan = Plan(64, 8, 0)
    together = np.zeros((64, 64))
    for epoch in range(400):
        for batch in plan.batches(0, 64, epoch):
            together[np.ix_(batch, batch)] += 1 / 400
    strata = np.arange(64) // 8
    apart = strata[:, None] != strata[None, :]
    assert together[~apart].sum() == pytest.approx(64)  # rows of one stratum never meet: only the diagonal is left
    assert abs(together[apart].mean() - 1 / 8) < 1e-9
    assert together[apart].max() < 0.25


def test_steps_per_epoch_ends_an_epoch_early():
    full, short = Plan(100, 10, 2), Plan(100, 10, 2, 4)
    assert (full.steps, short.steps) == (10, 4)
    for a, b in zip(full.batches(0, 100, 3), short.batches(0, 100, 3), strict=False):
        assert (a == b).all()
    assert len(short.batches(30, 60, 3)) == 4


def test_a_plan_needs_memory_for_its_own_rows_only():
    batches = Plan(10**7, 1024, 0).batches(5 * 10**6, 5 * 10**6 + 1000, 0)
    assert sorted(np.concatenate([b for b in batches if len(b)]).tolist()) == list(range(1000))


def test_plans_pickle_and_compare():
    assert pickle.loads(pickle.dumps(Plan(10, 2, 3))) == Plan(10, 2, 3) != Plan(10, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0, 10, 0), DataError, "no training rows"),
        ((10, 0, 0), ConfigError, "batch_size is at least 1; got 0"),
        ((10, 3, 0, 5), ConfigError, r"\[1, 4\] with 10 rows .* got 5"),
        ((10, 3, 0, 0), ConfigError, "got 0"),
    ],
)
def test_impossible_plans_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        Plan(*arguments)
