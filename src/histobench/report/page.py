"""The one HTML page of the site, and the built program that fills it."""

from __future__ import annotations

import html
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from histobench.core.errors import HistobenchError

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
    """Write `index.html` and the program beside it."""
    (site / "assets").mkdir(exist_ok=True)
    for name in ASSETS:
        source = files("histobench.report") / "assets" / name
        if not source.is_file():
            raise HistobenchError(
                f"the report's {name} is not installed; in a checkout run: make report-assets"
            )
        with as_file(source) as path:
            shutil.copyfile(path, site / "assets" / name)
    text = _PAGE.format(policy=html.escape(POLICY), title=html.escape(f"{title}: histobench report"))
    (site / "index.html").write_text(text, encoding="utf-8")
