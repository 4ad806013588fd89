"""Class labels: sorted once, exact, of one type, and never silently mistaken."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.data import LabelMap
from sparkdl.errors import DataError

BIG = 2**53 + 1  # no float64 equals it
CASES = {
    "int": ([7, -3, 7, BIG], (-3, 7, BIG)),
    "float": ([2.5, 1.0, 2.5], (1.0, 2.5)),
    "str": (["no", "Yes", "no", "é"], ("Yes", "no", "é")),
    "bool": ([True, False, True], (False, True)),
}


@pytest.fixture(params=CASES, name="case")
def _case(request):
    return request.param, *CASES[request.param]


def test_labels_are_sorted_distinct_and_come_back(case):
    name, raw, classes = case
    labels = LabelMap.fit(raw)
    assert labels.classes == classes
    assert labels.type.__name__ == name
    array = np.array(raw, object if name == "str" else None)
    index = labels.encode(array)
    assert index.dtype == np.int64
    assert index.tolist() == [classes.index(v) for v in raw]
    assert labels.decode(index).tolist() == raw


def test_json_keeps_type_and_value(case):
    _, raw, _ = case
    labels = LabelMap.fit(raw)
    again = LabelMap.from_json(json.loads(json.dumps(labels.to_json())))
    assert again == labels
    assert [type(c) for c in again.classes] == [type(c) for c in labels.classes]


def test_a_float_map_of_whole_numbers_stays_float():
    again = LabelMap.from_json(json.loads(json.dumps(LabelMap.fit([0.0, 1.0]).to_json())))
    assert again.decode(np.array([1, 0])).dtype == np.float64
    assert LabelMap.fit([0, 1]).decode(np.array([1, 0])).dtype == np.int64


@given(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=40), st.randoms())
def test_integers_are_exact(values, random):
    labels, raw = LabelMap.fit(values), list(values)
    random.shuffle(raw)
    assert labels.encode(np.array(raw, np.int64)).tolist() == [sorted(values).index(v) for v in raw]


def test_three_is_three_point_nought():
    whole, real = LabelMap((1, 3)), LabelMap((1.0, 3.0))
    assert whole.encode(np.array([3.0, 1.0])).tolist() == [1, 0]
    assert real.encode(np.array([3, 1])).tolist() == [1, 0]
    assert whole.encode(np.array([3.0, 3.5, np.nan, np.inf, 1e300]), unknown=-1).tolist() == [1, -1, -1, -1, -1]
    near = LabelMap((0, BIG))
    assert near.encode(np.array([float(BIG)]), unknown=-1).tolist() == [-1]  # rounds to 2^53, which is no class
    assert near.encode(np.array([BIG])).tolist() == [1]


def test_narrow_integers_and_booleans_encode():
    labels = LabelMap((0, 1))
    assert labels.encode(np.array([1, 0], np.int8)).tolist() == [1, 0]
    assert labels.encode(np.array([True, False])).tolist() == [1, 0]
    assert LabelMap((False, True)).encode(np.array([1, 0])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("classes", "raw", "words"),
    [
        ((0, 1), [0, 7, 9, 7], r"label 7 is not one of the 2 classes 0, 1 \(3 of 4 labels are unknown\)"),
        (("a", "b"), ["a", "c"], "label 'c' is not one of the 2 classes 'a', 'b'"),
        ((0.5, 1.0), [0.25], "label 0.25 is not"),
        (tuple(range(20)), [20], r"0, 1, 2, 3, 4, \.\.\. \(20 in all\)"),
        ((0, 1), ["0"], "holds strings, but the classes are integers: 0, 1"),
        (("0", "1"), [0], "holds numbers of type int64, but the classes are strings"),
    ],
)
def test_unknown_labels_are_named(classes, raw, words):
    labels, array = LabelMap(classes), np.array(raw, object if isinstance(raw[0], str) else None)
    with pytest.raises(DataError, match=words):
        labels.encode(array)
    with pytest.raises(DataError, match=words.split(r" \(")[0].split(r"\.")[0]):
        labels.check(set(raw))


def test_unknown_labels_may_map_to_a_value():
    assert LabelMap(("a", "b")).encode(np.array(["b", "x"], object), unknown=-1).tolist() == [1, -1]
    assert LabelMap((5, 9)).encode(np.array([4, 5, 7, 9, 10]), unknown=-1).tolist() == [-1, 0, -1, 1, -1]


def test_no_labels_encode_to_none():
    assert LabelMap(("a", "b")).encode(np.array([], object)).tolist() == []
    assert LabelMap((1, 2)).encode(np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ((4,), "at least two classes; the label column holds 4 only"),
        ((), "holds none only"),
        ((1, 1), "distinct"),
        ((1, "a"), "one type"),
        ((1, True), "one type"),
        ((None, 1), "one type"),
    ],
)
def test_what_is_no_classification_is_refused(classes, words):
    with pytest.raises(DataError, match=words):
        LabelMap(classes)


def test_an_order_that_was_given_is_kept():
    """A saved mapping is never ranked anew, whatever the frequencies of later data."""
    labels = LabelMap(("small", "large"))
    assert labels.encode(np.array(["large"] * 3 + ["small"], object)).tolist() == [1, 1, 1, 0]
    assert LabelMap((9, 2, 5)).encode(np.array([2, 5, 9, 5])).tolist() == [1, 2, 0, 2]
