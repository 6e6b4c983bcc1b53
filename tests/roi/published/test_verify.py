"""Stored results beside published ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from histobench.cli.main import main
from histobench.roi.comparison.bootstrap_intervals import BootstrapSettings, bootstrap_runs
from histobench.roi.encoders.registry import get_spec
from histobench.roi.metrics.classification import Score
from histobench.roi.metrics.metric_catalogue import METRICS
from histobench.roi.predictions import Predictions
from histobench.roi.published.verify import OurValue, PublishedValue, judge, published_values, verify
from histobench.roi.registry.dataset_entry import find, is_name
from histobench.roi.results.layout import RunIdentity
from histobench.roi.results.reader import load_runs
from histobench.roi.results.writer import write_task

GOLDEN = next(
    p for p in published_values() if (p.encoder, p.task, p.metric) == ("uni_v2", "KNN", "balanced_accuracy")
)
OURS = OurValue(
    "crc100k-nonorm", "uni_v2", "KNN", "uni", "", "balanced_accuracy", 0.95, 0.94, 0.96, "224", (), Path("r")
)


def test_every_published_number_names_a_known_encoder_and_dataset() -> None:
    assert len(published_values()) > 100
    for published in published_values():
        assert is_name(published.dataset), published.dataset
        assert get_spec(published.encoder).dim > 0
        assert 0 < published.value < 1


def test_a_number_inside_of_our_interval_is_reproduced_up_to_rounding() -> None:
    assert GOLDEN.value == 0.957
    assert judge(GOLDEN, OURS).verdict == "reproduced"
    assert judge(GOLDEN, replace(OURS, high=0.9566)).verdict == "reproduced"
    assert judge(GOLDEN, replace(OURS, high=0.956)).verdict == "differs"
    assert judge(GOLDEN, OURS).difference == pytest.approx(-0.007)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dataset": "crc100k-nonorm@mine"}, "another split"),
        ({"preset": "sklearn"}, "another preset"),
        ({"size": "448"}, "another image size"),
        ({"encoder": "uni_v2@cls"}, "another encoder variant"),
        ({"low": None}, "no interval"),
        ({"n_images": 200}, "another number of images (theirs 7,180, ours 200)"),
    ],
)
def test_what_is_not_the_same_experiment_is_not_compared(change: dict[str, str], why: str) -> None:
    verdict = judge(GOLDEN, replace(OURS, **change))  # type: ignore[arg-type]
    assert verdict.verdict == "not comparable"
    assert why in verdict.because


VALIDATION = next(p.source for p in published_values() if "validation images" in p.source)


def _published(**facts: str) -> PublishedValue:
    return next(p for p in published_values() if all(getattr(p, key) == facts[key] for key in facts))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"dataset": "tcga-uniform", "encoder": "uni_v1"}, "split that they used is not published"),
        ({"dataset": "pcam", "encoder": "uni_v1", "source": VALIDATION}, "of the validation images"),
        ({"dataset": "pathorob-tcga"}, "tcga_2x2.csv"),
        ({"task": "Zero-shot", "encoder": "conch_v1"}, "prompts of CONCH"),
    ],
)
def test_what_can_never_be_compared_says_exactly_why(facts: dict[str, str], why: str) -> None:
    """Even where our dataset, encoder, preset and setting bear the same names."""
    published = _published(**facts)
    same = {key: getattr(published, key) for key in ("dataset", "encoder", "task", "setting", "metric")}
    size = str(get_spec(published.encoder).transform.crop)
    verdict = judge(published, replace(OURS, **same, preset=published.preset or "uni", size=size))
    assert verdict.verdict == "not comparable"
    assert why in verdict.because
    assert ";" not in verdict.because, "the only reason"


def test_every_metric_is_one_that_our_results_have() -> None:
    ours = {*METRICS, *(f"robustness_index_{word}" for word in ("k11", "k46", "paired"))}
    assert {p.metric for p in published_values()} <= ours


def test_every_number_says_on_how_many_images_it_was_computed() -> None:
    unknown = {p.dataset for p in published_values() if p.n_images is None}
    assert unknown == {"tcga-uniform", "kather-msi-crc-dx"}  # their splits are not published
    for published in published_values():
        entry, split = find(published.dataset)
        counts = entry.split(split).counts if split else entry.counts
        if published.n_images and not published.apart:
            assert published.n_images == counts["test"], published.dataset


def test_pathorob_is_compared_on_its_own_images_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def pack(dataset: str, encoder: str, images: int) -> None:
        bounds = {"value": 0.55, "low": 0.5, "high": 0.6}
        content = {
            "column": "site",
            "images": "x",
            "measures": {"robustness_index_k11": bounds},
            "num_samples": images,
            "additional_info": {"dataset": dataset, "encoder": encoder, "preset": "uni"},
        }
        target = tmp_path / dataset / encoder / "Robustness" / "site_robustness.json"
        target.parent.mkdir(parents=True)
        target.write_text(json.dumps(content))

    pack("pathorob-camelyon@pathorob", "uni_v2@clsmean", 20_400)
    pack("pathorob-camelyon", "phikon_v2@clsmean", 22_402)
    pack("pathorob-camelyon@pathorob", "virchow2", 20_400)
    found = {verdict.published.encoder: verdict for verdict in verify(tmp_path)}
    assert found["uni_v2@clsmean"].verdict == "reproduced"  # .544
    assert found["virchow2"].verdict == "differs"  # .806
    refused = found["phikon_v2@clsmean"]
    assert refused.verdict == "not comparable"
    assert refused.because.startswith("another number of images (theirs 20,400, ours 22,402)")
    assert "another split" in refused.because
    assert (
        found["uni_v2@clsmean"].compared_on == "pathorob-camelyon@pathorob: 20,400 images (published: 20,400)"
    )
    capsys.readouterr()
    assert main(["verify", str(tmp_path)]) == 1  # one is contradicted
    shown = " ".join(capsys.readouterr().out.split())
    assert "compared on pathorob-camelyon: 22,402 images (published: 20,400)" in shown
    shutil.rmtree(tmp_path / "pathorob-camelyon@pathorob" / "virchow2")
    assert main(["verify", str(tmp_path)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "shares", "exit_code", "verdicts"),
    [
        (200, (0.837,), 3, ["not comparable"]),  # "mhist" in name only
        (977, (0.837,), 0, ["reproduced"]),
        (977, (0.6,), 1, ["differs"]),
        (977, (0.837, 0.6), 1, ["differs", "reproduced"]),  # one that agrees hides no other
    ],
)
def test_names_are_not_trusted_and_scripts_can_tell(
    images: int, shares: tuple[float, ...], exit_code: int, verdicts: list[str], tmp_path: Path
) -> None:
    (published,) = (p for p in published_values() if (p.dataset, p.encoder) == ("mhist", "kaiko-vitb16"))
    assert published.value == 0.837
    draw = np.random.default_rng(images)
    for place, share in enumerate(shares):
        labels = np.arange(images) % 2
        predicted = np.where(draw.permutation(images) < share * images, labels, 1 - labels)
        names = tuple(f"{k}.png" for k in range(images))
        value = float(np.mean([(predicted == labels)[labels == label].mean() for label in (0, 1)]))
        write_task(
            tmp_path / f"run{place}" / "mhist" / published.encoder,
            published.task,
            Predictions(np.eye(2)[predicted], labels, predicted, ("a", "b"), names),
            identity=RunIdentity("mhist", published.encoder, preset=published.preset),
            scores={published.metric: Score(value)},
            per_class={},
            confusion_matrix=[[0, 0], [0, 0]],
        )
    list(bootstrap_runs(load_runs(tmp_path), BootstrapSettings(200)))
    assert main(["verify", str(tmp_path)]) == exit_code
    written = json.loads((tmp_path / "verification.json").read_text())["verdicts"]
    assert (
        sorted(row["verdict"] for row in written if row["published"]["metric"] == published.metric)
        == verdicts
    )
    if images == 200:
        assert written[0]["because"] == "another number of images (theirs 977, ours 200)"


def test_what_was_compared_is_told_where_a_number_of_images_is_unknown() -> None:
    assert judge(GOLDEN, OURS).compared_on == "crc100k-nonorm: unknown number of images (published: 7,180)"
    unpublished = replace(GOLDEN, n_images=None)
    found = judge(unpublished, replace(OURS, n_images=200)).compared_on
    assert found == "crc100k-nonorm: 200 images (number not published)"


def test_a_folder_without_anything_published_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path)]) == 3
    assert "published numbers" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
