"""Datasets that are folders: one folder per class, with or without train/val/test above them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.data.dataset import RoiDataset, RoiImage
from histobench.roi.data.image_names import image_names
from histobench.roi.data.problem import Problem, Reading
from histobench.roi.data.sites import as_sites, sites_in_path
from histobench.roi.data.split import SPLIT_WORDS, arrange, group_of

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")
#: What file managers leave behind, besides everything that starts with a dot.
_NOISE = frozenset({"thumbs.db", "desktop.ini", "__macosx", "ehthumbs.db", "@eadir", "icon\r"})

Found = tuple[str | None, str, str]  # split, class, path relative to the dataset's folder


def scan_folder(
    path: str | Path,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    *,
    split: tuple[float, float, float] | None = None,
    group_regex: str | None = None,
    site_regex: str | None = None,
    seed: int = 0,
) -> Reading:
    """Read a folder of class folders, or of train/val/test folders of class folders.

    Class folders may have folders inside. Without `classes` the classes are the folder names, sorted.
    `split` shares divide class folders that have no train/test above them, whole groups at a time.
    """
    root = Path(path)
    warnings: list[Problem] = []
    problems: list[Problem] = []
    found, names = _walk(root, splitting=split is not None, warnings=warnings)
    classes = tuple(classes) if classes is not None else tuple(sorted(names))
    ids = {class_name: identity for identity, class_name in enumerate(classes)}
    for class_name in sorted(set(names) - set(ids)):
        message = f"the folder is not in the class map; {did_you_mean(class_name, classes)}"
        problems.append(Problem(str(names[class_name]), message, "label"))
    placed: list[tuple[str | None, RoiImage]] = []
    for (word, class_name, file), image_name in zip(
        found, image_names([f for _, _, f in found]), strict=True
    ):
        group = None if group_regex is None else group_of(file, group_regex)
        sites = {} if site_regex is None else sites_in_path(file, site_regex)
        origin = str(root / file)
        if group_regex is not None and group is None:
            message = f"`group_regex` {group_regex!r} finds no group in {file!r}"
            problems.append(Problem(origin, message, "groups", same=f"group {group_regex}"))
        elif sites is None:
            message = f"`site_regex` {site_regex!r} finds no site in {file!r}"
            problems.append(Problem(origin, message, "sites", same=f"site {site_regex}"))
        elif class_name in ids:
            label = ids[class_name]
            placed.append((word, RoiImage(root / file, label, image_name, origin, group, as_sites(sites))))
    splits = arrange(placed, split, seed=seed)
    dataset = RoiDataset(name or root.resolve().name, classes, splits)
    return Reading(dataset, tuple(problems), tuple(warnings))


def _walk(root: Path, *, splitting: bool, warnings: list[Problem]) -> tuple[list[Found], dict[str, Path]]:
    """All images below `root`, sorted, with their split and class; and every class with a folder of it."""
    folders = _folders(root)
    if not folders:
        raise HistobenchError(f"{root} has no class folders (expected one folder of images per class)")
    for table in [entry for entry in _entries(root) if entry.lower().endswith(".csv")]:
        message = "a CSV in a folder is not read; to use what it says, give the CSV itself"
        warnings.append(Problem(str(root / table), message))
    words = {folder: SPLIT_WORDS.get(folder.lower()) for folder in folders}
    if not any(words.values()):
        if not splitting:
            raise HistobenchError(
                f"{root} has class folders ({_some(folders)}) but no train and test folders; "
                "say how to split it: `split` 0.7/0.1/0.2"
            )
        return _classes_below(root, None, "", warnings)
    odd = [folder for folder, word in words.items() if word is None]
    if odd:
        raise HistobenchError(
            f"{root} mixes splits ({_some(f for f in folders if words[f])}) with others ({_some(odd)});"
            " expected either train/val/test or one folder per class"
        )
    if splitting:
        raise HistobenchError(f"{root} has {_some(folders)} folders already; leave out `split`")
    found: list[Found] = []
    names: dict[str, Path] = {}
    for folder in folders:
        images, classes = _classes_below(root / folder, words[folder], f"{folder}/", warnings)
        found += images
        names = classes | names
    return found, names


def _classes_below(
    folder: Path, split: str | None, prefix: str, warnings: list[Problem]
) -> tuple[list[Found], dict[str, Path]]:
    found: list[Found] = []
    names = _folders(folder)
    stray = [entry for entry in _entries(folder) if _is_image(entry) and not (folder / entry).is_dir()]
    if stray:
        warnings.append(Problem(str(folder), f"outside the class folders, left out: {_some(stray)}"))
    for name in names:
        others: list[str] = []
        for parent, below, files in os.walk(folder / name):
            below[:] = sorted(entry for entry in below if not _is_noise(entry))
            inside = Path(parent).relative_to(folder).as_posix()
            for file in sorted(entry for entry in files if not _is_noise(entry)):
                if _is_image(file):
                    found.append((split, name, f"{prefix}{inside}/{file}"))
                else:
                    others.append(file)
        if others:
            warnings.append(Problem(str(folder / name), f"not images by name, left out: {_some(others)}"))
    return found, {name: folder / name for name in names}


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry for entry in os.listdir(folder) if not _is_noise(entry))
    except FileNotFoundError:
        raise HistobenchError(f"the folder {folder} does not exist") from None
    except OSError as error:
        raise HistobenchError(f"cannot read the folder {folder}: {error.strerror or error}") from error


def _folders(folder: Path) -> list[str]:
    return [entry for entry in _entries(folder) if (folder / entry).is_dir()]


def _is_noise(name: str) -> bool:
    return name.startswith(".") or name.lower() in _NOISE


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def _some(names: Iterable[str], *, shown: int = 4) -> str:
    names = list(names)
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest
