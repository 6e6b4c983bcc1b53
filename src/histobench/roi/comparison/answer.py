"""The answer of a comparison: which encoders may be the best, which are worse, and on what evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from histobench.core.text import count_of
from histobench.roi.comparison.comparison import Comparison, DatasetTable
from histobench.roi.comparison.table_statistics import TableStatistics
from histobench.roi.metrics.metric_catalogue import described
from histobench.roi.task_catalogue import ON_IMAGES, PATIENT

#: A list of more names than this is cut short.
_MOST_NAMES = 6
#: The sizes of more datasets than this are given as a range.
_MOST_COUNTED = 4
#: What tests a metric on all patients where one test set has too few of a class.
REMEDY = "--splits 5x5"
#: Ends the caveat of a result whose patients are on both sides of the split; answers repeat it.
TOO_GOOD = "the results are likely too good"
#: In the caveat of a result without the images that `on_bad_image` skip has passed over.
LEFT_OUT = "left out as unusable"
#: What groups are, in sentences.
GROUPS = "patients or slides"
#: The control of the zoo, with random weights.
UNTRAINED_ENCODER = "random-vit"
Value = tuple[float, float | None, float | None]  # with the bounds of its interval


@dataclass(frozen=True)
class Evidence:
    """One dataset: the encoders that have a value, and which of them may be the best.

    `may_be_best` is empty where nothing was tested, and `reason` says why.
    """

    dataset: str
    metric: str
    values: Mapping[str, Value]  # highest first (lowest, for a loss)
    may_be_best: tuple[str, ...]
    n_images: int
    n_groups: int | None
    level: float = 0.95
    reason: str = ""
    splits: str = ""  # such as "25 splits (5x5)"
    of_patients: bool = False
    instead: Evidence | None = None  # another metric that could be tested
    doubt: str = ""  # why no value here can be trusted

    @property
    def worse(self) -> tuple[str, ...]:
        tested = self.values if self.may_be_best else ()
        return tuple(name for name in tested if name not in self.may_be_best)

    @property
    def counted(self) -> str:
        row = "patient" if self.of_patients else "image"
        groups = "" if self.n_groups is None or self.of_patients else f" of {self.n_groups:,} {GROUPS}"
        if self.splits:
            return f"{self.splits} of all {count_of(self.n_images, row)}{groups}"
        return f"{count_of(self.n_images, f'test {row}')}{groups}"


@dataclass(frozen=True)
class Answer:
    """`best` may be the best on every tested dataset; `worse` are shown to be worse on at least one."""

    best: tuple[str, ...]
    worse: tuple[str, ...]
    metric: str  # by which they were tested; empty where nothing was
    tested: tuple[str, ...]  # datasets
    text: str


def evidence_of(comparison: Comparison) -> list[Evidence]:
    return [evidence_of_table(comparison, table) for table in comparison.tables]


def evidence_of_table(comparison: Comparison, table: DatasetTable, metric: str = "") -> Evidence:
    values: dict[str, Value] = {
        entry.name: (entry.value, entry.interval.low, entry.interval.high)
        for entry in table.entries
        if entry.value is not None
    }
    inside = () if table.standings is None else table.standings.best
    reasons = (entry.interval.reason for entry in table.entries if entry.interval.reason)
    return Evidence(
        table.dataset or "results",
        metric or comparison.metric,
        values,
        tuple(name for name in values if name in inside),
        table.n_images,
        table.n_groups,
        1 - comparison.alpha,
        "" if inside else next(reasons, ""),
        of_patients=comparison.task == PATIENT or comparison.setting == "patients",
        doubt=doubt_of(text for entry in table.entries for text in entry.caveats),
        instead=None if table.instead is None else evidence_of_table(comparison, table.instead, "accuracy"),
    )


def evidence_of_statistics(
    dataset: str,
    metric: str,
    statistics: TableStatistics,
    values: Mapping[str, Mapping[str, float | None]],
    *,
    of_patients: bool,
    doubt: str = "",
) -> Evidence:
    """The evidence of one metric of the report's tables; `values` are those of each run by metric."""
    found = statistics.metrics[metric]
    inside = () if found.standings is None else found.standings.best
    known: dict[str, Value] = {}
    for name in found.order:
        value, interval = values[name].get(metric), found.intervals.get(name)
        if value is not None:
            known[name] = (value, None, None) if interval is None else (value, interval.low, interval.high)
    reasons = (interval.reason for interval in found.intervals.values() if interval.reason)
    tests_accuracy = "accuracy" in statistics.metrics and metric != "accuracy" and not inside
    return Evidence(
        dataset,
        metric,
        known,
        tuple(name for name in known if name in inside),
        statistics.n_images,
        statistics.n_groups,
        reason="" if inside else next(reasons, found.note),
        of_patients=of_patients,
        doubt=doubt,
        instead=evidence_of_statistics(dataset, "accuracy", statistics, values, of_patients=of_patients)
        if tests_accuracy
        else None,
    )


def doubt_of(caveats: Iterable[str]) -> str:
    """The first caveat that says that training images show the patients of the test."""
    return next((text for text in caveats if TOO_GOOD in text), "")


