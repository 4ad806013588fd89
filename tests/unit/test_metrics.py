from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from sparkdl.nn import MSE as MSELoss
from sparkdl.nn import BinaryCrossEntropy, SoftmaxCrossEntropy
from sparkdl.train.metrics import (
    AUC,
    F1,
    MAE,
    METRICS,
    MSE,
    R2,
    Accuracy,
    ConfusionMatrix,
    Metric,
    MetricSet,
    Precision,
    Recall,
    TopK,
    decode_metric,
    default_metrics,
    encode_metric,
)


def figure(metric: Metric, pred: Any, y: Any, w: Any = None) -> Any:
    pred, y = np.asarray(pred), np.asarray(y)
    acc = np.zeros(metric.size(pred.shape[1:]))
    metric.update(acc, pred, pred, y, np.ones(len(y)) if w is None else np.asarray(w, float))
    return metric.result(acc)


def classified(rows: int = 200, classes: int = 4) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng((rows, classes))
    pred = rng.dirichlet(np.ones(classes), rows).astype(np.float32)
    y = np.where(rng.random(rows) < 0.4, pred.argmax(1), rng.integers(0, classes, rows))
    return pred, y, rng.uniform(0.5, 2, rows)


def test_accuracy() -> None:
    pred = [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4], [0.4, 0.4, 0.2]]
    assert figure(Accuracy(), pred, [0, 1, 2, 0]) == 0.75  # of two equal classes the first is meant
    assert figure(Accuracy(), pred, [0, 1, 2, 1], [1, 2, 3, 4]) == (1 + 3) / 10


def test_accuracy_of_one_probability_a_row() -> None:
    assert figure(Accuracy(), [[0.6], [0.4], [0.9], [0.5]], [1, 1, 0, 0]) == 0.5


def test_top_k() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    pred, y, w = classified()
    for k in (1, 2, 3):
        expected = sklearn.top_k_accuracy_score(y, pred, k=k, sample_weight=w, labels=range(4))
        assert figure(TopK(k), pred, y, w) == pytest.approx(expected, rel=1e-12)


def test_top_1_is_accuracy_even_among_equals() -> None:
    pred = np.array([[0.4, 0.4, 0.2], [0.4, 0.4, 0.2], [1 / 3, 1 / 3, 1 / 3]])
    assert figure(TopK(1), pred, [0, 1, 2]) == figure(Accuracy(), pred, [0, 1, 2]) == pytest.approx(1 / 3)
    assert figure(TopK(1), [[0.8], [0.3]], [1, 1]) == 0.5


def test_nan_is_never_a_hit() -> None:
    assert figure(TopK(2), [[np.nan] * 3, [0.2, np.nan, 0.8]], [0, 2]) == 0.5


def test_top_k_must_be_able_to_fail() -> None:
    with pytest.raises(ValueError, match="always 1"):
        TopK(3).size((3,))
    with pytest.raises(ValueError, match="k >= 1"):
        TopK(0)


@pytest.mark.parametrize("average", ["macro", "micro", "binary"])
@pytest.mark.parametrize("weighted", [False, True])
def test_precision_recall_f1(average: Any, weighted: bool) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    pred, y, w = classified(classes=2 if average == "binary" else 5)
    w = w if weighted else np.ones(len(y))
    for ours, theirs in (
        (Precision, sklearn.precision_score),
        (Recall, sklearn.recall_score),
        (F1, sklearn.f1_score),
    ):
        expected = theirs(y, pred.argmax(1), average=average, sample_weight=w)
        assert figure(ours(average), pred, y, w) == pytest.approx(expected, rel=1e-12), ours


def test_macro_leaves_out_classes_that_do_not_occur_and_counts_a_missed_one_as_zero() -> None:
    pred = np.eye(4)[[0, 0, 1, 0]]
    y = np.array([0, 0, 1, 2])  # 3 occurs nowhere; 2 is never predicted
    assert figure(Precision(), pred, y) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert figure(Recall(), pred, y) == pytest.approx((1 + 1 + 0) / 3)


def test_one_probability_a_row_equals_two() -> None:
    pred, y, w = classified(classes=2)
    for metric in (Precision(), Recall("binary"), F1("micro"), ConfusionMatrix(), AUC(), Accuracy()):
        assert figure(metric, pred[:, 1:], y, w) == figure(metric, pred, y, w), metric


def test_binary_average_needs_two_classes() -> None:
    with pytest.raises(ValueError, match="two classes"):
        F1("binary").size((3,))
    with pytest.raises(ValueError, match="average="):
        F1("weighted")  # type: ignore[arg-type]


def test_confusion_matrix() -> None:
    pred = np.eye(3)[[0, 1, 1, 2, 0]]
    assert figure(ConfusionMatrix(), pred, [0, 1, 2, 2, 1], [1, 1, 2, 1, 3]) == [[1, 0, 0], [3, 1, 0], [0, 2, 1]]


