"""A results folder as a static site: data files, thumbnails and the pages that show them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from histobench import __version__
from histobench.core.errors import HistobenchError
from histobench.report.board import board_payload
from histobench.report.encoder_facts import encoder_facts
from histobench.report.headline import metric_facts
from histobench.report.inventory import Inventory, take_inventory
from histobench.report.methods import methods_payload
from histobench.report.page import write_page
from histobench.report.payload import write_payload
from histobench.report.site_folder import site_folder
from histobench.report.table import TableJob, TableResult, build_table
from histobench.report.table_statistics import ALPHA, Allowance

log = logging.getLogger(__name__)
#: Fewer runs than this are not worth starting processes for.
_WORTH_PROCESSES = 400
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
    on_progress: Progress = lambda stage, done, total: None,
) -> Path:
    """Write the site of a results folder to `out` and return the path of its first page.

    `images` is the dataset (CSV, folder or shards) that the test images are found in, or one for each
    dataset by name. `thorough` resamples every comparison however many there are. With `live` the pages
    look for a newer build by themselves. `workers` processes share the work; a script that asks for more
    than one needs the usual `if __name__ == "__main__"`.
    """
    results_dir, out = Path(results_dir).resolve(), Path(out).resolve()
    if not results_dir.is_dir():
        raise HistobenchError(f"no results folder at {results_dir}")
    inventory = take_inventory(results_dir)
    if not inventory.runs:
        raise HistobenchError(
            f"no results in {results_dir}; run `histobench evaluate` with --log_dir pointing there first"
        )
    with site_folder(out) as site:
        results = list(_tables(inventory, site, thorough, workers, on_progress))
        _write_boards(inventory, results, site)
        write_payload(site, "methods", methods_payload(inventory, results))
        write_payload(site, "site", _overview(inventory, results, title or results_dir.name, live))
        write_page(site, title or results_dir.name)
    return out / "index.html"


def _tables(
    inventory: Inventory, site: Path, thorough: bool, workers: int, on_progress: Progress
) -> Iterator[TableResult]:
    tables = inventory.tables
    # Few-shot and label-efficiency come in many settings; they must not starve the main boards.
    settings = sum(bool(inventory.boards[board].setting) for board, _ in tables)
    jobs = []
    for (board, dataset), numbers in tables.items():
        alike = settings if inventory.boards[board].setting else len(tables) - settings
        jobs.append(
            TableJob(
                board=board,
                dataset=inventory.datasets[dataset],
                dataset_index=dataset,
                runs={n: (inventory.row_names[n], inventory.runs[n]) for n in numbers},
                site=site,
                allowance=Allowance.shared_by(alike, thorough=thorough),
            )
        )
    for done, result in enumerate(_mapped(jobs, workers, len(inventory.runs)), start=1):
        on_progress("runs", done, len(jobs))
        yield result


def _mapped(jobs: list[TableJob], workers: int, n_runs: int) -> Iterable[TableResult]:
    if workers <= 1 or n_runs < _WORTH_PROCESSES:
        yield from map(build_table, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(build_table, jobs)


def _write_boards(inventory: Inventory, results: list[TableResult], site: Path) -> None:
    names = dict(enumerate(inventory.row_names))
    for board in inventory.boards:
        members = [result for result in results if result.board == board.number]
        write_payload(site, f"board/{board.number}", board_payload(members, names))


def _overview(inventory: Inventory, results: list[TableResult], title: str, live: bool) -> dict[str, Any]:
    encoders = list(inventory.encoders)
    failures = {number: text for result in results for number, text in result.failures.items()}
    return {
        "title": title,
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "alpha": ALPHA,
        "live": live,
        "encoders": [encoder_facts(name) for name in encoders],
        "datasets": _dataset_facts(inventory, results),
        "metrics": metric_facts(),
        "boards": [
            {"task": board.task, "setting": board.setting, "preset": board.preset}
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
        "thumbs": [],
        "maps": [""] * len(inventory.runs),
        "agents": 0,
        "failures": {str(number): text for number, text in failures.items()},
        "unreadable": list(inventory.unreadable),
    }


def _dataset_facts(inventory: Inventory, results: list[TableResult]) -> list[dict[str, Any]]:
    facts = []
    for index, name in enumerate(inventory.datasets):
        members = [result for result in results if result.dataset_index == index]
        classes = next(
            run.classes for run, d in zip(inventory.runs, inventory.dataset_of, strict=True) if d == index
        )
        facts.append(
            {
                "name": name,
                "images": max((result.n_images for result in members), default=0),
                "groups": max((result.n_groups or 0 for result in members), default=0) or None,
                "classes": len(classes),
            }
        )
    return facts
