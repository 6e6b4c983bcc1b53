"""The blinding audit: can a classifier tell two encoders apart by the form of their tools' answers?

It sees layout, digits, numbers and ids of all answers. Classes and confidences are left out: they are what
the tool has to say, and an encoder may be recognized by its quality.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from histobench.consult.study import BlindingCheck, Case, Cassette, groups_of
from histobench.consult.study_plan import ROLES
from histobench.consult.tool_text import read_neighbours
from histobench.core.plain_data import parse_json
from histobench.statistics.jackknife import bounds, leave_one_out
from histobench.statistics.resampling import sampling_design

Floats = NDArray[np.float64]
#: Tools whose numbers are the tool's confidence.
CONFIDENCES = ("predict", "zero_shot", "track_record")
#: Of the interval of an AUC: a blind study is refused by chance in about 1 of 100.
LEVEL = 0.99
FOLDS = 5
_RANK = re.compile(r"^\d+\. ", re.MULTILINE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_HEX = re.compile(r"[0-9a-f]+")
_ID = re.compile(r"(, image )\w+$", re.MULTILINE)


def blinding_checks(
    cases: Sequence[Case], cassette: Cassette, names: Sequence[str], *, seed: int = 0
) -> tuple[BlindingCheck, ...]:
    """For every two encoders of a study: the AUC with which the form of their answers tells them apart."""
    by_case: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for row in cassette.rows:
        by_case.setdefault((row.image, row.arm), []).append((row.tool, row.arguments, row.answer))
    arms = [role for role in ROLES if all(role in case.arms for case in cases)]
    checks = []
    for first, second in combinations(arms, 2):
        forms = [
            {**_form(by_case.get((case.id, arm), ()), names), "tools": float(case.arms[arm].zero_shot)}
            for arm in (first, second)
            for case in cases
        ]
        fields = sorted({name for form in forms for name in form})
        table = np.array([[form.get(name, -1.0) for name in fields] for form in forms])
        # Of fields that say the same, such as a list of five and the beginning of one of ten, the first.
        kept = np.sort(np.unique(table, axis=1, return_index=True)[1])
        fields, table = [fields[column] for column in kept], table[:, kept]
        groups = groups_of(cases) * 2
        weights = np.array([case.weight for case in cases] * 2)
        label = np.repeat([0, 1], len(cases))
        auc, low, high = _auc(_scores(table, label, groups, weights, seed), label, groups, weights)
        n_groups = len(set(groups))
        alone = [_tells(column, label, weights) for column in table.T]
        worst = int(np.argmax(alone))
        checks.append(BlindingCheck(first, second, auc, low, high, fields[worst], alone[worst], n_groups))
    return tuple(checks)


def _tells(column: Floats, label: NDArray[np.int64], weights: Floats) -> float:
    """How far one field by itself is from telling nothing, by its values or by their spread: an AUC."""
    from sklearn.metrics import roc_auc_score

    spread = np.abs(column - np.median(column))
    found = [float(roc_auc_score(label, values, sample_weight=weights)) for values in (column, spread)]
    return max(max(auc, 1 - auc) for auc in found)


def _scores(
    table: Floats, label: NDArray[np.int64], groups: Sequence[str], weights: Floats, seed: int
) -> Floats:
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.model_selection import GroupKFold

    codes = np.unique(np.asarray(groups), return_inverse=True)[1]
    folds = min(FOLDS, int(codes.max()) + 1)
    scores = np.zeros(len(label))
    if folds < 2 or not np.ptp(table, axis=0).any():
        return scores
    for fit, test in GroupKFold(folds, shuffle=True, random_state=seed).split(table, label, codes):
        model = GradientBoostingClassifier(n_estimators=50, max_depth=2, subsample=0.8, random_state=seed)
        said = model.fit(table[fit], label[fit], sample_weight=weights[fit]).decision_function(table[test])
        # Every case is in its fold in both arms: folds differ in their level, which tells nothing.
        scores[test] = said - said.mean()
    return scores


def _auc(
    scores: Floats, label: NDArray[np.int64], groups: Sequence[str], weights: Floats
) -> tuple[float, float, float]:
    from scipy.special import expit, logit
    from sklearn.metrics import roc_auc_score

    def auc(counts: NDArray[np.int32]) -> dict[str, Floats]:
        values = [roc_auc_score(label, scores, sample_weight=weights * count) for count in counts]
        return {"auc": np.array(values)}

    design = sampling_design(len(label), clusters=groups)
    if design.n_units < 2:
        return 0.5, 0.0, 1.0
    found = leave_one_out(auc, design, max_blocks=100)
    low, high = bounds(replace(found, size=len(label) / 2), level=LEVEL)
    value, clip = float(found.values[0]), 1 / len(label)
    center, ends = (logit(np.clip(each, clip, 1 - clip)) for each in (value, np.array([low[0], high[0]])))
    # Without a leak two folds agree by chance in both directions, which the groups' own spread does not show:
    # the variance is twice as large.
    wider = expit(center + np.sqrt(2) * (ends - center))
    return value, float(wider[0]), float(wider[1])


def _form(answers: Iterable[tuple[str, str, str]], names: Sequence[str]) -> dict[str, float]:
    """Fields of the form of what the tools said of a case in an arm: layout, digits, other numbers, ids."""
    fields: dict[str, float] = {}
    longest = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    # A class may be called 1 or 0.5: names are masked where the tools write them, not inside other numbers.
    classes = re.compile(rf"(^|, )(?:{longest})(?= [01]\.\d|, image )", re.MULTILINE)
    for tool, arguments, answer in answers:
        given = ", ".join(f"{name}={value}" for name, value in parse_json(arguments).items())
        place = f"{tool}({given})"
        ids = [near.image for near in read_neighbours(answer)] if tool == "neighbours" else []
        for rank, id in enumerate(ids, start=1):
            fields[f"{place} id {rank}"] = float(int(id[:8], 16)) if _HEX.fullmatch(id) else -1.0
        answer = classes.sub(r"\1", _ID.sub(r"\1", _RANK.sub("", answer)))
        numbers = _NUMBER.findall(answer)
        fields[f"{place} lines"] = float(answer.count("\n"))
        fields[f"{place} numbers"] = float(len(numbers))
        fields[f"{place} decimals"] = float(max((len(n.partition(".")[2]) for n in numbers), default=0))
        fields[f"{place} words"] = float(len(_NUMBER.sub("", answer)))
        if tool not in CONFIDENCES:
            fields |= {f"{place} number {k}": float(number) for k, number in enumerate(numbers, start=1)}
    return fields
