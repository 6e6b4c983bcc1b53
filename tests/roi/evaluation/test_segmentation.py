"""Segmentation: exact geometry, Dice by every convention, and the traps that other benchmarks fell into."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchmetrics.classification import MulticlassJaccardIndex
from torchmetrics.segmentation import DiceScore, MeanIoU

import histobench as hb
from histobench.api.dataset import images_of
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.report.site import build_site
from histobench.roi.data.check import check_dataset
from histobench.roi.data.masks import IGNORED, classes_of, read_codes, read_mask
from histobench.roi.evaluation.segmentation_task import random_twin
from histobench.roi.metrics.target_metrics import target_metrics
from histobench.roi.plan.plan_file import plan_from
from histobench.roi.plan.plan_run import load_datasets
from histobench.roi.plan.planner import ExtractionEstimate, estimated_seconds
from histobench.roi.predictions import TargetPredictions
from histobench.roi.protocols.segmentation import (
    Drawn,
    Masks,
    cut,
    head_loss,
    joined,
    patch_shares,
    survey,
    tally,
    upsampled,
)

CODES = ((0, "background"), (1, "stroma"), (2, "gland"), (9, "ignore"))
ENCODER = """
import torch
from torch.nn.functional import avg_pool2d
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


class Colors(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=16, crop=16)
        self.embed_dim = 3
        self.mix = torch.nn.Conv2d(3, 12, 4, stride=4)
        for values in self.mix.parameters():
            torch.nn.init.zeros_(values)
        with torch.no_grad():
            for color in range(3):
                self.mix.weight[color, color] = 1 / 16

    def forward(self, images):
        return images.mean(dim=(2, 3))

    def patch_tokens(self, images):
        assert len(images)  # vision transformers cannot work on no image
        return self.mix(images)


class Cropped(Colors):  # resized to 20, of which the middle is taken
    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=20, crop=16)


class OwnCrop(Colors):
    def __init__(self):
        super().__init__()
        spec = TransformSpec(resize=20, crop=16)
        self.eval_transforms = lambda image: spec(image)


class NoTokens(Colors):
    patch_tokens = BasePatchEncoder.patch_tokens
