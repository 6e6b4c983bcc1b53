"""Where every number comes from, and the words to say it in a paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from histobench.core.text import count_of
from histobench.core.version import __version__
from histobench.report.agents import AgentRun
from histobench.report.encoder_facts import bibtex, encoder_facts
from histobench.report.inventory import Inventory
from histobench.report.run_payload import provenance
from histobench.report.table import TableResult
from histobench.roi.comparison.answer import GROUPS
from histobench.roi.comparison.robustness_tables import RobustnessTable
from histobench.roi.comparison.splits_compared import SplitTable
from histobench.roi.comparison.table_statistics import MAX_T
from histobench.roi.data.sites import PAIR_COLUMN
from histobench.roi.data.source import DatasetSource
from histobench.roi.metrics.metric_catalogue import described
from histobench.roi.plan.notes import read_dataset_notes
from histobench.roi.task_catalogue import CLASS, task_words

_OWN_BIBTEX = f"""@software{{histobench,
  author = {{{{The histobench authors}}}},
  title = {{{{histobench: which pathology foundation model should I use, and how sure can I be?}}}},
  version = {{{__version__}}}
}}"""
_COLUMNS = ("preset", "seed", "fingerprint", "version", "date", "command")


_MINT_BIBTEX = """@inproceedings{wang2024mint,
  author = {Wang, Xingyao and Wang, Zihan and Liu, Jiateng and Chen, Yangyi and Yuan, Lifan and Peng, Hao and Ji, Heng},
  title = {{MINT: Evaluating LLMs in Multi-turn Interaction with Tools and Language Feedback}},
  booktitle = {International Conference on Learning Representations},
  year = {2024}
}"""  # noqa: E501


def methods_payload(
    inventory: Inventory,
    results: list[TableResult],
    results_dir: Path,
    agents: Sequence[AgentRun] = (),
    robustness: Sequence[RobustnessTable] = (),
    over_splits: Sequence[SplitTable] = (),
    *,
    ranked: bool = False,
) -> dict[str, Any]:
    """Provenance of every run by column, citations, BibTeX and the paragraph; `ranked`: over datasets."""
    rows = [provenance(run, results_dir) for run in inventory.runs]
    facts = [encoder_facts(name) for name in inventory.encoders]
    entries = dict.fromkeys(entry for entry in map(bibtex, facts) if entry)
    return {
        "provenance": {name: [row[name] for row in rows] for name in _COLUMNS},
        "bibtex": "\n\n".join([_OWN_BIBTEX, *entries, *([_MINT_BIBTEX] if agents else [])]),
        "paragraph": _joined(
            paragraph(inventory, results, read_dataset_notes(results_dir), over_splits, ranked=ranked),
            robustness_paragraph(robustness),
        ),
        "software": software(inventory),
        "how": sorted({result.how for result in results if result.how}),
        "tests": sorted({test for result in results for test, _ in result.tests.values() if test}),
    }


def paragraph(
    inventory: Inventory,
    results: list[TableResult],
    notes: Mapping[str, DatasetSource],
    over_splits: Sequence[SplitTable] = (),
    *,
    ranked: bool = False,
) -> str:
    """A paragraph for the methods section that says what was done, table by table, and nothing else."""
    if not inventory.runs:
        return ""
    presets = sorted({board.preset for board in inventory.boards if board.preset})
    seeds = sorted({run.identity.seed for run in inventory.runs})
    names = f" ({', '.join(inventory.encoders)})" if len(inventory.encoders) <= _MOST_NAMED else ""
    recipe = f", preset{'s' if len(presets) > 1 else ''} {_and(presets)}" if presets else ""
    return _joined(
        f"We evaluated {count_of(len(inventory.encoders), 'frozen image encoder')}{names} on "
        f"{count_of(len(inventory.datasets), 'dataset')} by "
        f"{_and(list(dict.fromkeys(task_words(board.task) for board in inventory.boards)))} with histobench "
        f"{__version__}{recipe}, seed{'s' if len(seeds) > 1 else ''} {_and(list(map(str, seeds)))}.",
        *_datasets_sentences(inventory, results, notes),
        _interval_sentence(results),
        *_test_sentences(inventory, results),
        *map(_splits_sentence, over_splits),
        "Mean ranks over datasets were compared with Friedman's test and Nemenyi's critical difference."
        if ranked
        else "",
    )


#: Most encoders that the paragraph names, and datasets of one test.
_MOST_NAMED, _MOST_TABLES = 12, 6


def _datasets_sentences(
    inventory: Inventory, results: Sequence[TableResult], notes: Mapping[str, DatasetSource]
) -> Iterator[str]:
    """What each dataset holds; one sentence for those that are alike."""
    alike: dict[str, list[str]] = {}
    for index, name in enumerate(inventory.datasets):
        alike.setdefault(_dataset_words(index, inventory, results, notes.get(name)), []).append(name)
    for words, names in alike.items():
        yield f"{_and(names)}{' (each)' if len(names) > 1 else ''}: {words}"


def _dataset_words(
    index: int, inventory: Inventory, results: Sequence[TableResult], note: DatasetSource | None
) -> str:
    """Images, patients and classes of one dataset, and how it was divided."""
    runs = [run for run, d in zip(inventory.runs, inventory.dataset_of, strict=True) if d == index]
    members = [result for result in results if result.dataset_index == index]
    infos = [run.info for run in runs]

    def most(key: str) -> int:
        return max((info[key] for info in infos if isinstance(info.get(key), int)), default=0)

    tested = max((max(result.n_images, result.n_tiles) for result in members), default=0)
    groups = max((result.n_groups or 0 for result in members), default=0)
    classes = max((len(run.classes) for run in runs if run.target == CLASS), default=0)
    train, train_groups, val = most("num_train"), most("num_train_groups"), most("num_val")
    joined = val and any("joined" in str(info.get("val_use")) for info in infos)
    chosen = val and any("choose" in str(info.get("val_use")) for info in infos)

    def images(number: int, kind: str, n_groups: int) -> str:
        return count_of(number, f"{kind} image") + (f" of {n_groups:,} {GROUPS}" if n_groups else "")

    parts = [f"{classes} classes"] if classes else []
    if train:
        more = f", {val:,} of them from the validation set, which was joined to the training set"
        parts.append(images(train, "training", train_groups) + (more if joined else ""))
    if chosen:
        parts.append(f"{count_of(val, 'validation image')} to choose hyper-parameters")
    parts.append(images(tested, "test", groups))
    words = "; ".join(parts)
    if note is not None and note.split is not None:
        whole = ", all images of one patient or slide in the same part" if groups else ""
        shares = note.split if isinstance(note.split, str) else "/".join(map(str, note.split))
        words += f"; the images were divided at random ({shares}, seed {note.seed}){whole}"
    single = [text for text in dict.fromkeys(t for run in runs for t in run.caveats) if "one group" in text]
    return ". ".join([words, *single]) + "."


def _interval_sentence(results: list[TableResult]) -> str:
    if not any(result.interval_kinds for result in results):
        return "No confidence intervals are given."
    grouped = any(result.n_groups for result in results)
    units = f"{GROUPS} where they were known, images otherwise" if grouped else "images"
    return (
        "95% confidence intervals are jackknife intervals with Student's t on Wilson's scale, with an "
        f"allowance for unseen mistakes, over {units}{_means_words(results)}"
    )


def _test_sentences(inventory: Inventory, results: Sequence[TableResult]) -> Iterator[str]:
    """Which metrics of which tables were tested, and why others were not; one sentence for equal tables."""
    alike: dict[tuple[tuple[str, ...], str], dict[str, list[str]]] = {}
    for result in results:
        board = inventory.boards[result.board]
        kept = {metric: each for metric, each in result.evidence.items() if len(each.values) > 1}
        if not kept:
            continue
        tested = tuple(described(metric).title for metric, each in kept.items() if each.may_be_best)
        first = next(iter(kept.values()))
        untested = ""
        if not first.may_be_best:
            reason = first.reason.removeprefix("no interval: ") or "too few images"
            untested = f"Differences of {described(first.metric).title} were not tested: {reason}. "
        task = " ".join(filter(None, (board.task, board.setting)))
        dataset = inventory.datasets[result.dataset_index]
        alike.setdefault((tested, untested), {}).setdefault(task, []).append(dataset)
    for (tested, untested), tables in alike.items():
        on: dict[tuple[str, ...], list[str]] = {}  # tasks by their datasets
        for task, datasets in tables.items():
            on.setdefault(tuple(datasets), []).append(task)
        named = f"{sum(map(len, tables.values()))} tables"
        if max(map(len, on)) <= _MOST_TABLES:
            named = _and([f"{_and(tasks)} on {_and(list(datasets))}" for datasets, tasks in on.items()])
        made = "No other differences were tested." if untested else ""
        if tested:
            made = (
                f"Differences of {_and(list(tested))} were tested for all pairs of encoders on the same test "
                f"images ({MAX_T}; family-wise error rate 0.05 within each metric and table)."
            )
        yield f"{named}: {untested}{made}"
    if sum(len(datasets) for tables in alike.values() for datasets in tables.values()) > 1:
        yield "There was no correction for the number of tables or metrics."


def _splits_sentence(table: SplitTable) -> str:
    of = f" of {table.n_groups:,} {GROUPS}" if table.n_groups else ""
    return (
        f"On {table.dataset}, {table.task} was repeated on {table.n_splits} splits ({table.scheme}) "
        f"of all {table.n_images:,} images{of}; differences of the mean {described(table.metric).title} were "
        "tested by the corrected resampled t-test with Holm's correction over all pairs."
    )


def _means_words(results: list[TableResult]) -> str:
    """What intervals of means over episodes are over, where there are such."""
    over = {result.how.removeprefix("jackknife over ") for result in results}
    both = sorted(words for words in over if words.startswith(("episodes and", "training runs and")))
    shown = both + (["episodes alone, for these test images"] if "episodes" in over else [])
    return f"; those of means over episodes or training runs are over {_and(shown)}." if shown else "."


def robustness_paragraph(tables: Sequence[RobustnessTable]) -> str:
    paired = [table for table in tables if table.column == PAIR_COLUMN]
    tables = [table for table in tables if table.column != PAIR_COLUMN]
    return _joined(_sites_sentence(tables), _pairs_sentence(paired))


def _pairs_sentence(tables: Sequence[RobustnessTable]) -> str:
    if not tables:
        return ""
    details = [pack.content["details"] for table in tables for pack in table.packs]
    columns = list(dict.fromkeys(column for each in details for column in each.get("view_columns", ())))
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


def software(inventory: Inventory) -> dict[str, list[str]]:
    """Package -> the versions that the runs were made with."""
    found: dict[str, set[str]] = {}
    for run in inventory.runs:
        versions = run.info.get("versions")
        for name, version in versions.items() if isinstance(versions, dict) else ():
            found.setdefault(str(name), set()).add(str(version))
    return {name: sorted(versions) for name, versions in found.items()}


def _and(words: list[str], word: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {word} {words[-1]}"


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))
