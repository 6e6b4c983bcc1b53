"""What `data check` says about the make-up of a dataset: thin classes, near-duplicates, odd images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histobench.cli.main import main
from histobench.roi.data.check import Findings, check_dataset, structure_findings
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.data.source import DatasetSource
from histobench.roi.data.split import group_of


def tissue(seed: int, size: int = 96) -> Image.Image:
    """Smooth random stains, as different from each other as fields of a slide."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(90, 250, (12, 12, 3)).astype(np.uint8))
    return coarse.resize((size, size), Image.Resampling.BICUBIC)


def check(folder: Path, rows: list[str], header: str = "image_path,label,split,group") -> Findings:
    (folder / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    return check_dataset(DatasetSource(str(folder / "t.csv")).read())


def test_a_class_whose_test_images_are_of_one_patient_is_warned_of(tmp_path: Path) -> None:
    rows = []
    for number in range(16):
        tissue(number).save(tmp_path / f"{number}.png")
        label, split = ("a", "rare")[number % 2], ("train", "test")[number // 8]
        group = f"p{number}" if split == "train" or label == "a" else "p99"
        rows.append(f"{number}.png,{label},{split},{group}")
    (finding,) = check(tmp_path, rows).of("class of one group")
    assert finding.level == "warning"
    assert "1 class has test images of one group only: rare (p99)" in finding.message


def test_a_class_that_is_only_tested_is_an_error_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for number, (label, split) in enumerate(
        [("a", "train"), ("b", "train"), ("a", "test"), ("b", "test"), ("c", "test")]
    ):
        tissue(number).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{label},{split},p{number}")
    (finding,) = check(tmp_path, rows).of("empty class")
    assert (finding.level, "no model can learn it" in finding.message) == ("error", True)
    run = ["run", "--data", str(tmp_path / "t.csv"), "--models", "tiny-vl", "--results", str(tmp_path / "r")]
    assert main(run) == 2
    assert "there are test images but no training images of c" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.pt"))


def copies(folder: Path) -> list[str]:
    rows = []
    for number in range(12):
        tissue(number).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]},{'train' if number < 8 else 'test'},")
    return rows


@pytest.mark.parametrize("kind", ["jpeg", "half", "double", "brighter"])
def test_a_copy_in_other_bytes_is_found_across_splits(tmp_path: Path, kind: str) -> None:
    rows = copies(tmp_path)
    original = tissue(3)
    copy = {
        "jpeg": original,
        "half": original.resize((48, 48), Image.Resampling.LANCZOS),
        "double": original.resize((192, 192), Image.Resampling.BICUBIC),
        "brighter": original.point([min(255, round(1.08 * v)) for v in range(256)] * 3),
    }[kind]
    copy.save(tmp_path / "copy.jpg", quality=40)
    (finding,) = check(tmp_path, [*rows, "copy.jpg,b,test,"]).of("near-duplicate")
    assert finding.level == "warning"
    assert "3.png in train looks like copy.jpg in test" in finding.message