"""


def _square(top: int, left: int, side: int = 10, size: int = 32) -> torch.Tensor:
    plane = torch.zeros(1, size, size, dtype=torch.uint8)
    plane[:, top : top + side, left : left + side] = 1
    return plane


def _predictions(counts: Any, classes: tuple[str, ...] = ("background", "gland")) -> TargetPredictions:
    """Of pixels [n, 3, classes]; references are the same as the prediction."""
    counts = np.asarray(counts)
    said = np.repeat(counts[:, None, :2], 4, axis=1).reshape(len(counts), -1)
    names = tuple(map(str, range(said.shape[1])))
    images = tuple(map(str, range(len(counts))))
    return TargetPredictions("mask", classes, counts[:, 2].astype(float), names, said.astype(float), images)


@pytest.mark.parametrize(("shift", "dice"), [(0, 1.0), (2, 0.8), (5, 0.5), (10, 0.0)])
def test_shifted_squares_have_the_dice_that_geometry_gives(shift: int, dice: float) -> None:
    counts = tally(_square(4, 4), _square(4, 4 + shift), 2)
    scores = target_metrics(_predictions(counts))
    assert scores["dice"].value == pytest.approx(dice)
    assert scores["iou"].value == pytest.approx(dice / (2 - dice))
    assert scores["dice@1"].value == pytest.approx(dice)


def test_every_convention_against_torchmetrics() -> None:
    rng = np.random.default_rng(0)
    truth, said = (torch.from_numpy(rng.integers(0, 3, size=(5, 16, 16))) for _ in range(2))
    scores = target_metrics(_predictions(tally(truth, said, 3), ("background", "a", "b")))

    def dice(**options: Any) -> float:
        metric = DiceScore(num_classes=3, average="macro", input_format="index", **options)
        return float(metric(said, truth))

    def iou(**options: Any) -> float:
        return float(MeanIoU(num_classes=3, input_format="index", **options)(said, truth))

    wide = {"include_background": True}
    narrow = {"include_background": False}
    of_classes = DiceScore(num_classes=3, average=None, input_format="index", aggregation_level="samplewise")
    expected = {
        "dice": dice(aggregation_level="samplewise", **narrow),
        "dice_with_background": dice(aggregation_level="samplewise", **wide),
        "pooled_dice": dice(aggregation_level="global", **narrow),
        "iou": iou(**narrow),
        "miou": float(MulticlassJaccardIndex(num_classes=3, average="macro")(said, truth)),
        **{f"dice@{k}": float(value) for k, value in enumerate(of_classes(said, truth))},
    }
    for name, value in expected.items():
        assert scores[name].value == pytest.approx(value, abs=1e-6), name


def test_false_positives_of_an_absent_class_count_and_absent_classes_do_not() -> None:
    classes = ("background", "a", "b")
    right = [[90, 10, 0], [90, 10, 0], [90, 10, 0]]  # both, predicted, true pixels of each class
    false = [[80, 10, 0], [80, 10, 10], [90, 10, 0]]
    empty = [[100, 0, 0], [100, 0, 0], [100, 0, 0]]
    assert target_metrics(_predictions([right], classes))["dice"].value == 1.0
    assert target_metrics(_predictions([false], classes))["dice"].value == 0.5
    # An image without foreground in truth and prediction says nothing about the foreground.
    assert target_metrics(_predictions([right, empty], classes))["dice"].value == 1.0
    assert target_metrics(_predictions([empty], classes))["dice"].value is None


def test_tiles_cover_the_border_and_padding_is_ignored() -> None:
    truth = np.random.default_rng(0).integers(0, 2, size=(37, 21)).astype(np.uint8)
    tiles = cut(truth, 16, IGNORED)
    assert len(tiles) == 3 * 2
    assert (joined(tiles, 37, 21) == truth).all()
    counts = tally(torch.from_numpy(tiles), torch.zeros(6, 16, 16, dtype=torch.uint8), 2).sum(axis=0)
    assert counts[2].tolist() == np.bincount(truth.ravel()).tolist()  # every pixel, and no other
    assert counts[1].tolist() == [truth.size, 0]


def test_ignored_pixels_enter_neither_counts_nor_loss() -> None:
    truth = _square(4, 4)
    truth[:, :, 16:] = IGNORED
    good, bad = _square(4, 4), _square(4, 4)
    bad[:, :, 16:] = 1
    assert (tally(truth, good, 2) == tally(truth, bad, 2)).all()
    logits = torch.randn(1, 3, 2, 32, 32, requires_grad=True)
    head_loss(logits, truth).backward()
    assert logits.grad is not None
    assert logits.grad[..., 16:].abs().max() == 0
    assert logits.grad[..., :16].abs().max() > 0


def test_the_random_network_has_no_weight_of_the_encoder_and_leaves_it_as_it_is() -> None:
    encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 2))
    for tensor in encoder.state_dict().values():
        tensor.fill_(7)
    context: Any = SimpleNamespace(encoder=encoder, request=SimpleNamespace(seed=0))
    twin, again = random_twin(context).state_dict(), random_twin(context).state_dict()
    context.request.seed = 1
    assert not torch.equal(random_twin(context).state_dict()["0.weight"], twin["0.weight"])
    for name, tensor in encoder.state_dict().items():
        assert bool((tensor == 7).all())
        assert not torch.equal(twin[name], tensor)
        assert torch.equal(twin[name], again[name])


def test_the_loss_is_cross_entropy_plus_dice() -> None:
    truth = torch.randint(0, 3, (2, 8, 8), dtype=torch.uint8)
    logits = torch.randn(2, 1, 3, 8, 8)
    shares = logits[:, 0].softmax(dim=1)
    dice = []
    for label in range(3):
        one = (truth == label).float()
        dice.append(2 * (shares[:, label] * one).sum() / (shares[:, label].sum() + one.sum()))
    expected = torch.nn.functional.cross_entropy(logits[:, 0], truth.long()) + 1 - torch.stack(dice).mean()
    assert torch.allclose(head_loss(logits, truth), expected, atol=1e-5)


def test_the_grid_alone_restores_what_is_as_coarse_as_it() -> None:
    truth = _square(8, 16, side=8)
    shares = patch_shares(truth, (4, 4), 2)
    assert shares[0, 1, 1, 2] == 1.0
    assert shares.sum() == 16.0
    found = upsampled(shares, 32).argmax(dim=1)
    assert float(target_metrics(_predictions(tally(truth, found, 2)))["dice"].value or 0) > 0.7


@pytest.mark.parametrize("ending", [".png", ".npy", ".tif"])
def test_masks_are_read_by_their_codes_and_an_unknown_one_is_named(tmp_path: Path, ending: str) -> None:
    codes = np.array([[0, 2], [9, 1]], dtype=np.uint8)

    def write(values: Any) -> Path:
        path = tmp_path / f"m{ending}"
        if ending == ".npy":
            np.save(path, values)
        else:
            Image.fromarray(values).save(path)
        return path

    assert read_mask(write(codes), CODES).tolist() == [[0, 2], [IGNORED, 1]]
    for unknown in (7, 200):  # between the declared codes and beyond them
        with pytest.raises(HistobenchError, match=rf"m{ending}: the code {unknown} is not in `mask_classes`"):
            read_mask(write(np.full((2, 2), unknown, dtype=np.uint8)), CODES)


def test_a_file_that_is_no_mask_is_named(tmp_path: Path) -> None:
    """Instances or one-hot channels: which of two that overlap counts is not for the reader to decide."""
    (tmp_path / "m.png").write_bytes(b"nothing")
    np.save(tmp_path / "m.npy", np.eye(6, dtype=np.uint8)[np.zeros((4, 4), dtype=int)])
    for name, told in (("m.png", "not a mask: cannot identify"), ("m.npy", "one whole number per pixel")):
        with pytest.raises(HistobenchError, match=f"{name}: .*{told}"):
            read_mask(tmp_path / name, CODES)


def test_a_mask_of_another_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Image and mask are cut into six tiles each: without a check, border pixels would not count."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    data = _write_set(tmp_path)
    for name in ("p3_7", "p4_8"):  # both are named
        path = tmp_path / "masks" / f"{name}.png"
        Image.fromarray(np.array(Image.open(path))[:-2]).save(path)
    size = "the mask has 40 x 22 pixels, the image 40 x 24"
    with pytest.raises(HistobenchError, match=rf"(?s)p3_7\.png: {size}.*p4_8\.png: {size}"):
        hb.run(data, f"Colors={tmp_path}/own.py:Colors", tasks="Segmentation", results=tmp_path / "r")


def test_ids_of_classes_do_not_depend_on_codes_and_background_is_first() -> None:
    assert classes_of(((3, "tumor"), (255, "ignore"), (0, "other"), (9, "Background"))) == (
        *("Background", "tumor", "other"),
    )


def test_neighbors_are_those_of_slow_code() -> None:
    rng = np.random.default_rng(0)
    tokens, shares = torch.randn(50, 8), torch.rand(50, 3)
    drawn = Drawn(1.0, rng)
    drawn.add(tokens, shares)
    asked = torch.randn(2, 8, 3, 3)
    found = drawn.readout("cpu")(asked)
    bank = torch.nn.functional.normalize(tokens, dim=1).half().float()
    for b, row, column in ((0, 0, 0), (1, 2, 1)):
        near = bank @ torch.nn.functional.normalize(asked[b, :, row, column], dim=0)
        order = near.argsort(descending=True)[:30]
        expected = (near[order] / 0.02).softmax(dim=0) @ shares[order]
        torch.testing.assert_close(found[b, :, row, column], expected, atol=1e-4, rtol=1e-3)


def test_statistics_of_tokens_leave_out_patches_that_do_not_count() -> None:
    truth = torch.zeros(2, 8, 8, dtype=torch.uint8)
    truth[0, :4], truth[1] = IGNORED, IGNORED  # of the first tile the upper patches, the second one
    masks = Masks(truth, np.arange(2), ("background", "gland"))
    tokens = torch.randn(2, 5, 2, 2)
    mean, std = survey(lambda rows: tokens[rows], np.arange(2), masks, 1)
    counted = tokens[0, :, 1]
    torch.testing.assert_close(mean, counted.mean(dim=1))
    torch.testing.assert_close(std, counted.std(dim=1, correction=0))


def test_codes_may_share_a_class_and_are_declared_in_one_place(tmp_path: Path) -> None:
    assert read_codes("3:tumor,1:stroma,4:tumor", tmp_path) == ((3, "tumor"), (1, "stroma"), (4, "tumor"))
    with pytest.raises(HistobenchError, match="which code of the masks is which class"):
        read_codes(None, tmp_path)
    (tmp_path / "classes.json").write_text('{"0": "background", "1": "gland"}')
    assert read_codes(None, tmp_path) == ((0, "background"), (1, "gland"))
    for wrong in ("x:tumor,1:stroma", "1:tumor,1:stroma", "1:tumor,2:ignore"):
        with pytest.raises(HistobenchError, match="mask_classes"):
            read_codes(wrong, tmp_path)


def _write_set(folder: Path, *, by_folders: bool = False) -> Path:
    """Squares of another color in images of 40 x 24 pixels, of ten patients."""
    rows = ["image_path,mask_path,group,split"]
    for number in range(20):
        rng = np.random.default_rng(number)
        mask = np.zeros((24, 40), dtype=np.uint8)
        top, left = 4 * rng.integers(0, 4), 4 * rng.integers(0, 8)
        mask[top : top + 8, left : left + 8] = 2
        mask[:, -1] = 9
        pixels = np.where(mask[..., None] == 2, [160, 40, 90], [220, 200, 210]) + rng.normal(
            0, 12, (24, 40, 3)
        )
        split = "val" if by_folders and number in (8, 9) else "train" if number < 10 else "test"
        inside = f"{split}/" if by_folders else ""
        for part, picture in (("images", pixels.clip(0, 255).astype(np.uint8)), ("masks", mask)):
            (folder / part / inside).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(folder / part / inside / f"p{number // 2}_{number}.png")
        rows.append(
            f"images/p{number // 2}_{number}.png,masks/p{number // 2}_{number}.png,p{number // 2},{split}"
        )
    (folder / "classes.json").write_text(json.dumps({"0": "background", "2": "gland", "9": "ignore"}))
    (folder / "squares.csv").write_text("\n".join(rows) + "\n")
    (folder / "own.py").write_text(ENCODER)
    return folder if by_folders else folder / "squares.csv"


def _counts(results: Path, encoder: str, setting: str = "linear") -> Any:
    table = next(results.rglob(f"{encoder}/uni/Segmentation/Segmentation_{setting}_detailed_results.csv"))
    return np.genfromtxt(table, delimiter=",", names=True, dtype=None, encoding="utf-8", deletechars="")


@pytest.mark.slow
def test_from_the_command_with_intervals_references_and_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    data, results = _write_set(tmp_path), tmp_path / "r"
    own = [f"{name}={tmp_path}/own.py:{name}" for name in ("Colors", "Cropped", "OwnCrop", "NoTokens")]
    command = ["run", "--data", str(data), "--models", ",".join(own), "--tasks", "Segmentation"]
    other = ["--target", "mask", "--tasks", "Segmentation,KNN", "--results", str(results)]
    assert main([*command[:-2], *other]) == 2
    assert "KNN does not apply to a mask target, whose task is Segmentation" in capsys.readouterr().err
    assert main([*command, "--results", str(results), "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert ", Segmentation " in dry
    assert "features " not in dry.partition("total: about")[2].partition("\n")[0]
    assert main([*command, "--results", str(results)]) == 0
    said = capsys.readouterr().out
    assert "2 tasks done" in said
    assert "eval_transforms may crop or resize" in said
    assert "does not define patch_tokens" in said
    stored = json.loads(
        next(results.rglob("Colors/**/Segmentation_linear_complete_results.json")).read_text()
    )
    metrics = stored["metrics"]
    assert metrics["dice"] > 0.75
    assert metrics["ceiling_dice"] > 0.75
    assert {"random_dice", "color_dice", "miou", "pooled_dice"} <= metrics.keys()
    assert stored["additional_info"]["val_use"].startswith("a fifth of the training set, whole groups")
    intervals = json.loads(next(results.rglob("Colors/**/Segmentation_knn_intervals.json")).read_text())
    assert intervals["num_groups"] == 5
    assert intervals["metrics"]["dice"]["ci_lower"] < intervals["metrics"]["dice"]["value"]
    assert "dice" in intervals["per_class"]["gland"]
    # Resized and cropped images would not fit their masks: tiles have the size of the crop instead.
    one, other = (_counts(results, name) for name in ("Colors", "Cropped"))
    assert (one["predicted:pixels:gland"] == other["predicted:pixels:gland"]).all()
    assert (one["predicted:random:pixels:gland"] != one["predicted:pixels:gland"]).any()  # another network
    assert one["true:gland"].sum() + one["true:background"].sum() == 10 * 24 * 39  # no border is dropped
    for work in ("compare", "choose"):
        assert main([work, str(results), "--task", "Segmentation"]) == 0
        said = capsys.readouterr().out
        assert "dice" in said.lower()
        assert work != "compare" or "Colors: Dice of references: random weights" in " ".join(said.split())
    site = build_site(results, tmp_path / "site").parent
    pages = [(site / "data" / "run" / f"{number}.js").read_text() for number in range(4)]
    assert all('"sheet":' in page and '"mask"' in page for page in pages)
    assert main([*command, "--results", str(results)]) == 0
    assert "0 tasks done, 2 done before" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_is_chosen_on_test_images_and_tokens_need_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    data = _write_set(tmp_path, by_folders=True)
    loaded = hb.load_dataset(data, target="mask", group_regex=r"(p\d)_")
    assert not check_dataset(images_of(loaded)).errors

    def trained(name: str, **options: Any) -> tuple[Any, dict[str, Any], float]:
        """Predicted pixels of each image, how the rate was chosen, and Dice."""
        encoder, results = f"Colors={tmp_path}/own.py:Colors", tmp_path / name
        dataset = hb.load_dataset(data, target="mask", group_regex=r"(p\d)_")
        asked = {"tasks": "Segmentation", "head_steps": 100, **options}
        hb.run(dataset, encoder, results=results, **asked)
        stored = json.loads(next(results.rglob("Segmentation_linear_complete_results.json")).read_text())
        chosen = {key: stored["additional_info"][key] for key in ("learning_rate", "dice_chosen_on")}
        return _counts(results, "Colors")["predicted:pixels:gland"], chosen, stored["metrics"]["dice"]

    first, chosen, dice = trained("a")
    assert dice > 0.75
    assert chosen["learning_rate"] == 1e-2  # what learns most is best where truth is right
    for path in (data / "masks" / "test").iterdir():  # the contrary is true on test images alone
        mask = np.array(Image.open(path))
        Image.fromarray(np.where(mask == 9, mask, 2 - mask)).save(path)
    other, chosen_again, dice = trained("b")
    assert dice < 0.25
    assert chosen_again == chosen
    assert (first == other).all()
    again, *_ = trained("c", token_store=0)
    assert np.abs(other - again).max() < 40
    for number in range(15, 20):  # other pixels in half of the test images
        path = data / "images" / "test" / f"p{number // 2}_{number}.png"
        Image.fromarray(255 - np.array(Image.open(path))).save(path)
    other, chosen_again, _ = trained("d")
    assert chosen_again == chosen
    for name, option in (("e", {"seed": 1}), ("f", {"head_steps": 1})):
        assert trained(name, **option)[1]["dice_chosen_on"] != chosen["dice_chosen_on"]
    assert (first == other)[:5].all()
    assert (first != other)[5:].any()


@pytest.mark.slow
def test_neighbors_are_all_training_images_and_no_validation_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    data = _write_set(tmp_path, by_folders=True)
    found: list[Any] = []
    drawn: list[int] = []
    read_out = Drawn.readout
    counted = lambda self, device: drawn.append(sum(map(len, self.tokens))) or read_out(self, device)  # noqa: E731
    monkeypatch.setattr(Drawn, "readout", counted)
    for name in "abc":
        options: dict[str, Any] = {"tasks": "Segmentation", "head_steps": 1, "results": tmp_path / name}
        given = data if name < "c" else _write_set(tmp_path / "whole")  # without validation images
        hb.run(hb.load_dataset(given, target="mask"), f"Colors={tmp_path}/own.py:Colors", **options)
        found.append(_counts(tmp_path / name, "Colors", "knn")["predicted:pixels:gland"])
        for path in (data / "masks" / "val").iterdir():  # without the glands
            Image.fromarray(np.zeros((24, 40), dtype=np.uint8)).save(path)
    assert (found[0] == found[1]).all()
    assert drawn == [60 * images for images in (8, 8, 10) for _ in range(3)]  # 10 x 6 patches, three networks


@pytest.mark.parametrize(("size", "tiles"), [(224, 1), (16, 6)])
def test_a_dry_run_counts_tiles_and_the_random_network_and_no_features(
    tmp_path: Path, size: int, tiles: int
) -> None:
    values = {
        "datasets": [str(_write_set(tmp_path))],
        "encoders": [f"Colors={tmp_path}/own.py:Colors"],
        "tasks": ["Segmentation"],
        "size": size,
    }
    plan = plan_from(values, where="", base=tmp_path)
    jobs = [ExtractionEstimate(plan.datasets[0], plan.encoders[0], 20, 10.0, None)]
    parts = estimated_seconds(plan, load_datasets(plan), jobs)
    assert parts["Segmentation"] == 2 * tiles * 10.0
    assert parts["features"] == parts["tasks"] == 0


def test_unreadable_images_are_listed_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    data, results = _write_set(tmp_path), tmp_path / "r"
    for name in ("p0_0", "p9_19"):
        (tmp_path / "images" / f"{name}.png").write_bytes(b"not an image")
    command = ["run", "--data", str(data), "--models", f"Colors={tmp_path}/own.py:Colors"]
    command += ["--tasks", "Segmentation", "--results", str(results)]
    assert main(command) == 2
    said = capsys.readouterr().out
    assert "p0_0.png" in said
    assert "p9_19.png" in said
    assert main([*command, "--on-bad-image", "skip", "--head-steps", "7"]) == 0
    assert len(_counts(results, "Colors")) == 9
    stored = json.loads(next(results.rglob("Segmentation_linear_complete_results.json")).read_text())
    assert stored["additional_info"]["options"] == {"--head-steps": "7"}
    assert stored["additional_info"]["caveats"][0].startswith("2 images left out as unusable (first: ")


@pytest.mark.slow
def test_classes_that_no_training_mask_has_are_told_and_one_that_counts_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    data = _write_set(tmp_path, by_folders=True)
    command = ["run", "--data", str(data), "--target", "mask", "--models", f"Colors={tmp_path}/own.py:Colors"]
    command += ["--tasks", "Segmentation", "--head-steps", "1", "--results", str(tmp_path / "r")]
    lacking = "test masks have gland, but no training mask does"
    for code, exit_code, told in (
        (0, 0, lacking),
        (9, 2, "every pixel of the training masks is of the class"),
    ):
        for path in (data / "masks" / "train").iterdir():  # those of validation images still have glands
            Image.fromarray(np.full((24, 40), code, dtype=np.uint8)).save(path)
        assert main(command) == exit_code
        said = capsys.readouterr()
        assert told in " ".join((said.out + said.err).split())
    stored = json.loads(next((tmp_path / "r").rglob("Segmentation_linear_complete_results.json")).read_text())
    assert lacking in stored["additional_info"]["caveats"]
