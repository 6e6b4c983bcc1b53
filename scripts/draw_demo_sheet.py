"""Draw the contact sheet of the synthetic demo tiles that the documentation shows.

python scripts/draw_demo_sheet.py
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from histobench.core.files import atomic_path
from histobench.roi.data.demo import CLASSES, render_tile

TARGET = Path(__file__).parents[1] / "docs" / "images" / "synthetic-tiles.png"
SIDE, GAP, TITLE, ROWS = 112, 4, 16, 5


def main() -> None:
    width = len(CLASSES) * (SIDE + GAP) + GAP
    sheet = Image.new("RGB", (width, TITLE + ROWS * (SIDE + GAP) + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for column, name in enumerate(sorted(CLASSES)):
        left = GAP + column * (SIDE + GAP)
        draw.text((left + SIDE // 2, TITLE // 2), f"{name} (synthetic)", fill="black", anchor="mm")
        for row in range(ROWS):
            tile = Image.fromarray(render_tile(name, seed=0, index=5 * row))  # one tile of each patient
            small = tile.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            sheet.paste(small, (left, TITLE + row * (SIDE + GAP)))
    # A palette keeps the picture small; dithering would add a grain that the tiles do not have.
    small_palette = sheet.quantize(192, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    with atomic_path(TARGET) as temporary:
        small_palette.save(temporary, "PNG", optimize=True)
    print(f"{TARGET}: {TARGET.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