def answer(evidence: Sequence[Evidence], *, task: str, metric: str, setting: str = "") -> Answer:
    tested = [each for each in evidence if each.may_be_best]
    untested = [each for each in evidence if not each.may_be_best]
    instead = [each.instead for each in untested if each.instead is not None and each.instead.may_be_best]
    judged = tested or instead
    named = f"{task} {setting}".strip()
    said = [_finding(tested, named)] if tested else []
    for each in untested:
        said.append(_not_tested(each, named))
        if each.instead is not None and each.instead in instead:
            said.append(f"By accuracy, in which frequent classes count most, {_sure_verdict(each.instead)}.")
    if task not in ON_IMAGES and any(map(needs_splits, untested)):  # which have no splits
        said.append(f"To test {_words(metric)} on all {GROUPS}, repeat the run with `{REMEDY}`.")
    said.extend(sorted({f"Caution: {each.dataset}: {each.doubt}." for each in evidence if each.doubt}))
    if UNTRAINED_ENCODER in _everywhere(judged):
        said.append(f"{UNTRAINED_ENCODER} is untrained: nothing is shown to be better than random weights.")
    return Answer(
        _everywhere(judged),
        tuple(dict.fromkeys(name for each in judged for name in each.worse)),
        judged[0].metric if judged else "",
        tuple(each.dataset for each in judged),
        " ".join(said),
    )


def needs_splits(each: Evidence) -> bool:
    return not each.may_be_best and each.n_groups is not None and not each.splits and len(each.values) > 1


def _everywhere(judged: Sequence[Evidence]) -> tuple[str, ...]:
    first = judged[0].may_be_best if judged else ()
    return tuple(name for name in first if all(name in each.may_be_best for each in judged))


def _words(metric: str) -> str:
    found = described(metric)
    return found.title if found.kind == "target" else metric.replace("_", " ")


def _finding(tested: Sequence[Evidence], task: str) -> str:
    """One sentence on datasets that were tested by the same metric."""
    first, metric = tested[0], _words(tested[0].metric)
    if len(tested) == 1:
        return f"On {first.dataset} ({task}, {metric}; {first.counted}), {_sure_verdict(first)}."
    level = f"{100 * first.level:g}%"
    sure = f"({level} confidence on each dataset, not corrected for their number)"
    where = "; ".join(f"{each.dataset}: {each.counted}" for each in tested)
    if len(tested) > _MOST_COUNTED:
        sizes = [f"{size:,}" for size in sorted({each.n_images for each in tested})]
        rows = "patients" if first.of_patients else "images"
        where = f"{' to '.join(sizes[:: len(sizes) - 1 or 1])} test {rows} each"
    start = f"On {len(tested)} datasets ({task}, {metric}; {where})"
    everywhere = _everywhere(tested)
    every = dict.fromkeys(name for each in tested for name in each.values)
    if not everywhere:
        each_one = "; ".join(f"on {each.dataset}, {_verdict(each)}" for each in tested)
        return f"{start}, no encoder may be the best on all: {each_one} {sure}."
    if all(each.may_be_best == everywhere for each in tested) and len(everywhere) == 1:
        there = "" if all(len(each.values) == len(every) for each in tested) else " that was run there"
        return f"{start}, {everywhere[0]} is better than every other encoder{there} on each {sure}."
    worse = dict.fromkeys(name for each in tested for name in each.worse)
    others = [name for name in every if name not in everywhere and name not in worse]
    if len(everywhere) == len(every):
        names = listed_names(everywhere)
        return f"{start}, no difference between {names} is shown: each may be the best {sure}."
    parts = [f"{listed_names(everywhere, 'or')} may be the best on all"]
    if worse:
        parts.append(f"{listed_names(tuple(worse))} {_are(worse)} shown to be worse on at least one")
    if others:
        was = "was" if len(others) == 1 else "were"
        parts.append(f"{listed_names(others)} {was} not run on all of them, and not shown to be worse")
    return f"{start}, {'; '.join(parts)} {sure}."


def _sure_verdict(each: Evidence) -> str:
    together = " for all pairs together" if len(each.values) > 2 else ""
    return f"{_verdict(each)} ({100 * each.level:g}% confidence{together})"


def _verdict(each: Evidence) -> str:
    """Which encoders may be the best on one dataset, and which are worse."""
    best, worse = each.may_be_best, each.worse
    shown = f"{best[0]} ({_shown(each.values[best[0]])})"
    if len(best) == 1:
        if len(worse) == 1:
            return f"{shown} is better than {worse[0]} ({_shown(each.values[worse[0]])})"
        return f"{shown} is the best of {len(each.values)} encoders: {listed_names(worse)} are worse"
    named = listed_names([f"{name} ({_shown(each.values[name])})" for name in best], "or" if worse else "and")
    if not worse:
        return f"no difference between {named} is shown: each may be the best"
    return f"{named} may be the best; {listed_names(worse)} {_are(worse)} shown to be worse than {best[0]}"


def _not_tested(each: Evidence, task: str) -> str:
    if len(each.values) < 2:
        only = next(iter(each.values), None)
        return f"On {each.dataset} nothing was compared: {only or 'no encoder'} is the only encoder there."
    reason = each.reason.removeprefix("no interval: ") or "the test images do not show how much values vary"
    where, what = f"On {each.dataset} ({task}; {each.counted})", _words(each.metric)
    return f"{where}, differences of {what} could not be tested: {reason}."


def _shown(value: Value) -> str:
    number, low, high = value
    return f"{number:.3f}" if low is None or high is None else f"{number:.3f} [{low:.3f}, {high:.3f}]"


def listed_names(names: Sequence[str] | Mapping[str, object], word: str = "and") -> str:
    """Names as in a sentence; of many, the first."""
    every = list(names)
    if len(every) > _MOST_NAMES + 1:
        every, word = [*every[:_MOST_NAMES], f"{len(every) - _MOST_NAMES} more"], "and"
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} {word} {every[-1]}"


def _are(names: Sequence[str] | Mapping[str, object]) -> str:
    return "is" if len(names) == 1 else "are"
