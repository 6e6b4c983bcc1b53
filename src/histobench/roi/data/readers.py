"""Read datasets from folders of classes and from TAR archives."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import regular
from histobench.core.plain_data import read_json
from histobench.roi.data.image_ref import IMAGE_SUFFIXES, SLIDE_SUFFIXES, TILING, tar_members
from histobench.roi.data.image_table import ImageColumns
from histobench.roi.data.roi_dataset import Problem, Reading
from histobench.roi.data.sites import check_site_names, wanted_columns
from histobench.roi.data.split import SPLIT_WORDS, regex_for
from histobench.roi.data.table_reader import Collected, Wanted
from histobench.roi.data.tables import COLUMNS

#: What file managers leave behind, besides everything that starts with a dot.
_NOISE = frozenset({"thumbs.db", "desktop.ini", "__macosx", "ehthumbs.db", "@eadir", "icon\r"})

_FEATURE_SUFFIXES = (".h5", ".hdf5", ".h5ad", ".pt", ".pth", ".npy", ".npz", ".parquet")
_SHOWN = 4

Found = tuple[str | None, str, str]  # split, class, path relative to the dataset's folder

_TREE_WORDS = ("split", "class", "patient", "slide", "*")
#: Folders that are called like this are no patients and no classes: magnifications, sizes.
_SCALE = re.compile(r"\d+(\.\d+)?(x|px)", re.IGNORECASE)


def scan_folder(path: str | Path, wanted: Wanted) -> Reading:
    """Read a folder of class folders, or of train/val/test folders of class folders."""
    root = Path(path)
    called = wanted.name or root.resolve().name
    if is_results(root):
        raise HistobenchError(f"{root} is a folder of results, not a dataset; keep data and results apart")
    warnings = [
        Problem(str(root / name), "a folder of results, left out")
        for name in _names_in(root)
        if is_results(root / name)
    ]
    if wanted.tree:
        found, names, tree = _asked_tree(root, wanted.tree, wanted.split is not None, warnings)
    else:
        root = _inner(root)
        found, names = _walk(root, splitting=wanted.split is not None, warnings=warnings)
        tree = _tree(found)
    place = tree.index("class")
    if not wanted.tree and place and tree[place - 1] != "split":  # classes below patients
        found = [(word, file.split("/")[place], file) for word, _, file in found]
        names = {name: root for _, name, _ in found}
    grouped = next((tree.index(word) for word in ("patient", "slide") if word in tree), None)
    classes = tuple(wanted.classes) if wanted.classes is not None else tuple(sorted(names))
    collected = Collected(ImageColumns(root), replace(wanted, classes=classes), warnings=warnings)
    for class_name in sorted(set(names) - set(classes)):
        message = f"the folder is not in the class map; {did_you_mean(class_name, classes)}"
        collected.report(0, message, "label", origin=str(names[class_name]))
    for word, class_name, file in found:
        if class_name in classes:
            group = None if grouped is None else file.split("/")[grouped]
            collected.add(0, word, file, class_name, group, {})
    if found:
        collected.notes += [f"{root}: read as {'/'.join([*tree, 'image'])}", f"for example {found[0][2]}"]
    return collected.reading(called)


def _asked_tree(
    root: Path, asked: str, splitting: bool, warnings: list[Problem]
) -> tuple[list[Found], dict[str, Path], list[str]]:
    """All images below `root` by the tree that the caller names; images may be in folders below it."""
    tree = [word for word in asked.lower().split("/") if word]
    tree = tree[:-1] if tree[-1:] == ["image"] else tree
    wrong = [word for word in tree if word not in _TREE_WORDS]
    if wrong or "class" not in tree or len(set(tree) - {"*"}) < len([word for word in tree if word != "*"]):
        raise HistobenchError(
            f"`tree` {asked!r}: expected folders such as split/class/patient, of {', '.join(_TREE_WORDS)} "
            "(any other folder), each once, with class among them"
        )
    if ("split" in tree) == splitting:
        advice = "leave out `split`" if splitting else "add split to it, or give `split` 0.7/0.1/0.2"
        raise HistobenchError(f"`tree` {asked!r} {'has' if splitting else 'has no'} split; {advice}")
    _refuse_other_files(root)
    found: list[Found] = []
    names: dict[str, Path] = {}
    for file in _images_below(root, root, warnings):
        parts = file.split("/")[:-1]
        if len(parts) < len(tree):
            raise HistobenchError(f"{root / file} is not below folders {'/'.join(tree)} (`tree`)")
        folder = parts[tree.index("split")] if "split" in tree else ""
        word = SPLIT_WORDS.get(folder.lower())
        if folder and word is None:
            raise HistobenchError(f"{root / file}: the folder {folder} is not train, val or test (`tree`)")
        place = tree.index("class")
        found.append((word, parts[place], file))
        names.setdefault(parts[place], root.joinpath(*parts[: place + 1]))
    if not found:
        raise HistobenchError(f"{root} has no images below folders {'/'.join(tree)} (`tree`)")
    return found, names, tree


def _refuse_other_files(root: Path) -> None:
    """Raise for a folder without any image that holds slides or the features of another tool."""
    files = [file for _, _, files in os.walk(root) for file in files]
    if any(map(_is_image, files)):
        return
    if slides := sorted(filter(_is_slide, files)):
        raise HistobenchError(f"{root} has whole-slide files ({_some(slides)}), not tiles: {TILING}")
    if features := sorted(file for file in files if file.lower().endswith(_FEATURE_SUFFIXES)):
        raise HistobenchError(
            f"{root} has features ({_some(features)}), not images; give it as `features` NAME=FOLDER, and a "
            "table of labels as `data`"
        )


def _inner(root: Path) -> Path:
    """The folder of the classes, where it is nested too deep: below a single folder."""
    folders = _folders(root)
    while len(folders) == 1 and folders[0].lower() not in SPLIT_WORDS:
        below = _folders(root / folders[0])
        if len(below) < 2 or any(map(_is_image, _names_in(root / folders[0]))):
            break
        root, folders = root / folders[0], below
    return root


def _tree(found: Sequence[Found]) -> list[str]:
    """What the folders are: classes, classes below patients, or patients below classes.

    A folder of a patient has a number in its name. Classes below patients come back below most of them.
    """
    start = ["split"] if any(word for word, _, _ in found) else []
    folders = {tuple(file.split("/")[len(start) : -1]) for _, _, file in found}
    depths = {len(each) for each in folders}
    plain = [*start, "class"]
    if depths not in ({2}, {3}):
        return plain
    pairs = {each[:2] for each in folders}
    upper, lower = ({pair[place] for pair in pairs} for place in (0, 1))
    below = ["slide"] if depths == {3} else []

    def are_patients(names: set[str]) -> bool:
        numbered = [name for name in names if re.search(r"\d", name) and not _SCALE.fullmatch(name)]
        return len(numbered) >= 0.8 * len(names)

    if below and not are_patients({each[2] for each in folders}):
        return plain
    come_back = len(upper) > len(lower) >= 2 and len(pairs) >= 2 * len(lower)
    if come_back and are_patients(upper) and not any(map(_SCALE.fullmatch, lower)):
        return [*start, "patient", "class", *below]
    if len(lower) >= 2 * len(upper) and are_patients(lower):
        return [*plain, "patient", *below]
    return plain


def _walk(root: Path, *, splitting: bool, warnings: list[Problem]) -> tuple[list[Found], dict[str, Path]]:
    """All images below `root`, sorted, with their split and class; and every class with a folder of it."""
    folders = _folders(root)
    _refuse_other_files(root)
    if not folders:
        raise HistobenchError(f"{root} has no class folders (expected one folder of images per class)")
    for table in [entry for entry in _names_in(root) if entry.lower().endswith(".csv")]:
        message = "a CSV in a folder is not read; to use what it says, give the CSV itself"
        warnings.append(Problem(str(root / table), message))
    words = {folder: SPLIT_WORDS.get(folder.lower()) for folder in folders}
    if not any(words.values()):
        images = _images_below(root, root, warnings)
        if not splitting:
            regex = regex_for(["/".join(file.split("/")[-2:]) for file in images])
            groups = f", and `group_regex` '{regex}' for the patients in the names of files" if regex else ""
            raise HistobenchError(
                f"{root} has class folders ({_some(folders)}) but no train and test folders; "
                f"say how to split it: `split` 0.7/0.1/0.2{groups}"
            )
        return [(None, file.split("/")[0], file) for file in images], {name: root / name for name in folders}
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
        images = _images_below(root, root / folder, warnings)
        found += [(words[folder], file.split("/")[1], file) for file in images]
        names = {name: root / folder / name for name in _folders(root / folder)} | names
    return found, names


def _images_below(root: Path, folder: Path, warnings: list[Problem]) -> list[str]:
    """The paths, relative to `root`, of the images in the folders of a folder; others are warned of."""
    found: list[str] = []
    stray = [entry for entry in _names_in(folder) if _is_image(entry) and not (folder / entry).is_dir()]
    if stray:
        warnings.append(Problem(str(folder), f"outside the class folders, left out: {_some(stray)}"))
    for name in _folders(folder):
        others: list[str] = []
        for parent, below, files in os.walk(folder / name):
            below[:] = sorted(entry for entry in below if not _is_noise(entry))
            inside = Path(parent).relative_to(root).as_posix()
            kept = sorted(entry for entry in files if not _is_noise(entry))
            found += [f"{inside}/{file}" for file in kept if _is_image(file)]
            others += [file for file in kept if not _is_image(file)]
        if others:
            warnings.append(Problem(str(folder / name), f"not images by name, left out: {_some(others)}"))
    return found


def _names_in(folder: Path) -> list[str]:
    return sorted(entry for entry in os.listdir(folder) if not _is_noise(entry))


def _folders(folder: Path) -> list[str]:
    paths = [folder / entry for entry in _names_in(folder)]
    return [path.name for path in paths if path.is_dir() and not is_results(path)]


def is_results(folder: Path) -> bool:
    return (folder / "datasets.json").is_file() or (folder / "work" / "runs").is_dir()


def _is_noise(name: str) -> bool:
    return name.startswith(".") or name.lower() in _NOISE


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not _is_slide(name)


def _is_slide(name: str) -> bool:
    return name.lower().endswith((*SLIDE_SUFFIXES, ".ome.tif", ".ome.tiff"))


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def shards_in(folder: Path) -> list[Path]:
    """The TAR files of a folder, or of its train/val/test folders, sorted."""
    below = [
        entry
        for entry in folder.iterdir()
        if entry.is_dir() and SPLIT_WORDS.get(entry.name.lower()) is not None
    ]
    return sorted(path for place in (folder, *below) for path in place.glob("*.tar") if path.is_file())


def scan_tar(source: str | Path, wanted: Wanted) -> Reading:
    """Read one shard, or a folder of shards whose names or folders begin with train, val or test."""
    source = Path(source)
    check_site_names(wanted.site_columns)
    base = source if source.is_dir() else source.parent
    found = Collected(ImageColumns(base), wanted)
    for shard in shards_in(source) if source.is_dir() else [source]:
        _add_samples(found, shard, base)
    if not len(found.columns) and not found.problems:
        raise HistobenchError(f"{source} holds no images with labels (expected key.jpg next to key.cls)")
    return found.reading(source.stem)


def _add_samples(found: Collected, shard: Path, base: Path) -> None:
    members = tar_members(str(shard))
    by_key: dict[str, dict[str, str]] = defaultdict(dict)
    for member in members:
        # As WebDataset has it: the key ends at the first dot of the file name.
        match = re.fullmatch(r"((?:.*/)?[^/]+?)\.([^/]*)", member)
        if match and not match[1].rpartition("/")[2].startswith("."):
            by_key[match[1]][f".{match[2].lower()}"] = member
    split = _split_of(shard)
    if split is None and found.wanted.split is None:
        raise HistobenchError(
            f"{shard}: the name does not begin with train, val or test; give `split` 0.7/0.1/0.2"
        )
    with open(regular(shard), "rb") as handle:

        def text_of(member: str) -> str:
            offset, size = members[member]
            handle.seek(offset)
            return handle.read(size).decode("utf-8-sig", "replace").strip()

        for parts in by_key.values():
            image = next((parts[suffix] for suffix in IMAGE_SUFFIXES if suffix in parts), None)
            if image is None:
                continue
            where = str(shard / image)
            about = read_json(text_of(parts[".json"]), where=where) if ".json" in parts else {}
            about = about if isinstance(about, dict) else {}
            said = {key.lower(): str(value) for key, value in about.items() if value is not None}
            written = [said[key] for key in ("label", "cls", "class") if key in said]
            label = text_of(parts[".cls"]) if ".cls" in parts else next(iter(written), "")
            if not label:
                found.report(0, "no label (expected .cls, or .json with 'label')", origin=where)
                continue
            group = next((said[name] for name in COLUMNS["group"] if said.get(name)), None)
            sites = {name: said[name] for name in wanted_columns(said, found.wanted.site_columns)}
            found.add(0, split, (shard / image).relative_to(base).as_posix(), label, group, sites)


def _split_of(shard: Path) -> str | None:
    word = re.match(r"[a-z]*", shard.name.lower())
    return SPLIT_WORDS.get(word[0] if word else "") or SPLIT_WORDS.get(shard.parent.name.lower())