@pytest.mark.parametrize(("spread", "rows"), [(1.0, 500), (8.0, 2000), (40.0, 300)])
def test_auc_is_within_its_bound(spread: float, rows: int) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(rows)
    y, w = rng.integers(0, 2, rows), rng.uniform(0.5, 2, rows)
    p = 1 / (1 + np.exp(-spread * (rng.standard_normal(rows) + y)))
    metric, acc = AUC(), np.zeros(4096)
    metric.update(acc, p[:, None], p[:, None], y, w)
    expected = sklearn.roc_auc_score(y, p, sample_weight=w)
    assert abs(metric.result(acc) - expected) <= metric.error_bound(acc) + 1e-12
    assert spread == 40 or metric.error_bound(acc) < 3e-3  # at 40 many probabilities round to 0 or 1


def test_auc_by_counting_pairs() -> None:
    score, y = np.array([0.1, 0.4, 0.4, 0.8, 0.9, 0.9]), np.array([0, 0, 1, 1, 0, 1])
    pairs = [float(a > b) + (a == b) / 2 for a in score[y == 1] for b in score[y == 0]]
    assert figure(AUC(), score[:, None], y) == pytest.approx(np.mean(pairs))
    assert figure(AUC(bins=2), [[0.2], [0.3]], [0, 1]) == 0.5  # both fall into one of two intervals


