"""Pages on all encoders (similarity, shortlist), and the tiles with the most attention of each patient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.report.site import build_site

PATIENTS, TILES = 24, 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two encoders on tiles of patients, with pictures."""
    root = tmp_path_factory.mktemp("pages")
    draw = np.random.default_rng(0)
    names = [f"{p:02d}_{t}.png" for p in range(PATIENTS) for t in range(TILES)]
    patient = np.repeat(np.arange(PATIENTS), TILES)
    lines = ["image_path,label,split,group"]
    for name, p in zip(names, patient, strict=True):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(root / name)
        lines.append(f"{name},{'ab'[p % 2]},{'train' if p < 14 else 'test'},P{p:02d}")
    (root / "tiles.csv").write_text("\n".join(lines))
    features = []
    for encoder in ("keep", "biomedclip"):
        values = draw.normal(size=(len(names), 6)) + 2.0 * (patient % 2)[:, None]
        np.savez(root / f"{encoder}.npz", features=values.astype(np.float32), img_names=np.asarray(names))
        features.append(f"{encoder}={root / encoder}.npz")
    hb.run(
        str(root / "tiles.csv"),
        features=features,
        tasks=["KNN", "Patient"],
        results=root / "results",
        device="cpu",
    )
    return root / "results"


def data(site: Path, key: str) -> Any:
    text = (site / "data" / f"{key}.js").read_text()
    return json.loads(text[text.index(",") + 1 : text.rindex(")")])


def test_patients_are_chosen_by_and_shown(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HistobenchError, match="leave `task` out"):
        hb.choose(results, task="KNN", patients=True)
    assert hb.choose(results, patients=True).task == "Patient, abmil"
    assert main(["choose", str(results), "--patients", "--setting", "mean"]) == 0
    assert main(["similarity", str(results), "--measures", "cka"]) == 0
    assert "written:" in capsys.readouterr().out
    site = build_site(results, tmp_path / "site", images=results.parent / "tiles.csv").parent
    overview = data(site, "site")
    assert (overview["similarity"], overview["choice"]) == (True, True)
    (table,) = data(site, "similarity")
    assert (table["measure"], sorted(table["encoders"])) == (
        "cka",
        ["biomedclip@elsewhere", "keep@elsewhere"],
    )
    assert table["cells"][0][0] == [1.0, None, None]
    assert table["cells"][0][1] == table["cells"][1][0]
    choice = data(site, "choice")
    assert choice["task"] == "Patient, mean"
    assert choice["paragraph"].startswith("2 encoders were evaluated")
    assert len(overview["tiles"]) == 2  # abmil of two encoders
    shown = data(site, f"tiles/{overview['tiles'][0]}")
    assert [each["patient"] for each in shown] == [f"P{p}" for p in range(14, PATIENTS)]
    weights = [weight for _, weight, _ in shown[0]["tiles"]]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1, abs=1e-4)
    assert all((site / picture).is_file() for each in shown for _, _, picture in each["tiles"])


def test_no_results_of_patients_is_one_line(tmp_path: Path) -> None:
    rows = [f"{i}.png,{'ab'[i % 2]},{'train' if i < 20 else 'test'}" for i in range(40)]
    (tmp_path / "t.csv").write_text("image_path,label,split\n" + "\n".join(rows))
    values = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "keep.npz", features=values, img_names=np.asarray([f"{i}.png" for i in range(40)]))
    hb.run(
        str(tmp_path / "t.csv"), features=[f"keep={tmp_path / 'keep'}.npz"], tasks=["KNN"],
        results=tmp_path / "results", device="cpu",
    )  # fmt: skip
    with pytest.raises(HistobenchError, match="no results per patient here; add Patient to the `tasks`"):
        hb.choose(tmp_path / "results", patients=True)