def test_other_fields_and_empty_background_are_no_copies(tmp_path: Path) -> None:
    rows = copies(tmp_path)
    rng = np.random.default_rng(5)
    for number in range(12):
        noise = rng.normal(243, 1.5, (96, 96, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noise).save(tmp_path / f"empty{number}.png")
        rows.append(f"empty{number}.png,b,{'train' if number < 8 else 'test'},")
    assert check(tmp_path, rows).of("near-duplicate") == ()


def test_real_tissue_gives_only_alarms_that_hold(shared_dir: Path, tmp_path: Path) -> None:
    """Pairs that are reported among real tiles agree pixel by pixel when laid over each other."""
    folder = shared_dir / "data" / "crc-val-mini"
    files = sorted(path for path in folder.rglob("*.jpg"))[::2][:200]
    rows = [f"{path},{path.parent.name},{('train', 'test')[k % 2]}" for k, path in enumerate(files)]
    assert check(tmp_path, rows, "image_path,label,split").of("near-duplicate") == ()


def test_labels_that_are_fractions_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = ["a.png,1.5,train,p1", "b.png,2,train,p2", "c.png,1.5,test,p3"]
    (label,) = (each for each in check(tmp_path, rows).of("label") if each.level == "warning")
    assert "1.5: labels that are not whole numbers are taken as class names" in label.message
    assert "not whole numbers (1.5)" in caplog.text


@pytest.mark.slow
def test_run_says_in_a_line_each_what_data_check_finds_quickly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One test image of a class, one image under two labels, a test image twice, patients in file names."""
    data = tmp_path / "tiles"
    for number in range(16):
        label, split = "ab"[number % 2], "train" if number < 12 else "test"
        (data / split / label).mkdir(parents=True, exist_ok=True)
        tissue(number, 48).save(data / split / label / f"case{number // 5}_{number}.png")
    (data / "test" / "b" / "case3_15.png").unlink()
    tissue(12, 48).save(data / "test" / "a" / "case2_copy.png")
    tissue(0, 48).save(data / "train" / "b" / "case0_other.png")
    single = "1 of 2 classes have a single test image (b)"
    patients = "file names show 3 patients or slides (such as case0), 1 of them in test and in another split"
    assert main(["data", "check", str(data)]) == 0
    shown = capsys.readouterr().out
    assert single in shown
    assert patients in shown
    assert "no groups (patients, slides) are known" not in shown, "said once"
    run = ["run", "--data", str(data), "--models", "tiny-vl", "--tasks", "Proto", "--device", "cpu"]
    assert main([*run, "--results", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().err
    for words in (
        single,
        f"{patients}, and no groups are known; give --group-regex '^(case\\d+)'",
        "1 image has two labels",
        "copies among the test images: 1",
    ):
        assert said.count(words) == 1, (words, said)


@pytest.mark.parametrize(
    ("names", "regex"),
    [
        ([f"PAT{k // 4:03}_tile{k}.png" for k in range(12)], r"'^(PAT\d+)'"),
        ([f"CRC-{k // 4:02}_{k}.png" for k in range(12)], r"'^(CRC-\d+)'"),
        ([f"TCGA-AA-{3000 + k // 4}-01_{k}.png" for k in range(12)], r"'^(TCGA-\w\w-\w{4})'"),
        ([f"he_slide{k // 4}_{k}.png" for k in range(12)], r"'(slide\d+)'"),
        ([f"LH-{2000 + k // 4} slide{k % 3} ROI#{k}.JPG" for k in range(12)], r"'^(LH-\d+)'"),
        ([f"HE23-00{451 + k // 4}_{k}.png" for k in range(12)], r"'^(HE\d+-\d+)'"),
        ([f"P12{k // 4}-{k:03}.png" for k in range(12)], r"'^(P\d+)'"),
        ([f"Patient {k // 4} (slide 1) {k}.png" for k in range(12)], r"'^(Patient \d+)'"),
        ([f"{'ABC'[k // 4]}B-{12 + k // 4}_{k}.png" for k in range(12)], r"'^(AB-\d+|BB-\d+|CB-\d+)'"),
        ([f"tile{k // 4:03}_{k}.png" for k in range(12)], ""),
        ([f"{1024 * (k // 4)}_{k}.png" for k in range(12)], ""),
        ([f"B{k:03}_a.png" for k in range(12)], ""),
    ],
)
def test_patients_in_file_names_get_the_flag_that_finds_them(names: list[str], regex: str) -> None:
    images = tuple(RoiImage(Path("a") / name, k % 2, name, name) for k, name in enumerate(names))
    data = RoiDataset("d", ("a", "b"), {"train": images[:6], "test": images[6:]})
    found = [finding.message for finding in structure_findings(data) if finding.kind == "groups"]
    assert len(found) == bool(regex)
    assert all(regex in message for message in found)
    if regex:
        groups = {group_of(f"a/{name}", regex.strip("'")) for name in names}
        assert len(groups) == 3
        assert None not in groups