def test_auc_takes_certain_and_undefined_scores() -> None:
    assert figure(AUC(), [[0.0], [1.0], [0.5], [np.nan]], [0, 1, 1, 0]) == 1.0
    assert figure(AUC(), [[0.3], [0.6]], [1, 1]) == 0.5
    with pytest.raises(ValueError, match="two classes"):
        AUC().size((3,))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_errors_of_values(shape: tuple[int, ...]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    y = rng.standard_normal((50, *shape)) + 4
    pred, w = y.reshape(50, *(shape or (1,))) + 0.3 * rng.standard_normal((50, *(shape or (1,)))), rng.random(50)
    flat = y.reshape(50, -1), pred.reshape(50, -1)
    assert figure(MSE(), pred, y, w) == pytest.approx(sklearn.mean_squared_error(*flat, sample_weight=w))
    assert figure(MAE(), pred, y, w) == pytest.approx(sklearn.mean_absolute_error(*flat, sample_weight=w))
    assert figure(R2(), pred, y, w) == pytest.approx(sklearn.r2_score(*flat, sample_weight=w))


def test_a_target_without_the_last_axis_is_not_broadcast() -> None:
    assert figure(MSE(), [[1.0], [2.0]], [0.0, 1.0]) == 1.0
    with pytest.raises(ValueError, match="reshape"):
        figure(MSE(), [[1.0], [2.0]], [[0.0, 1.0], [0.0, 1.0]])


def test_r2_of_constant_targets() -> None:
    assert figure(R2(), [[0.1]] * 3, [0.1] * 3) == 1.0
    assert figure(R2(), [[0.1], [0.1], [0.2]], [0.1] * 3) == 0.0
    assert figure(R2(), [[1e6 + 1], [1e6 + 2], [1e6 + 3]], [1e6 + 1, 1e6 + 2, 1e6 + 3]) == 1.0


def softmax_batch() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((20, 3)), rng.integers(0, 3, 20)


def test_metric_set_holds_loss_weight_and_rows_first() -> None:
    z, y = softmax_batch()
    w = np.linspace(0.5, 1.5, 20)
    loss = SoftmaxCrossEntropy()
    metrics = MetricSet(loss, (Accuracy(), ConfusionMatrix()), (3,))
    acc = metrics.zeros()
    metrics.update(acc, z, y, w)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    total = -(w * np.log(p[np.arange(20), y])).sum()
    assert acc.dtype == np.float64
    assert acc.shape == (3 + 2 + 9,) == (metrics.size,)
    np.testing.assert_allclose(acc[:3], [total, w.sum(), 20], rtol=1e-12)
    results = metrics.results(acc)
    assert tuple(results) == metrics.names == ("loss", "accuracy", "confusion_matrix")
    assert results["loss"] == pytest.approx(total / w.sum())
    assert results["accuracy"] == pytest.approx(w[z.argmax(1) == y].sum() / w.sum())
    assert np.sum(results["confusion_matrix"]) == pytest.approx(w.sum())


def test_a_known_loss_is_not_computed_again() -> None:
    z, y = softmax_batch()
    metrics = MetricSet(SoftmaxCrossEntropy(), (), (3,))
    acc = metrics.zeros()
    metrics.update(acc, z, y, None, known=(7.0, 2.0))
    assert acc.tolist() == [7.0, 2.0, 20.0]


def test_ignored_rows_count_as_rows_only() -> None:
    z, y = softmax_batch()
    y[:5] = -1
    metrics = MetricSet(SoftmaxCrossEntropy(ignore_index=-1), (Accuracy(), F1()), (3,))
    whole, kept = metrics.zeros(), metrics.zeros()
    metrics.update(whole, z, y, None)
    metrics.update(kept, z[5:], y[5:], None)
    np.testing.assert_allclose(np.delete(whole, 2), np.delete(kept, 2), rtol=1e-12)
    assert (whole[2], kept[2]) == (20, 15)
    metrics.update(kept, z[:5], y[:5], None)
    np.testing.assert_allclose(whole, kept, rtol=1e-12)


def test_one_logit() -> None:
    z, y = np.array([[2.0], [-1.0], [0.5], [-3.0]]), np.array([1.0, 1.0, 0.0, 0.0])
    metrics = MetricSet(BinaryCrossEntropy(), (Accuracy(), F1("binary"), AUC(), MSE()), (1,))
    acc = metrics.zeros()
    metrics.update(acc, z, y, None)
    p = 1 / (1 + np.exp(-z[:, 0]))
    results = metrics.results(acc)
    assert results["loss"] == pytest.approx(-np.log([p[0], p[1], 1 - p[2], 1 - p[3]]).mean())
    assert (results["accuracy"], results["f1_binary"], results["auc"]) == (0.5, 0.5, 0.75)
    assert results["mse"] == pytest.approx(((p - y) ** 2).mean())


def test_each_of_several_yes_or_no_labels_is_a_row_to_class_metrics() -> None:
    z, y = np.array([[2.0, -2.0], [1.0, 1.0]]), np.array([[1, 0], [0, 1]])
    metrics = MetricSet(BinaryCrossEntropy(), (Accuracy(), ConfusionMatrix()), (2,))
    acc = metrics.zeros()
    metrics.update(acc, z, y, np.array([1.0, 2.0]))
    results = metrics.results(acc)
    assert results["accuracy"] == pytest.approx((1 + 1 + 0 + 2) / 6)
    assert results["confusion_matrix"] == [[1, 2], [0, 3]]


def test_no_weight_gives_no_figures_rather_than_nan() -> None:
    metrics = MetricSet(SoftmaxCrossEntropy(), (Accuracy(), F1()), (3,))
    acc = metrics.zeros()
    metrics.update(acc, np.zeros((0, 3)), np.zeros(0, int), None)
    assert not acc.any()
    assert metrics.results(acc) == {}
    metrics.update(acc, np.ones((2, 3)), np.zeros(2, int), np.zeros(2))
    assert acc[2] == 2
    assert metrics.results(acc) == {}


def test_small_integer_labels_do_not_overflow() -> None:
    metrics = MetricSet(SoftmaxCrossEntropy(), (ConfusionMatrix(),), (20,))
    acc = metrics.zeros()
    metrics.update(acc, np.eye(20), np.arange(20, dtype=np.uint8), None)
    assert metrics.results(acc)["confusion_matrix"] == np.eye(20).tolist()


@pytest.mark.parametrize(
    ("loss", "metrics", "shape", "message"),
    [
        (SoftmaxCrossEntropy(), (MSE(),), (3,), "mse compares values"),
        (MSELoss(), (Accuracy(),), (3,), "accuracy compares probabilities"),
        (SoftmaxCrossEntropy(), (F1(), F1()), (3,), "differ in name"),
        (SoftmaxCrossEntropy(), (AUC(),), (3,), "two classes"),
        (SoftmaxCrossEntropy(), (Accuracy(),), (4, 3), r"shape \(K,\)"),
    ],
)
def test_metrics_that_do_not_go_with_the_model(loss: Any, metrics: Any, shape: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetricSet(loss, metrics, shape)


def test_averages_differ_in_name() -> None:
    assert [Precision().name, Recall("micro").name, TopK(3).name] == ["precision", "recall_micro", "top_3"]


def test_default_metrics() -> None:
    assert default_metrics(SoftmaxCrossEntropy()) == default_metrics(BinaryCrossEntropy()) == (Accuracy(),)
    assert default_metrics(MSELoss()) == (MSE(), MAE())


def test_metric_set_pickles_small() -> None:
    metrics = MetricSet(SoftmaxCrossEntropy(), (AUC(), Accuracy()), (2,))
    data = pickle.dumps(metrics)
    assert pickle.loads(data) == metrics
    assert len(data) < 1000


@pytest.mark.parametrize("name", METRICS)
def test_metrics_as_data(name: str) -> None:
    metric = decode_metric(name)
    assert decode_metric(encode_metric(metric)) == metric


def test_metric_arguments_as_data() -> None:
    assert decode_metric({"kind": "top_k", "k": 3}) == TopK(3)
    assert encode_metric(F1("micro")) == {"kind": "f1", "average": "micro"}
    with pytest.raises(ValueError, match="Did you mean 'accuracy'"):
        decode_metric("acuracy")
    with pytest.raises(ValueError, match="unexpected keyword"):
        decode_metric({"kind": "auc", "bin": 3})
