"""Tables of images: the names of their columns, and how their text is read."""

from __future__ import annotations

from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import LISTED, read_plain

#: In a CSV with a row per image; of several, the first that is there. Case does not matter.
CSV_COLUMNS = {
    "image_path": ("image_path", "path", "file", "filename", "image"),
    "label": ("label",),
    "split": ("split",),
    "group": ("group",),
}
#: In a DataFrame, where nobody had a format in mind; a patient comes before a slide.
FRAME_COLUMNS = {
    "image_path": ("image_path", "path", "paths", "file", "filename", "image"),
    "label": ("label", "labels", "class"),
    "split": ("split", "splits"),
    "group": ("group", "groups", "patient", "slide"),
}


# Small text files that people write by hand or export from a spreadsheet.


def read_text(path: str | Path, *, what: str, limit: int = LISTED) -> str:
    """The content of a UTF-8 text file without its byte-order mark; `what` names the file in errors."""
    path = Path(path)
    try:
        data = read_plain(path, limit=limit)
    except FileNotFoundError:
        raise HistobenchError(f"{what} {path} does not exist{_nearest_file(path)}") from None
    except OSError as error:
        raise HistobenchError(f"cannot read {what} {path}: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise HistobenchError(
            f"{path}:{line}: the {what} is not UTF-8 text; save it as UTF-8 (in Excel: 'CSV UTF-8')"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise HistobenchError(f"{path}:{line}: the {what} holds a NUL byte; is it really a text file?")
    if not text.strip():
        raise HistobenchError(f"{what} {path} is empty")
    return text


def _nearest_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"; the folder {path.parent} does not exist either"
    hint = did_you_mean(path.name, names)
    return f"; {hint}" if hint.startswith("did you mean") else ""
