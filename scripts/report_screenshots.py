"""Take the pictures of docs/how-to/report.md from a built site, with headless Chromium.

python scripts/report_screenshots.py SITE docs/images
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

WIDTH, HEIGHT = 1440, 900
MOST_BYTES = 240_000


def main() -> int:
    """Open every page and save what is seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    overview = _data(args.site, "site")
    pages = _pages(overview)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, place in pages.items():
            context = browser.new_context(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto((args.site / "index.html").resolve().as_uri() + place)
            page.wait_for_selector("main h1")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(1000)
            height = min(int(page.evaluate("document.documentElement.scrollHeight")), int(1.6 * HEIGHT))
            page.set_viewport_size({"width": WIDTH, "height": height})
            page.wait_for_timeout(1500)
            _save(page.screenshot(), args.out / f"report-{name}.png")
            context.close()
        browser.close()
    return 0


def _pages(overview: dict[str, Any]) -> dict[str, str]:
    """Name -> address: the first encoder on the dataset with most images."""
    datasets, encoders, runs = overview["datasets"], overview["encoders"], overview["runs"]
    dataset = max(range(len(datasets)), key=lambda k: datasets[k]["images"])
    run = next(k for k, d in enumerate(runs["dataset"]) if d == dataset)
    board = overview["boards"][runs["board"][run]]
    parts = [
        datasets[dataset]["name"],
        encoders[runs["encoder"][run]]["name"],
        board["task"],
        board["setting"] or "-",
        board["preset"],
    ]
    pages = {
        "leaderboard": "",
        "dataset": f"#/dataset/{quote(parts[0], safe='')}",
        "run": "#/run/" + "/".join(quote(part, safe="") for part in parts),
        "compare": f"#/compare?dataset={quote(parts[0])}",
        "methods": "#/methods",
    }
    if overview["agents"]:
        pages["agents"] = "#/agents"
    if overview["consult"]:
        pages["consult"] = "#/consult"
    return pages


def _data(site: Path, key: str) -> Any:
    text = (site / "data" / f"{key}.js").read_text(encoding="ascii")
    return json.loads(f"[{text.removeprefix('histobench.receive(').removesuffix(');' + chr(10))}]")[1]


def _save(content: bytes, path: Path) -> None:
    """As PNG with few enough colours to be small."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    for colours in (256, 128, 64, 32):
        small = picture.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        small.save(buffer, "PNG", optimize=True)
        if buffer.tell() <= MOST_BYTES:
            break
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())
    print(f"{path}: {buffer.tell() / 1024:.0f} KiB, {colours} colours")


if __name__ == "__main__":
    sys.exit(main())
