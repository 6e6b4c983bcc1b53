"""A results folder as a static site: data files, thumbnails and the pages that show them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.version import __version__
from histobench.report.agents import find_agent_runs, write_agents
from histobench.report.board import Board, board_payload, split_payload, split_tables
from histobench.report.consult_page import find_studies, write_studies
from histobench.report.dataset_payload import dataset_payload
from histobench.report.embedding_map import write_maps
from histobench.report.encoder_facts import encoder_facts, measured_speed
from histobench.report.encoder_pages import write_encoder_pages, write_top_tiles
from histobench.report.image_source import image_sources, relevant_sources
from histobench.report.inventory import Inventory, take_inventory, without_folder
from histobench.report.methods import methods_payload
from histobench.report.payload import facts_of, site_folder, write_page, write_payload
from histobench.report.robustness_page import board_index, write_robustness_page
from histobench.report.table import (
    TableJob,
    TableResult,
    WrongImages,
    build_table,
    metric_facts,
    shown_metrics,
)
from histobench.report.thumbnails import Cache, write_thumbnails
from histobench.roi.comparison.choice import run_command
from histobench.roi.comparison.robustness_tables import robustness_tables
from histobench.roi.comparison.table_statistics import ALPHA
from histobench.roi.encoders.own_name import UNCHECKED
from histobench.roi.plan.notes import read_dataset_notes
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.reader import existing_folder
from histobench.roi.results.robustness_files import load_robustness
from histobench.roi.task_catalogue import CLASS

log = logging.getLogger(__name__)
#: Less than this is not worth starting processes for: runs, and bytes of predictions.
_MANY_RUNS, _MANY_BYTES = 400, 2**26
Progress = Callable[[str, int, int], None]


def build_site(
    results_dir: str | Path,
    out: str | Path,
    *,
    images: str | Path | Mapping[str, str | Path] | None = None,
    title: str = "",
    thorough: bool = False,
    workers: int = 1,
    live: bool = False,
    cache: Cache | None = None,
    on_progress: Progress = lambda stage, done, total: None,
) -> Path:
    """Write the site of a results folder to `out` and return the path of its first page.

    `images` is the dataset (CSV, folder or shards) that the test images are found in, or one for each
    dataset by name. `thorough` checks every dataset and draws every map. With `live` the pages
    look for a newer build by themselves. `workers` processes share the work; a script that asks for more
    than one needs the usual `if __name__ == "__main__"`. `cache` keeps thumbnails between builds.
    """
    results_dir, out = existing_folder(results_dir).resolve(), Path(out).resolve()
    inventory = take_inventory(results_dir)
    studies, torn = find_studies(results_dir)
    agents, broken = find_agent_runs(results_dir, elsewhere=[played.study.folder for played in studies])
    unreadable = [*inventory.unreadable, *broken, *torn]
    if not inventory.runs and not agents and not studies:
        raise HistobenchError(
            f"no results in {results_dir}"
            + (f" that can be read: {unreadable[0]}" if unreadable else "; `histobench run` writes some")
        )
    for text in unreadable:
        log.warning("left out: %s", text)
    sources = image_sources(inventory, images, results_dir=results_dir)
    title = title or results_dir.name
    kept: Cache = {} if cache is None else cache
    with site_folder(out) as site:
        results = list(_tables(inventory, site, results_dir, workers, on_progress))
        failures = [f"shown without its predictions: {text}" for r in results for text in r.failures.values()]
        problems = [f"not compared: {result.problem}" for result in results if result.problem]
        for text in dict.fromkeys([*failures, *problems]):
            log.warning("%s", without_folder(text, results_dir))
        row_names = dict(enumerate(inventory.row_names))
        over_splits = split_tables(results_dir)
        ranked = False
        for board in inventory.boards:
            members = [result for result in results if result.board == board.number]
            alike = board.task, board.setting, board.preset
            splits = [each for preset, each in over_splits if (each.task, each.setting, preset) == alike]
            commands = _split_commands(inventory, board, results_dir)
            content = board_payload(board, members, row_names, splits, commands, results_dir.name)
            write_payload(site, f"board/{board.number}", content)
            ranked = ranked or any(metric["ranking"] for metric in content["metrics"].values())
        sets = [_image_sets(results, index) for index in range(len(inventory.datasets))]
        names = {
            name: {image for shown in own.values() for image in shown.images.names}
            for name, own in zip(inventory.datasets, sets, strict=True)
        }
        relevant = relevant_sources(sources, names)
        thumbs: list[str] = []
        for index, name in enumerate(inventory.datasets):
            if name in relevant:
                progress = partial(on_progress, f"thumbnails of {name}")
                thumbs += write_thumbnails(
                    site,
                    str(index),
                    sets[index],
                    relevant[name],
                    cache=kept,
                    workers=workers,
                    on_progress=progress,
                )
        robustness = robustness_tables(load_robustness(results_dir))
        for index, name in enumerate(inventory.datasets):
            facts = dataset_payload(
                index, inventory, results, relevant.get(name), robustness=robustness, thorough=thorough
            )
            tables = [split_payload(each, preset) for preset, each in over_splits if each.dataset == name]
            write_payload(site, f"dataset/{index}", facts | {"splits": tables})
        wanted = {
            number: (
                str(inventory.runs[number].info.get("test_features") or ""),
                result.image_sets[key].images,
            )
            for result in results
            for number, key in result.image_set_of.items()
        }
        progress = partial(on_progress, "maps")
        maps = write_maps(site, wanted, near=results_dir, thorough=thorough, on_progress=progress)
        splits = [each for _, each in over_splits]
        methods = methods_payload(inventory, results, results_dir, agents, robustness, splits, ranked=ranked)
        write_payload(site, "methods", methods)
        if agents:
            write_agents(site, agents, kept)
        shows_robustness = write_robustness_page(site, robustness, results_dir, relevant, kept)
        write_studies(site, studies, kept)
        more_pages = write_encoder_pages(site, results_dir, inventory)
        tiles = write_top_tiles(site, inventory, sources, kept)
        speeds, device = measured_speed(results_dir)
        on_board = board_index(robustness)
        for encoder in (overview := _overview(inventory, results, title, results_dir))["encoders"]:
            encoder["speed"] = speeds.get(encoder["name"])
            encoder["robustness"] = on_board and on_board["values"].get(encoder["name"])
        overview |= {
            "speedDevice": device,
            "live": live,
            "thumbs": thumbs,
            "maps": [maps.get(number, "") for number in range(len(inventory.runs))],
            "agents": [run.name for run in agents],
            "robustness": shows_robustness,
            "robustnessIndex": on_board and {key: on_board[key] for key in ("dataset", "column")},
            "consult": [played.name for played in studies],
            **more_pages,
            "tiles": tiles,
            "unreadable": unreadable,
        }
        write_payload(site, "site", overview)
        (site / "built.txt").write_text(overview["built"], encoding="ascii")
        write_page(site, title)
    return out / "index.html"


def check_apart(out: Path, results_dir: Path) -> None:
    if out.resolve().is_relative_to(results_dir.resolve()):
        raise HistobenchError(
            f"the site's folder {out} is inside the results folder ({results_dir}); "
            "choose a folder outside it"
        )


def _split_commands(inventory: Inventory, board: Board, results_dir: Path) -> dict[int, str]:
    """By dataset, the command that repeats the runs of a board over splits, where its data are known."""
    noted = read_dataset_notes(results_dir)
    found = {}
    for (number, dataset), numbers in inventory.tables.items():
        name = inventory.datasets[dataset]
        if number == board.number and name in noted:
            names, like = [inventory.row_names[n] for n in numbers], inventory.runs[numbers[0]]
            found[dataset] = run_command(
                results_dir, name, names, like, splits="5x5", seen_from=results_dir.parent
            )
    return found


def _image_sets(results: list[TableResult], dataset: int) -> dict[str, WrongImages]:
    """The test images of a dataset, and which of them any run gets wrong."""
    sets: dict[str, WrongImages] = {}
    for result in results:
        for key, shown in result.image_sets.items() if result.dataset_index == dataset else ():
            wrong = shown.wrong | sets[key].wrong if key in sets else shown.wrong
            sets[key] = WrongImages(shown.images, wrong)
    return sets


def _tables(
    inventory: Inventory, site: Path, results_dir: Path, workers: int, on_progress: Progress
) -> Iterator[TableResult]:
    jobs = [
        TableJob(
            board=board,
            dataset=inventory.datasets[dataset],
            dataset_index=dataset,
            runs={n: (inventory.row_names[n], inventory.runs[n]) for n in numbers},
            site=site,
            results_dir=results_dir,
        )
        for (board, dataset), numbers in inventory.tables.items()
    ]
    with ExitStack() as stack:
        mapped: Iterable[TableResult] = map(build_table, jobs)
        if workers > 1 and _is_large(inventory):
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=get_context("spawn")))
            mapped = pool.map(build_table, jobs)
        for done, result in enumerate(mapped, start=1):
            on_progress("runs", done, len(jobs))
            yield result


def _is_large(inventory: Inventory) -> bool:
    files = (TaskFiles.beside(run.path).detailed for run in inventory.runs)
    return len(inventory.runs) >= _MANY_RUNS or (
        sum(path.stat().st_size for path in files if path.exists()) >= _MANY_BYTES
    )


def _overview(
    inventory: Inventory, results: list[TableResult], title: str, results_dir: Path
) -> dict[str, Any]:
    encoders = list(inventory.encoders)
    unchecked = {run.identity.encoder for run in inventory.runs if UNCHECKED in run.caveats}
    failures = {str(n): without_folder(text, results_dir) for r in results for n, text in r.failures.items()}
    return {
        "title": title,
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "alpha": ALPHA,
        "encoders": [encoder_facts(name, unchecked=name in unchecked) for name in encoders],
        "datasets": _dataset_facts(inventory, results),
        "metrics": metric_facts(inventory.runs),
        "boards": [
            facts_of(board, "task", "setting", "preset")
            | {
                "metrics": list(
                    dict.fromkeys(
                        name
                        for run, place in zip(inventory.runs, inventory.board_of, strict=True)
                        if place == board.number
                        for name in shown_metrics(run.target, board.preset)
                    )
                )
            }
            for board in inventory.boards
        ],
        "runs": {
            "encoder": [encoders.index(run.identity.encoder) for run in inventory.runs],
            "dataset": list(inventory.dataset_of),
            "board": list(inventory.board_of),
            "name": [
                "" if name == run.identity.encoder else name
                for name, run in zip(inventory.row_names, inventory.runs, strict=True)
            ],
        },
        "failures": failures,
    }


def _dataset_facts(inventory: Inventory, results: list[TableResult]) -> list[dict[str, Any]]:
    facts = []
    for index, name in enumerate(inventory.datasets):
        members = [result for result in results if result.dataset_index == index]
        runs = [run for run, d in zip(inventory.runs, inventory.dataset_of, strict=True) if d == index]
        facts.append(
            {
                "name": name,
                "images": max((max(result.n_images, result.n_tiles) for result in members), default=0),
                "groups": max((result.n_groups or 0 for result in members), default=0) or None,
                "classes": len(next((run.classes for run in runs if run.target == CLASS), ())),
                "targets": list(dict.fromkeys(run.target for run in runs if run.target != CLASS)),
            }
        )
    return facts
