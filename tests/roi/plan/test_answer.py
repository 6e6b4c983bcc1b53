"""Drawn tiles of 8 classes and 80 patients, 4 classes rare: `run` ends in an answer, and `choose` agrees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import histobench as hb
from histobench.cli.main import main
from histobench.report.site import build_site
from histobench.roi.data.demo import CLASSES, render_tile

RARE, COMMON = CLASSES[:4], CLASSES[4:8]
TILES = 7


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """560 tiles, a table of them, and the features of three encoders of known order."""
    root = tmp_path_factory.mktemp("drawn")
    draw = np.random.default_rng(0)
    patients = [*(name for name in RARE for _ in range(4)), *(COMMON[k % 4] for k in range(64))]
    names, labels, pixels = [], [], []
    for patient, own in enumerate(patients):
        for tile in range(TILES):
            label = own if tile < 5 else COMMON[int(draw.integers(4))]
            names.append(f"p{patient:02d}_{tile}.png")
            labels.append(label)
            pixels.append(render_tile(label, seed=1, index=5 * patient + tile % 5, size=32) / 255)
    rows = [f"{name},{label},{name[:3]}" for name, label in zip(names, labels, strict=True)]
    (root / "tissue.csv").write_text("image_path,label,group\n" + "\n".join(rows))
    images = np.stack(pixels)
    color = np.concatenate([images.mean((1, 2)), images.std((1, 2))], axis=1)
    noise = images.mean((1, 2)) + draw.normal(0, 0.15, (len(images), 3))
    brightness = images.mean(3).reshape(len(images), -1)
    texture = np.concatenate([color, np.quantile(brightness, np.linspace(0, 1, 12), axis=1).T], axis=1)
    for encoder, values in (("texture", texture), ("color", color), ("noise", noise)):
        scaled = (values - values.mean(0)) / values.std(0)
        features = np.tanh(scaled @ draw.normal(size=(values.shape[1], 128))).astype(np.float32)
        np.savez(root / f"{encoder}.npz", features=features, img_names=np.asarray(names))
    return root


def ran(drawn: Path, results: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    """What `run` prints (with one space between words), and its answer."""
    features = ",".join(f"{name}={drawn / name}.npz" for name in ("texture", "color", "noise"))
    command = ["run", "--data", str(drawn / "tissue.csv"), "--split", "0.7/0.1/0.2", "--features", features]
    assert (
        main([*command, "--tasks", "Linear-Probe", "--results", str(results), "--device", "cpu", *more]) == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    return said, said.partition("Answer: ")[2].partition(" Details:")[0]


@pytest.mark.slow
def test_a_rare_class_leaves_an_answer_with_intervals_and_choose_agrees(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, answer = ran(drawn, tmp_path / "one", capsys)
    for name in RARE:
        assert f"{name} 2/1/1" in said  # patients in train/val/test
    assert "differences of balanced accuracy could not be tested: too few groups of class" in answer
    assert "By accuracy, in which frequent classes count most, " in answer
    assert "noise@elsewhere is shown to be worse than" in answer
    assert "] or " in answer or "]) or " in answer  # an interval with each
    assert "repeat the run with `--splits 5x5`" in answer
    choice = hb.choose(tmp_path / "one")
    assert answer in choice.paragraph
    assert set(choice.best) == {"texture@elsewhere", "color@elsewhere"}
    # The remedy gives the answer about balanced accuracy, from all patients.
    said, over_splits = ran(drawn, tmp_path / "many", capsys, "--splits", "3x3")
    assert "balanced accuracy; 9 splits (3x3) of all 560 images of 80 patients or slides" in over_splits
    assert "noise@elsewhere is shown to be worse than" in over_splits
    assert "could not be tested" not in over_splits
    assert over_splits in hb.choose(tmp_path / "many").paragraph
    # So does the report, which marks nothing as the best by a metric that was not tested.
    for results, said in (("one", answer), ("many", over_splits)):
        build_site(tmp_path / results, tmp_path / f"site-{results}")
        text = (tmp_path / f"site-{results}/data/board/0.js").read_text()
        board = json.loads(text[text.index("{") : text.rindex("}") + 1])["metrics"]
        assert board["balanced_accuracy"]["answer"] == said
        assert not np.any(board["balanced_accuracy"]["mayBeBest"])
        assert not np.any(board["balanced_accuracy"]["standing"])
        assert np.sum(board["accuracy"]["mayBeBest"]) == 2
    # `compare` and its files have the same answer.
    assert main(["compare", str(tmp_path / "one")]) == 0
    assert answer in " ".join(capsys.readouterr().out.split())
    stored = tmp_path / "one/comparison/comparison_Linear-Probe_balanced_accuracy.json"
    assert json.loads(stored.read_text())["answer"]["text"] == answer
    latex = stored.with_suffix(".tex").read_text()
    assert "*" not in latex.split(r"\end{table}")[0]
    csv = stored.with_suffix(".csv").read_text().splitlines()
    assert not any("true" in row or "false" in row for row in csv[1:])  # nothing differs, nothing may be best
