"""The slow definitions: every metric by scikit-learn, one call each."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn import metrics as sk


def reference(p: np.ndarray, y: np.ndarray, predicted: np.ndarray | None = None) -> dict[str, float]:
    """Every metric of probabilities [n, c]; all classes must be present."""
    c = p.shape[1]
    ids = np.arange(c)
    guess = p.argmax(1) if predicted is None else predicted
    out = {"accuracy": sk.accuracy_score(y, guess), "mcc": sk.matthews_corrcoef(y, guess)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out["balanced_accuracy"] = sk.balanced_accuracy_score(y, guess)
        for kind in ("macro", "weighted", "micro"):
            precision, recall, f1, _ = sk.precision_recall_fscore_support(
                y, guess, average=kind, zero_division=0
            )
            out |= {f"{kind}_precision": precision, f"{kind}_recall": recall, f"{kind}_f1": f1}
        if c == 2:
            area, ap = sk.roc_auc_score(y, p[:, 1]), sk.average_precision_score(y, p[:, 1])
            for name in ("macro_auroc_ovr", "weighted_auroc_ovr", "micro_auroc_ovr", "macro_auroc_ovo"):
                out[name] = area
            out["weighted_auroc_ovo"] = area
            out |= {f"{kind}_auprc": ap for kind in ("macro", "weighted", "micro")}
        else:
            one_hot = np.eye(c)[y]
            for kind in ("macro", "weighted", "micro"):
                out[f"{kind}_auroc_ovr"] = sk.roc_auc_score(one_hot, p, average=kind)
                out[f"{kind}_auprc"] = sk.average_precision_score(one_hot, p, average=kind)
            for kind in ("macro", "weighted"):
                out[f"{kind}_auroc_ovo"] = sk.roc_auc_score(y, p, average=kind, multi_class="ovo", labels=ids)
        for kind in ("quadratic", "linear"):
            out[f"{kind}_kappa"] = sk.cohen_kappa_score(y, guess, weights=kind, labels=ids)
        out["log_loss"] = sk.log_loss(y, p, labels=ids)
        out["brier"] = sk.brier_score_loss(y, p, labels=ids) if c > 2 else sk.brier_score_loss(y, p[:, 1])
    out["ece"], out["mce"] = calibration_by_loop(p, y, guess)
    out["precision"], out["recall"], out["f1_score"] = (
        out["macro_precision"],
        out["macro_recall"],
        out["macro_f1"],
    )
    out["auroc"] = out["macro_auroc_ovr"]
    return out


def calibration_by_loop(
    p: np.ndarray, y: np.ndarray, guess: np.ndarray, bins: int = 15
) -> tuple[float, float]:
    """ECE and MCE of the top label (the guess, unless another is more probable), bins closed at the right."""
    confidence = p.max(1)
    named = [g if p[row, g] == confidence[row] else int(p[row].argmax()) for row, g in enumerate(guess)]
    edges = np.linspace(0, 1, bins + 1)
    ece = mce = 0.0
    for k in range(bins):
        above = confidence > edges[k] + 1e-10 if k else np.ones(len(y), dtype=bool)
        inside = above & (confidence <= edges[k + 1] + 1e-10)
        if inside.any():
            gap = abs((np.array(named) == y)[inside].mean() - confidence[inside].mean())
            ece += gap * inside.mean()
            mce = max(mce, gap)
    return ece, mce
