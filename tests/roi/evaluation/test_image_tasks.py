"""A task that runs the network on images: units without features, results, resumption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import MEAN_ENCODER
from histobench.cli.main import main
from histobench.roi.evaluation import evaluation_run, tasks
from histobench.roi.evaluation.context import TaskResult
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.plan import planner
from histobench.roi.plan.plan_file import plan_from
from histobench.roi.plan.plan_run import load_datasets
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.units.roi_run import RoiRun


def _write_tiles(folder: Path) -> Path:
    rows = ["image_path,label,split,group"]
    for number in range(8):
        pixels = np.full((16, 16, 3), 20 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]},{'train' if number < 4 else 'test'},p{number}")
    (folder / "tiles.csv").write_text("\n".join(rows) + "\n")
    return folder / "tiles.csv"


def _guess(context: ImageContext) -> Iterator[TaskResult]:
    seen = [np.asarray(Image.open(image.path)).mean() for image in context.asked.data.splits["test"]]
    said = np.stack([np.array(seen), 255 - np.array(seen)], axis=1) / 255
    outcome = Outcome(said, said.argmax(axis=1), {"trained_on": len(context.request.train)})
    yield context.scored(outcome)


@pytest.mark.slow
def test_one_unit_per_encoder_and_task_without_features_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(planner, "ON_IMAGES", ("Proto",))
    monkeypatch.setitem(tasks.IMAGE_RUNNERS, "Proto", _guess)
    table = _write_tiles(tmp_path)
    (tmp_path / "own.py").write_text(MEAN_ENCODER)
    values = {
        "datasets": [str(table)],
        "encoders": [f"mean={tmp_path}/own.py:Mean"],
        "tasks": ["Proto"],
        "presets": ["uni", "eva"],
        "results": str(tmp_path / "r"),
    }
    plan = plan_from(values, where="", base=tmp_path)
    units = planner.units_of(plan, load_datasets(plan), full_paths=True)
    assert [unit.kind for unit in units] == ["network", "network", "compare", "compare", "report"]
    arrays = {step.name: step for step in RoiRun.create(plan.results, {"engine": "slurm"}, units).steps()}
    assert "prepare" not in arrays
    assert "network" in arrays["shards"].kinds
    assert arrays["shards"].on_device
    command = ["run", "--data", str(table), "--models", values["encoders"][0], "--tasks", "Proto"]
    command += ["--presets", "uni,eva", "--results", str(tmp_path / "cli")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "1 task done, 0 done before, 0 failed" in said
    assert "the preset eva has no recipe for it" in said
    assert not (tmp_path / "cli" / "features").exists()
    stored = next((tmp_path / "cli").rglob("Proto_complete_results.json"))
    assert '"trained_on": 4' in stored.read_text()
    assert (stored.parent / "Proto_intervals.json").exists()
    assert main(command) == 0
    assert "0 tasks done, 1 done before" in capsys.readouterr().out
    Image.fromarray(np.full((16, 16, 3), 80, dtype=np.uint8)).save(tmp_path / "7.png")  # as 4.png
    Image.fromarray(np.full((16, 16, 3), 20, dtype=np.uint8)).save(tmp_path / "6.png")  # as 1.png, of train
    assert main(command) == 0
    assert "1 task done, 0 done before" in capsys.readouterr().out
    assert "1 test image has the same features as a training image" in stored.read_text()


def test_stored_features_are_not_enough_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from builders import feature_set
    from histobench.roi.evaluation.evaluation_request import EvaluationRequest

    monkeypatch.setattr(evaluation_run, "ON_IMAGES", ("KNN",))
    features = feature_set(np.eye(4), [0, 1, 0, 1])
    done = evaluation_run.evaluate(EvaluationRequest(("KNN",), features, features, tmp_path))
    assert "histobench run" in done.skipped["KNN"]
