"""Which stored runs stand in one table, and what each is called there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.text import natural_order
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import (
    ADAPTED,
    FINE_TUNE,
    LINEAR,
    MASK,
    OF_TOKENS,
    TARGETS,
    WITH_METHODS,
    main_task,
)

#: What is compared of a task with several settings where none is named; Fine-tune has a control beside it.
_MAIN_SETTINGS = {FINE_TUNE: (ADAPTED, ADAPTED + OF_TOKENS), TARGETS[MASK].task: (LINEAR,)}

#: Of the few-shot settings, the one that most papers print.
PREFERRED_SHOT = 16


def select_runs(
    runs: Sequence[StoredRun],
    *,
    task: str | None = None,
    setting: str | None = None,
    preset: str | None = None,
    encoders: Sequence[str] | None = None,
    dataset: str | None = None,
    seed: int | None = None,
) -> list[StoredRun]:
    """The runs of one task (the main one, unless named) at one setting; an ambiguous choice is refused."""
    task = task or main_task(run.task for run in runs)
    chosen = having(runs, "task", task)
    chosen = having(chosen, "dataset", dataset)
    chosen = having(chosen, "preset", preset)
    chosen = having(chosen, "seed", None if seed is None else str(seed))
    settings = sorted({run.setting for run in chosen}, key=natural_order)
    main = _MAIN_SETTINGS.get(chosen[0].task, ())
    if main_task(run.task for run in runs) == TARGETS[MASK].task:  # of masks is the folder's main question
        main = main[::-1]
    if setting is None and main:
        setting = next((name for name in main if name in settings), main[0])
    if setting is not None:
        chosen = having(chosen, "setting", setting)
    elif len(settings) > 1:
        raise HistobenchError(
            f"{task} has {len(settings)} settings ({', '.join(settings)}); choose one, "
            f"such as `setting` {settings[-1]}"
        )
    if encoders:
        chosen = _of_encoders(chosen, list(encoders))
    return chosen


def _of_encoders(runs: Sequence[StoredRun], encoders: list[str]) -> list[StoredRun]:
    shown = {
        run.path: name
        for members in by_dataset(runs).values()
        for name, run in distinct_names(members).items()
    }
    found: dict[Path, StoredRun] = {}
    for name in encoders:
        mine = {run.path: run for run in runs if name in (run.identity.encoder, shown[run.path])}
        if not mine:
            known = {run.identity.encoder for run in runs} | set(shown.values())
            raise HistobenchError(f"no run of the encoder {name!r} here; {did_you_mean(name, known - {''})}")
        found |= mine
    return list(found.values())


def by_dataset(runs: Iterable[StoredRun]) -> dict[str, list[StoredRun]]:
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        groups.setdefault(run.identity.dataset, []).append(run)
    return groups


def by_task(runs: Sequence[StoredRun]) -> dict[tuple[str, str, str, int], list[StoredRun]]:
    """The runs that stand in one table: one task, preset, setting and seed (which may divide the images).

    Of several settings each dataset shows one: for few-shot all its classes and, where there are, 16 shots.
    Settings that are methods (of the task Patient) each have a table, the main one first.
    """

    def alike(run: StoredRun) -> tuple[str, str, str, int]:
        return run.task, run.identity.preset, run.identity.dataset, run.identity.seed

    settings: dict[tuple[str, str, str, int], set[str]] = {}
    for run in runs:
        settings.setdefault(alike(run), set()).add(run.setting)
    groups: dict[tuple[str, str, str, int], list[StoredRun]] = {}
    for run in runs:
        shown = run.setting if (run.task in WITH_METHODS) else max(settings[alike(run)], key=_preference)
        if run.setting == shown:
            key = (run.task, run.identity.preset, shown, run.identity.seed)
            groups.setdefault(key, []).append(run)
    places = {key: place for place, key in reversed(list(enumerate((k[0], k[1], k[3]) for k in groups)))}

    def order(key: tuple[str, str, str, int]) -> tuple[int, bool]:
        return places[key[0], key[1], key[3]], key[2] not in _MAIN_SETTINGS.get(key[0], key[2:3])

    return {key: groups[key] for key in sorted(groups, key=order)}


def _preference(setting: str) -> tuple[int, int, str]:
    way, _, shot = setting.partition("way_")
    if way.isdigit() and shot.removesuffix("shot").isdigit():
        return int(way), -abs(int(shot.removesuffix("shot")) - PREFERRED_SHOT), setting
    return 0, 0, setting


def distinct_names(runs: Sequence[StoredRun]) -> dict[str, StoredRun]:
    """A name for each run: its encoder, and what sets it apart where an encoder has several runs."""
    names = [run.identity.encoder or _folder(run) for run in runs]
    for what in _APART:
        values: dict[str, set[str]] = {}
        for name, run in zip(names, runs, strict=True):
            values.setdefault(name, set()).add(what(run))
        names = [
            f"{name} [{what(run)}]" if len(values[name]) > 1 else name
            for name, run in zip(names, runs, strict=True)
        ]
    return dict(zip(names, runs, strict=True))


def _folder(run: StoredRun) -> str:
    folder = run.path.parent
    while folder.name.startswith("way_") or folder.name == run.task:
        folder = folder.parent
    return folder.as_posix() if folder != Path() else "."


#: What may set the runs of an encoder apart; the file tells copies of results that lie side by side.
_APART: tuple[Callable[[StoredRun], str], ...] = (
    lambda run: run.identity.preset,
    lambda run: run.setting,
    lambda run: f"size {run.identity.size}",
    lambda run: f"seed {run.identity.seed}",
    _folder,
    lambda run: run.path.name,
)


#: What runs are chosen by, and where it stands in a run.
_CHOICES: dict[str, Callable[[StoredRun], str]] = {
    "encoder": lambda run: run.identity.encoder,
    "task": lambda run: run.task,
    "dataset": lambda run: run.identity.dataset,
    "preset": lambda run: run.identity.preset,
    "setting": lambda run: run.setting,
    "seed": lambda run: str(run.identity.seed),
}


def having(runs: Sequence[StoredRun], what: str, wanted: str | None) -> list[StoredRun]:
    """The runs whose `what` (one of `_CHOICES`) is the wanted one, or all; one that no run has is refused."""
    if wanted is None:
        return list(runs)
    value = _CHOICES[what]
    known = {value(run) for run in runs}
    if what == "task":
        wanted = next((task for task in known if task.lower() == wanted.lower()), wanted)
    if wanted not in known:
        hint = did_you_mean(wanted, known - {""}) if known != {""} else f"they are of no {what}"
        raise HistobenchError(f"no results of the {what} {wanted!r} here; {hint}")
    return [run for run in runs if value(run) == wanted]
