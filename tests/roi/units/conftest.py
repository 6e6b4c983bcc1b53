"""A small plan, two small encoders, and a look at whether two results folders hold the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import encoder_file
from histobench.roi.comparison.tidy_rows import read_rows

NET = "self.net(images).relu().mean(dim=(2, 3))"
ENCODERS = f"""
{encoder_file("Colour", NET, size=24, dim=12, net="torch.nn.Conv2d(3, 12, 5, stride=3)")}

class Edge(Colour):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Conv2d(3, 12, 3, stride=2)
"""


DATE = re.compile(rb'"\d{4}-\d\d-\d\dT[\d:+.Z-]+"')


@pytest.fixture(scope="session")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The CSV of so many small images in three classes, in both splits; and beside it the encoders' file."""

    def draw(count: int) -> Path:
        folder = tmp_path_factory.mktemp("tiles")
        rng = np.random.default_rng(count)
        lines = ["image_path,label,split"]
        for number in range(count):
            label = number % 3
            pixels = rng.integers(0, 120, (20, 20, 3)) + np.array([label == 0, label == 1, label == 2]) * 90
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
            lines.append(f"{folder / f'{number}.png'},{label},{'test' if number % 5 < 2 else 'train'}")
        (folder / "tiles.csv").write_text("\n".join(lines))
        (folder / "own.py").write_text(ENCODERS)
        return folder / "tiles.csv"

    return draw


@pytest.fixture
def write_plan(tmp_path: Path) -> Callable[[Path], Path]:
    """A plan file over these images whose results go to `tmp_path/results`."""

    def write(table: Path) -> Path:
        plan = tmp_path / "plan.yaml"
        own = table.with_name("own.py")
        plan.write_text(
            f"datasets: [{table}]\nencoders: ['{own}:Colour', '{own}:Edge']\ntasks: [KNN, Proto]\n"
            f"results: {tmp_path / 'results'}\nn_bootstrap: 20\nn_neighbors: 3\n"
            "compile: 'off'\nnum_workers: 0\n"
        )
        return plan

    return write


def _files(folder: Path) -> dict[str, Path]:
    """Everything but `work`, which says who did what, and when."""
    found = {
        path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()
    }
    return {
        name: path for name, path in found.items() if not name.startswith("work/") and path.suffix != ".tmp"
    }


@pytest.fixture
def assert_same() -> Callable[[Path, Path], None]:
    """Two results folders hold the same bytes but for dates; the tables the same rows."""

    def check(one: Path, other: Path) -> None:
        ours, theirs = _files(one), _files(other)
        assert ours.keys() == theirs.keys()
        assert len(ours) > 10
        for name, path in ours.items():
            if name.endswith("results.parquet"):
                first, second = (
                    [{key: value for key, value in row.items() if key != "date"} for row in read_rows(item)]
                    for item in (path, theirs[name])
                )
                assert first == second, name
            elif not name.endswith("speeds.json"):  # seconds
                first, second = (DATE.sub(b"", item.read_bytes()) for item in (path, theirs[name]))
                assert first == second, name

    return check
