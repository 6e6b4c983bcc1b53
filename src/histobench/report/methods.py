"""Where every number comes from, and the words to say it in a paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from histobench.consult.findings import is_policy
from histobench.core.version import __version__
from histobench.mint.results.uncertainty import rate_interval
from histobench.report.agents import AgentRun
from histobench.report.consult_page import PlayedStudy
from histobench.report.encoder_facts import bibtex, encoder_facts
from histobench.report.inventory import Inventory
from histobench.report.run_payload import provenance
from histobench.report.table import TableResult
from histobench.roi.comparison.robustness_tables import RobustnessTable
from histobench.roi.data.sites import PAIR_COLUMN
from histobench.roi.task_catalogue import task_words

_OWN_BIBTEX = f"""@software{{histobench,
  author = {{{{The histobench authors}}}},
  title = {{{{histobench: which pathology foundation model should I use, and how sure can I be?}}}},
  version = {{{__version__}}}
}}"""
_COLUMNS = ("preset", "seed", "fingerprint", "version", "date", "train_features", "test_features")


_MINT_BIBTEX = """@inproceedings{wang2024mint,
  author = {Wang, Xingyao and Wang, Zihan and Liu, Jiateng and Chen, Yangyi and Yuan, Lifan and Peng, Hao and Ji, Heng},
  title = {{MINT: Evaluating LLMs in Multi-turn Interaction with Tools and Language Feedback}},
  booktitle = {International Conference on Learning Representations},
  year = {2024}
}"""  # noqa: E501


def methods_payload(
    inventory: Inventory,
    results: list[TableResult],
    agents: Sequence[AgentRun] = (),
    robustness: Sequence[RobustnessTable] = (),
    studies: Sequence[PlayedStudy] = (),
) -> dict[str, Any]:
    """Provenance of every run by column, citations, BibTeX and the paragraph."""
    rows = [provenance(run) for run in inventory.runs]
    facts = [encoder_facts(name) for name in inventory.encoders]
    entries = dict.fromkeys(entry for entry in map(bibtex, facts) if entry)
    return {
        "provenance": {name: [row[name] for row in rows] for name in _COLUMNS},
        "bibtex": "\n\n".join([_OWN_BIBTEX, *entries, *([_MINT_BIBTEX] if agents else [])]),
        "paragraph": " ".join(
            filter(
                None,
                [
                    paragraph(inventory, results),
                    robustness_paragraph(robustness),
                    agents_paragraph(agents),
                    consult_paragraph(studies),
                ],
            )
        ),
        "software": software(inventory),
        "how": resamples({result.how for result in results if result.how}),
        "tests": sorted({test for result in results for test, _ in result.tests.values() if test}),
    }


def resamples(how: Iterable[str]) -> list[str]:
    """Where intervals come from; numbers of resamples of the same things as one range.

    >>> resamples(["1000 resamples of groups", "5000 resamples of groups", "jackknife over images"])
    ['jackknife over images', '1,000 to 5,000 resamples of groups']
    """
    numbers: dict[str, set[int]] = {}
    others = set()
    for text in how:
        count, _, rest = text.partition(" ")
        if count.isdigit():
            numbers.setdefault(rest, set()).add(int(count))
        else:
            others.add(text)
    return sorted(others) + [
        (f"{min(counts):,} to {max(counts):,} {rest}" if len(counts) > 1 else f"{min(counts):,} {rest}")
        for rest, counts in sorted(numbers.items())
    ]


def paragraph(inventory: Inventory, results: list[TableResult]) -> str:
    """A paragraph for the methods section that says what was done, and nothing that was not."""
    if not inventory.runs:
        return ""
    tasks = list(dict.fromkeys(board.task for board in inventory.boards))
    presets = sorted({board.preset for board in inventory.boards if board.preset})
    seeds = sorted({run.identity.seed for run in inventory.runs})
    n_images = sum(
        max((r.n_images for r in results if r.dataset_index == k), default=0)
        for k in range(len(inventory.datasets))
    )
    grouped = any(result.n_groups for result in results)
    units = "patients or slides where they were known, images otherwise" if grouped else "images"
    tests = sorted({test for result in results for test, _ in result.tests.values() if test})
    sentences = [
        f"We evaluated {_count(len(inventory.encoders), 'frozen image encoder')} on "
        f"{_count(len(inventory.datasets), 'dataset')} ({', '.join(inventory.datasets)}; {n_images:,} test "
        f"images in all) with histobench {__version__}, by {_and([task_words(task) for task in tasks])}.",
        f"The evaluation followed the preset{'s' if len(presets) > 1 else ''} {_and(presets)} with "
        f"seed{'s' if len(seeds) > 1 else ''} {_and([str(seed) for seed in seeds])}." if presets else "",
        f"95% confidence intervals are {_interval_words(results)} over {units}"
        + _means_words(results),
        f"Encoders were compared on the same test images ({_and(tests)}) at a family-wise error rate of 0.05 "
        "over all pairs of a table." if tests else "",
        "Mean ranks over datasets were compared with Friedman's test and Nemenyi's critical difference."
        if len(inventory.datasets) > 1 and len(inventory.encoders) > 1 else "",
    ]  # fmt: skip
    return " ".join(sentence for sentence in sentences if sentence)


def _means_words(results: list[TableResult]) -> str:
    """What intervals of means over episodes are over, where there are such."""
    over = {result.how.removeprefix("jackknife over ") for result in results}
    both = sorted(words for words in over if words.startswith(("episodes and", "training runs and")))
    alone = ["episodes alone, for these test images"] if "episodes" in over else []
    return (
        f"; those of means over episodes or training runs are over {_and(both + alone)}."
        if both + alone
        else "."
    )


def _interval_words(results: list[TableResult]) -> str:
    kinds = {kind for result in results for kind in result.interval_kinds}
    words = {
        "wilson-t": "jackknife intervals with Student's t on Wilson's scale, with an allowance for unseen "
        "mistakes",
        "percentile": "percentile bootstrap intervals",
        "bca": "BCa bootstrap intervals",
    }
    return _and([word for kind, word in words.items() if kind in kinds] or [words["wilson-t"]])


def robustness_paragraph(tables: Sequence[RobustnessTable]) -> str:
    """What was done to tell the tissue from the site."""
    paired = [table for table in tables if table.column == PAIR_COLUMN]
    tables = [table for table in tables if table.column != PAIR_COLUMN]
    return " ".join(filter(None, (_sites_sentence(tables), _pairs_sentence(paired))))


def _pairs_sentence(tables: Sequence[RobustnessTable]) -> str:
    if not tables:
        return ""
    columns = list(
        dict.fromkeys(
            column
            for table in tables
            for pack in table.packs
            for column in pack.content["details"].get("view_columns", ())
        )
    )
    return (
        f"Images of the same place under another {_and(columns, 'or')} were compared in pairs: the cosine of "
        "their features, and how often one was among the k nearest of the other in the images of both "
        "slides; values are medians over pairs of slides, with jackknife intervals over groups."
    )


def _sites_sentence(tables: Sequence[RobustnessTable]) -> str:
    if not tables:
        return ""
    columns = _and(list(dict.fromkeys(table.column for table in tables)))
    sizes = {pack.content["details"].get("k") for table in tables for pack in table.packs} - {None}
    chosen = f"k = {_and([str(k) for k in sorted(sizes)], 'or')}, " if sizes else "k chosen "
    return (
        f"Robustness to {columns} was measured on the images of all splits: the robustness index (share of "
        "neighbors of the same class from another site among those that share either class or site; "
        f"{chosen}by the balanced accuracy of the majority vote), the cross-site margin, the AUROC of a "
        "cross-validated logistic regression of the site, and balanced accuracy at sites left out of "
        "training; neighbors and folds never shared a patient or slide where these were known, and "
        "intervals are those of the jackknife over them (each left out as query and as neighbor)."
    )


def agents_paragraph(agents: Sequence[AgentRun]) -> str:
    """What was done with language-model agents."""
    if not agents:
        return ""
    names = list(dict.fromkeys(run.agent for run in agents))
    datasets = sorted({episode.outcome.task for run in agents for episode in run.episodes})
    tasks = {episode.outcome.key for run in agents for episode in run.episodes}
    budgets = sorted({run.k for run in agents})
    experts = list(dict.fromkeys(run.feedback_model for run in agents if run.feedback))
    methods = sorted({rate_interval([each.outcome for each in run.episodes]).method for run in agents})
    sentences = [
        f"We evaluated {_count(len(names), 'language-model agent')} ({', '.join(names)}) on "
        f"{_count(len(tasks), 'task')} of {_count(len(datasets), 'dataset')} ({', '.join(datasets)}) by the "
        f"multi-turn protocol of MINT with at most {_and([str(k) for k in budgets], 'or')} turns, read by "
        f"histobench {__version__}.",
        f"Runs with feedback had it from {_and(experts)}." if experts else "",
        f"95% confidence intervals of success rates are those of {_and(methods)}"
        + ("; gains from feedback are paired by task, with Student's t over tasks." if experts else "."),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def consult_paragraph(studies: Sequence[PlayedStudy]) -> str:
    """What was done with agents that consult encoders."""
    if not studies:
        return ""
    names = list(
        dict.fromkeys(name for study in studies for name in study.findings.agents if not is_policy(name))
    )
    encoders = list(
        dict.fromkeys(encoder.name for study in studies for encoder in study.study.facts.encoders)
    )
    played = {arm for study in studies for _, arm in study.findings.plays}
    arms = list(dict.fromkeys(arm for study in studies for arm in study.study.facts.arms if arm in played))
    cases = sum(len(study.study.cases) for study in studies)
    datasets = list(dict.fromkeys(study.study.facts.dataset for study in studies))
    grouped = any(case.group for study in studies for case in study.study.cases)
    who = f"{_count(len(names), 'language-model agent')} ({', '.join(names)}) and " if names else ""
    return (
        f"In the consultation study {who}reference policies answered {_count(cases, 'case')} of "
        f"{_and(datasets)} before and after they could ask {_and(encoders)}, in the "
        f"arm{'s' if len(arms) > 1 else ''} {_and(arms)}. Cases were sampled with half of them, as far as "
        "there were so many, from the regions that the strong encoder's probe gets wrong, and weighted by "
        "the inverse of their selection probability; intervals come from leaving out "
        f"one {'patient or slide' if grouped else 'case'} (in sequences: one sequence) at a time, with "
        "Student's t, and the contrasts registered in advance were corrected by Holm's method."
    )


def software(inventory: Inventory) -> dict[str, list[str]]:
    """Package -> the versions that the runs were made with."""
    found: dict[str, set[str]] = {}
    for run in inventory.runs:
        versions = run.info.get("versions")
        for name, version in versions.items() if isinstance(versions, dict) else ():
            found.setdefault(str(name), set()).add(str(version))
    return {name: sorted(versions) for name, versions in found.items()}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _and(words: list[str], word: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {word} {words[-1]}"
