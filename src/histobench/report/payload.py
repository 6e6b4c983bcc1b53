"""Data files and pages of the site; they work without a server."""

from __future__ import annotations

import base64
import html
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import without_nan

#: Characters that could end a script element, or a string in an old browser.
_ESCAPED = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def script(key: str, value: Any) -> str:
    """The text of a data file; what is in it stays text, whatever it says.

    >>> script("a", "</script>")
    'histobench.receive("a","\\\\u003c/script\\\\u003e");\\n'
    """
    return f"histobench.receive({_json(key)},{_json(value)});\n"


def write_payload(folder: Path, key: str, value: Any) -> Path:
    path = folder / "data" / f"{key}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(key, value), encoding="ascii")
    return path


def packed(values: NDArray[Any]) -> dict[str, Any]:
    """An array of whole numbers or floats as base64 in the narrowest type: `{type, shape, data}`."""
    array = np.ascontiguousarray(values)
    if array.dtype.kind in "iu":
        array = array.astype(_narrowest(array))
    elif array.dtype != np.uint16:
        array = array.astype(np.float32)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {
        "type": array.dtype.name,
        "shape": list(array.shape),
        "data": base64.b64encode(little.tobytes()).decode("ascii"),
    }


def facts_of(found: object, *names: str) -> dict[str, Any]:
    """The attributes of an object that a data file shows under their own names."""
    return {name: getattr(found, name) for name in names}


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A number for a data file: few digits, and null for what has no value.

    >>> rounded(0.123456789), rounded(float("nan"))
    (0.123457, None)
    """
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def _narrowest(array: NDArray[Any]) -> type[np.integer[Any]]:
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    for kind in (np.uint8, np.uint16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return kind
    raise ValueError(f"numbers from {low} to {high} do not fit 32 bits")


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(without_nan(value)[0], separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPED)


ASSETS = ("app.js", "app.css", "pdf.js", "icon.svg", "LICENSES.txt")

#: Only files of the site itself may run or load; what the data says can never become a script.
POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; "
    "img-src 'self' file: data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="assets/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="assets/app.css">
<script src="assets/app.js" defer></script>
<script src="data/site.js" defer></script>
</head>
<body>
<div id="app"></div>
<noscript>This report draws its tables and charts with JavaScript, which is switched off here.</noscript>
</body>
</html>
"""


def write_page(site: Path, title: str) -> None:
    (site / "assets").mkdir(exist_ok=True)
    for name in ASSETS:
        shutil.copyfile(Path(__file__).parent / "assets" / name, site / "assets" / name)
    text = _PAGE.format(policy=html.escape(POLICY), title=html.escape(f"{title}: histobench report"))
    (site / "index.html").write_text(text, encoding="utf-8")


#: A folder with this file is a site, and may be replaced by the next one.
MARK = ".histobench-site"
#: What a site consists of; whatever else lies in its folder is someone's and is not to be lost.
_PARTS = {MARK, "index.html", "built.txt", "assets", "data", "thumbs"}


@contextmanager
def site_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder; on success it replaces the site at `out`, on failure nothing has changed.

    A folder that was not written by this program is left alone, and so is a site with other files beside it.
    """
    if out.exists() and not out.is_dir():
        raise HistobenchError(f"{out} is a file; choose a folder for the site")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise HistobenchError(f"{out} holds other files; choose a new or empty folder for the site")
    others = sorted({path.name for path in out.iterdir()} - _PARTS) if out.is_dir() else []
    if others:
        raise HistobenchError(
            f"{out} holds files that are not part of the site, such as {others[0]}; replacing the site would "
            "delete them: move them, or choose another folder"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    try:
        yield building
        (building / MARK).write_text("written by histobench report\n", encoding="ascii")
        building.chmod(0o755)
        _replace(out, building)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _replace(out: Path, building: Path) -> None:
    if not out.exists():
        os.replace(building, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.parent))
    os.replace(out, old)
    os.replace(building, out)
    shutil.rmtree(old, ignore_errors=True)
