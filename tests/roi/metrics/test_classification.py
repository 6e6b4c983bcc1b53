from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.roi.metrics.classification import evaluate
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.metrics.metric_catalogue import CATALOGUE, LABEL_METRICS, METRICS, Metric
from sklearn_reference import reference


def predictions(n: int, c: int, seed: int, *, votes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that know something about the labels; with `votes` they are fractions full of ties."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(c), rng.integers(0, c, n - c)])
    logits = rng.normal(size=(n, c)) + 1.5 * np.eye(c)[labels]
    p = np.exp(logits)
    p /= p.sum(1, keepdims=True)
    if votes:
        p = np.stack([rng.multinomial(votes, row) for row in p]) / votes
    return p, labels


def names(c: int) -> list[str]:
    return [f"class{k}" for k in range(c)]


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.integers(2, 9), st.integers(12, 60), st.integers(0, 10**6), st.sampled_from([None, 1, 5, 20]))
def test_every_metric_equals_scikit_learn_on_any_data(c: int, n: int, seed: int, votes: int | None) -> None:
    p, labels = predictions(n, c, seed, votes=votes)
    values, known = evaluate(p, labels, classes=names(c)).values, reference(p, labels)
    assert set(values) == set(METRICS) == set(known)
    for name, expected in known.items():
        assert values[name] == pytest.approx(expected, abs=1e-9), name


def test_given_predictions_win_over_the_first_maximum() -> None:
    p, labels = predictions(60, 3, seed=1, votes=2)
    predicted = np.random.default_rng(0).integers(0, 3, 60)
    values = evaluate(p, labels, classes=names(3), predicted=predicted).values
    for name, expected in reference(p, labels, predicted).items():
        assert values[name] == pytest.approx(expected, abs=1e-9), name


def test_ties_go_to_the_lowest_class_id() -> None:
    result = evaluate([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]], [0, 1, 2], classes=names(3))
    assert result.scores["accuracy"].value == 1.0
    assert result.confusion_matrix == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_an_absent_class_makes_macro_areas_null_and_says_so() -> None:
    p, labels = predictions(80, 4, seed=3)
    keep = labels != 2
    result = evaluate(p[keep], labels[keep], classes=names(4))
    for name in ("auroc", "macro_auroc_ovr", "macro_auprc"):
        assert result.scores[name].value is None
        assert result.scores[name].reason == "class class2 absent from the test set"
    for name in ("weighted_auroc_ovr", "macro_auroc_ovo", "micro_auroc_ovr", "balanced_accuracy", "log_loss"):
        assert result.scores[name].value is not None
    assert result.per_class["class2"]["recall"].reason == "class class2 absent from the test set"
    assert result.per_class["class1"]["auroc"].value is not None


def test_absent_classes_follow_scikit_learn_where_it_has_a_convention() -> None:
    from sklearn import metrics as sk

    p, labels = predictions(80, 4, seed=3)
    p, labels = p[labels != 2], labels[labels != 2]
    values = evaluate(p, labels, classes=names(4)).values
    guess = p.argmax(1)
    assert values["macro_f1"] == pytest.approx(sk.f1_score(labels, guess, average="macro"))
    ovo = sk.roc_auc_score(labels, p, multi_class="ovo", average="weighted", labels=range(4))
    assert values["weighted_auroc_ovo"] == pytest.approx(ovo)
    with pytest.warns(UserWarning, match="y_pred contains classes"):
        balanced = sk.balanced_accuracy_score(labels, guess)
    assert values["balanced_accuracy"] == pytest.approx(balanced)


def test_a_single_class_test_set_never_crashes() -> None:
    p, labels = predictions(80, 3, seed=4)
    result = evaluate(p[labels == 1], labels[labels == 1], classes=names(3))
    assert result.scores["auroc"].reason == "every test image is of class class1"
    assert result.scores["macro_auroc_ovo"].value is None
    recall = (p[labels == 1].argmax(1) == 1).mean()
    assert result.scores["balanced_accuracy"].value == pytest.approx(recall)
    right = evaluate(np.tile([0.0, 1.0, 0.0], (5, 1)), [1] * 5, classes=names(3))
    assert right.scores["quadratic_kappa"].value is None
    assert right.scores["quadratic_kappa"].reason


def test_probabilities_that_do_not_cover_every_class_leave_label_metrics() -> None:
    p, labels = predictions(60, 3, seed=5)
    result = evaluate(p[:, :2], labels, classes=names(3))
    assert result.scores["accuracy"].value == pytest.approx((p[:, :2].argmax(1) == labels).mean())
    for name in ("auroc", "micro_auprc", "log_loss", "brier"):
        assert result.scores[name].reason == "the probabilities do not cover class class2"
    assert result.scores["ece"].value is not None
    assert result.per_class["class0"]["auroc"].value is not None


def test_images_that_were_not_scored_are_left_out() -> None:
    p, labels = predictions(60, 3, seed=6)
    holes = p.copy()
    holes[:5] = np.nan
    result = evaluate(holes, labels, classes=names(3))
    assert result.values == evaluate(p[5:], labels[5:], classes=names(3)).values
    assert result.num_samples == 55
    assert "5 of 60 images" in result.notes[0]


def test_an_empty_test_set_has_reasons_and_no_numbers() -> None:
    result = evaluate(np.zeros((0, 3)), [], classes=names(3))
    assert set(result.values.values()) == {None}
    assert set(result.reasons) == set(METRICS)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below_as_in_guo_and_thunder() -> None:
    # 0.6 = 9/15 (right) shares the bin of 0.58 (wrong) and not that of 0.62 (wrong).
    p = [[0.6, 0.4], [0.58, 0.42], [0.62, 0.38]]
    expected = abs(0.5 - 0.59) * 2 / 3 + 0.62 / 3
    assert evaluate(p, [0, 1, 1], classes=names(2)).scores["ece"].value == pytest.approx(expected)
    last = [[0.95, 0.05], [1.0, 0.0]]  # one right in the last bin
    assert evaluate(last, [0, 1], classes=names(2)).scores["ece"].value == pytest.approx(0.475)


RESULTS_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "results.md"


def test_label_metrics_are_those_that_a_confusion_matrix_gives() -> None:
    confusion = np.array([[[5.0, 1.0, 2.0], [0.0, 4.0, 1.0], [3.0, 0.0, 6.0]]])
    found = {name for name, values in label_metrics_of(confusion).items() if np.isfinite(values)}
    assert found == LABEL_METRICS


@pytest.mark.parametrize("metric", CATALOGUE, ids=METRICS)
def test_better_is_what_the_catalogue_says(metric: Metric) -> None:
    labels = np.arange(90) % 3
    good, bad = (
        evaluate(np.where(np.eye(3)[said] == 1, 0.8, 0.1), labels, classes=["a", "b", "c"]).values[
            metric.name
        ]
        for said in (labels, np.where(np.arange(90) % 2, labels, (labels + 1) % 3))
    )
    assert good is not None
    assert bad is not None
    assert good < bad if metric.lower_is_better else good > bad


@pytest.mark.parametrize("metric", CATALOGUE, ids=METRICS)
def test_every_metric_stands_in_the_documentation(metric: Metric) -> None:
    better = "lower" if metric.lower_is_better else "higher"
    assert f"| `{metric.name}` | {metric.description} | {better} |\n" in RESULTS_PAGE.read_text("utf-8")
