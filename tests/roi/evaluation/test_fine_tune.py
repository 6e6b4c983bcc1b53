"""The task Fine-tune: its control, the choice of learning rates, seeds, and what it writes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import histobench as hb
from builders import TINY_VIT
from histobench.api.dataset import images_of
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.report.site import build_site
from histobench.roi.comparison.left_out_table import TargetTable
from histobench.roi.comparison.ranking_shift import ranking_shifts
from histobench.roi.comparison.selection import select_runs
from histobench.roi.data.demo_masks import draw_mask_tiles
from histobench.roi.data.masks import IGNORED, read_mask
from histobench.roi.data.targets import TargetColumns
from histobench.roi.encoders.lora import add_lora
from histobench.roi.encoders.registry import EncoderRecipe, create_encoder
from histobench.roi.evaluation import fine_tune_task
from histobench.roi.evaluation.context import TaskSkippedError
from histobench.roi.evaluation.evaluation_request import ImageRequest
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.evaluation.segmentation_task import PALETTE
from histobench.roi.options import IMAGE_KEYS, Options, Settings
from histobench.roi.plan.plan_file import plan_from
from histobench.roi.plan.plan_run import load_datasets
from histobench.roi.predictions import TargetPredictions
from histobench.roi.protocols.head_training import Encode, Labels, Parts, Trainer, features_of, on_device
from histobench.roi.result_options import CompareOptions
from histobench.roi.results.reader import load_runs

pytestmark = pytest.mark.slow

FAST = Options(lora_rank=2, lora_alpha=2.0, tune_epochs=2, tune_rates=(1e-2, 1e-4), tune_batch_size=8)


def _stripes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Tiles with lines along or across, noisy."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    lines = np.where(np.arange(16) // 2 % 2, 160, 90)[None, :]
    pixels = (
        rng.normal(0, 20, (count, 16, 16, 3)) + np.where(labels[:, None, None], lines, lines.T)[..., None]
    )
    return pixels.clip(0, 255).astype(np.uint8), labels.astype(np.int64)


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(TINY_VIT)
    return f"tiny={tmp_path}/own.py:Tiny"


def _trainers(
    own: str, labels: np.ndarray, rows: np.ndarray, options: Options = FAST
) -> tuple[Trainer, Trainer]:
    """Of the frozen network and of the adapted one."""
    pixels, _ = _stripes(len(labels))
    encoder = create_encoder(own)
    lora = add_lora(encoder, rank=options.lora_rank, alpha=options.lora_alpha)
    encode = on_device(encoder, pixels, device="cpu", precision="fp32")
    frozen = features_of(encode, torch.arange(len(pixels)))
    moments = frozen[rows].mean(dim=0), frozen[rows].std(dim=0, correction=0)
    goal = Labels(torch.from_numpy(labels), ("a", "b"))
    control = Trainer(frozen.__getitem__, goal, *moments, options.tune_epochs, options.tune_batch_size)
    return control, replace(control, encode=encode, lora=lora)


def _tuned(own: str, labels: np.ndarray | None = None, options: Options = FAST) -> tuple[list, list]:
    rows = np.arange(48)
    parts = Parts(rows[:24], rows[24:32], rows[:32], rows[32:])
    trainers = _trainers(own, _stripes(48)[1] if labels is None else labels, parts.fit, options)
    frozen, adapted = (
        list(each.runs(parts, options.tune_rates, range(options.tune_seeds))) for each in trainers
    )
    return frozen, adapted


def test_the_control_is_the_frozen_network_trained_by_the_same_loop(own: str) -> None:
    pixels, labels = _stripes(24)
    encoder = create_encoder(own)
    weights = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    features = encoder(encoder.eval_transforms.normalise(torch.from_numpy(pixels))).detach()
    encode = on_device(encoder, pixels, device="cpu", precision="fp32")
    control, _ = _trainers(own, labels, np.arange(16))
    torch.testing.assert_close(control.encode(torch.arange(24)), features)  # those of an extraction

    def trained(trainer: Trainer) -> np.ndarray:
        return trainer.predict(trainer.train(np.arange(16), [1e-2], 0), np.arange(16, 24))

    np.testing.assert_allclose(trained(control), trained(replace(control, encode=encode)), atol=1e-5)
    assert all(torch.equal(encoder.state_dict()[name], tensor) for name, tensor in weights.items())


def test_heads_trained_together_are_those_trained_alone_with_one_adapter_for_each_rate(own: str) -> None:
    control, adapted = _trainers(own, _stripes(48)[1], np.arange(24))
    rows = np.arange(24), np.arange(24, 32)
    together = control.predict(control.train(rows[0], [1e-2, 1e-3], 0), rows[1])
    for place, rate in enumerate((1e-2, 1e-3)):
        alone = control.predict(control.train(rows[0], [rate], 0), rows[1])[0]
        np.testing.assert_allclose(together[place], alone, atol=1e-5)
    parts = Parts(*rows, rows[0], rows[1])
    for rate, cost in adapted.costs(parts, [1e-2, 1e-3], 0).items():
        predicted = adapted.predict(adapted.train(parts.fit, [rate], 0), parts.held_out)
        assert cost == pytest.approx(adapted.goal.costs(predicted, parts.held_out)[0])


def test_a_network_that_gives_no_numbers_is_an_error(own: str) -> None:
    control, _ = _trainers(own, _stripes(16)[1], np.arange(16))
    nothing = replace(control, mean=torch.full_like(control.mean, math.nan))  # as of tokens that overflow
    with pytest.raises(HistobenchError, match="values that are not finite; try `precision` fp32"):
        nothing.train(np.arange(16), [1e-2], 0)


def test_an_error_of_the_encoder_is_told_with_its_name(own: str) -> None:
    encoder = create_encoder(own)
    encode = on_device(encoder, np.zeros((2, 9, 9, 3), dtype=np.uint8), device="cpu", precision="fp32")
    with pytest.raises(HistobenchError, match=r"own\.py:Tiny fails on 2 images: "):
        encode(torch.arange(2))  # 9 is no multiple of the patch


def test_smaller_pieces_after_memory_ran_out_give_the_same_step(own: str) -> None:
    _, trainer = _trainers(own, _stripes(16)[1], np.arange(16))
    encode = trainer.encode

    def short_of_memory(rows: torch.Tensor) -> torch.Tensor:
        if len(rows) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return encode(rows)

    def trained(encode: Encode) -> tuple[int, list[torch.Tensor]]:
        used = replace(trainer, encode=encode)
        head = used.train(np.arange(16), [1e-3], 0)
        weights = (*head.parameters(), *used.lora.weights.values())
        return used.at_once, [weight.detach().clone() for weight in weights]

    (_, whole), (at_once, in_pieces) = trained(encode), trained(short_of_memory)
    assert at_once == 2
    for one, other in zip(whole, in_pieces, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_adapting_learns_what_the_frozen_network_does_not_and_seeds_differ(own: str) -> None:
    options = replace(FAST, tune_epochs=15, lora_rank=8, lora_alpha=16.0)
    frozen, adapted = _tuned(own, options=options)
    truth = _stripes(48)[1][32:]

    def loss(runs: list) -> float:
        return float(np.mean([-np.log(said[np.arange(16), truth]).mean() for said, _ in runs]))

    assert loss(adapted) < loss(frozen)
    assert [info["seed"] for _, info in adapted] == [0, 1, 2]
    for runs in (frozen, adapted):
        assert len({said.tobytes() for said, _ in runs}) == 3
    assert set(adapted[0][1]["held_out_loss"]) == {"0.01", "0.0001"}


def test_labels_of_the_test_images_change_nothing(own: str) -> None:
    """Neither a learning rate nor a weight depends on them; held-out labels do choose."""
    labels = _stripes(48)[1]
    options = replace(FAST, tune_seeds=1)
    other_test = np.where(np.arange(48) < 32, labels, 1 - labels)
    (_, first), (_, second) = _tuned(own, options=options), _tuned(own, other_test, options)
    assert np.array_equal(first[0][0], second[0][0])
    wrong = np.where((np.arange(48) >= 24) & (np.arange(48) < 32), 1 - labels, labels)
    turned, _ = _tuned(own, wrong, replace(options, tune_epochs=8))
    assert turned[0][1]["learning_rate"] == 1e-4  # what learns least is least wrong there


def _write(folder: Path, *, val: bool = False) -> Path:
    pixels, labels = _stripes(40)
    rows = ["image_path,label,split,group"]
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number}.png")
        split = "train" if number < 24 else "val" if val and number < 28 else "test"
        rows.append(f"{number}.png,{'ab'[labels[number]]},{split},p{number // 2}")
    (folder / "tiles.csv").write_text("\n".join(rows) + "\n")
    return folder / "tiles.csv"


def _context(tmp_path: Path, table: Path, encoder: str) -> ImageContext:
    values = {"datasets": [str(table)], "encoders": [encoder], "results": "r"}
    (data,) = load_datasets(plan_from(values, where="", base=tmp_path)).values()
    request = ImageRequest(
        "Fine-tune",
        data,
        EncoderRecipe(encoder),
        tmp_path / "results",
        dataset="tiles",
        encoder="tiny",
        options=FAST,
        settings=Settings(device="cpu", num_workers=1),
    )
    return ImageContext.of(request)


BOTH = {"frozen", "lora"}
TUNED: dict[str, tuple[Any, set[str]]] = {
    "lora_rank": (3, {"lora"}), "lora_alpha": (7.0, {"lora"}), "tune_epochs": (2, BOTH), "seed": (1, BOTH),
    "tune_rates": ((1e-3,), BOTH), "tune_batch_size": (4, BOTH), "tune_seeds": (2, BOTH),
}  # fmt: skip


def test_every_option_changes_the_networks_that_it_is_for(tmp_path: Path, own: str) -> None:
    assert {*TUNED, "head_steps", "token_store", "save_adapters"} == {*IMAGE_KEYS, "seed"}
    asked = _context(tmp_path, _write(tmp_path), own).asked
    quick = replace(FAST, tune_epochs=1, tune_rates=(1e-2,), tune_seeds=1)

    def predicted(seed: int = 0, **options: Any) -> dict[str, bytes]:
        given = replace(asked, seed=seed, options=replace(quick, **options))
        found = {each.setting: each for each in fine_tune_task.run_fine_tune(ImageContext.of(given))}
        for each in found.values():
            runs = [run["seed"] for run in each.predictions.info["runs"]]
            assert runs == list(range(seed, seed + given.options.tune_seeds))
        return {name: each.predictions.probabilities.tobytes() for name, each in found.items()}

    usual = predicted()
    for name, (value, networks) in TUNED.items():
        other = predicted(**{name: value})
        assert {setting for setting in BOTH if usual[setting] != other[setting]} == networks, name
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "39.png")  # the last test image
    for name, numbers in predicted().items():  # of the others nothing depends on it
        before, after = (np.frombuffer(each).reshape(16, 2) for each in (usual[name], numbers))
        assert (before[:15] == after[:15]).all()
        assert (before[15] != after[15]).any()


def test_learning_rates_are_chosen_on_patients_that_are_not_trained_on(tmp_path: Path, own: str) -> None:
    context = _context(tmp_path, _write(tmp_path), own)
    parts, info = context.parts(), context.info
    groups = [image.group for image in context.asked.data.splits["train"]]
    assert len(parts.held_out) > 0
    assert not {groups[row] for row in parts.fit} & {groups[row] for row in parts.held_out}
    assert sorted([*parts.fit, *parts.held_out]) == list(parts.train) == list(range(24))
    assert list(parts.test) == list(range(24, 40))
    assert info["chosen_by"] == "group"
    parts = _context(tmp_path, _write(tmp_path, val=True), own).parts()
    assert list(parts.fit) == list(parts.train) == list(range(24))
    assert list(parts.held_out) == list(range(24, 28))


def test_precision_and_target_are_in_the_digest_of_a_task_on_images(tmp_path: Path, own: str) -> None:
    asked = _context(tmp_path, _write(tmp_path), own).asked
    masks = TargetColumns("mask", ("mask_path",), codes=((0, "a"), (1, "b")))
    others = [
        replace(asked, settings=replace(asked.settings, precision="bf16")),
        replace(asked, data=replace(asked.data, target=masks)),
        replace(asked, data=replace(asked.data, target=replace(masks, codes=((0, "b"), (1, "a"))))),
    ]
    assert len({ImageContext.of(each).digest("Fine-tune") for each in (asked, *others)}) == 4


def test_images_are_decoded_as_for_an_extraction(tmp_path: Path, own: str) -> None:
    context = _context(tmp_path, _write(tmp_path), own)
    spec = context.encoder.eval_transforms
    expected = np.stack([spec.crop_pixels(Image.open(image.path)) for image in context.every])
    assert np.array_equal(fine_tune_task.decoded(context), expected)
    context.encoder.eval_transforms = lambda image: spec(image)
    found = fine_tune_task.decoded(context)
    assert np.array_equal(found, np.stack([spec(Image.open(image.path)) for image in context.every]))


def test_an_encoder_without_attention_is_skipped_before_anything_is_decoded(
    tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fine_tune_task, "decoded", None)
    context = _context(tmp_path, _write(tmp_path), "efficientnet-lite0")
    with pytest.raises(TaskSkippedError, match="convolutional"):
        list(fine_tune_task.run_fine_tune(context))


def test_one_command_gives_both_networks_and_adapters_that_are_encoders(
    tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    table, results = _write(tmp_path), tmp_path / "results"
    train = "--tune-epochs 2 --tune-rates 1e-2,1e-3 --lora-rank 2 --tune-batch-size 8 --save-adapters"
    place = f"--results {results} --device cpu"
    command = f"run --data {table} --models {own} --tasks fine-tune {place} {train}".split()
    assert main([*command, "--models", "random-vit", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Fine-tune: about" in said
    assert "MB of features" not in said
    assert main(command) == 0
    runs = {run.setting: run for run in load_runs(results)}
    assert set(runs) == {"frozen", "lora"}
    info = json.loads(runs["lora"].path.read_text())["additional_info"]
    assert info["adapted_modules"] == 2
    assert info["trainable_parameters"] == 2 * 2 * (24 + 3 * 24)
    assert len(info["runs"]) == 3
    mean = np.mean([runs["lora"].episodes.probabilities(seed) for seed in range(3)], axis=0)
    np.testing.assert_allclose(runs["lora"].predictions.probabilities, mean, atol=2e-3)
    assert not list(results.rglob("*.pt"))  # no features of an adapted network, and none in the cache
    assert not list((tmp_path / "cache").rglob("*shard*"))
    capsys.readouterr()
    assert main(command) == 0
    assert "1 done before" in capsys.readouterr().out
    (loader, *_) = sorted(results.rglob("adapters/*/seed-*/encoder.py"))
    tuned = ["run", "--data", str(table), "--models", f"tuned={loader}:adapted", "--tasks", "KNN"]
    assert main([*tuned, "--device", "cpu", "--results", str(tmp_path / "again")]) == 0


# Where masks are predicted.

ON_TOKENS = """

class OnTokens(Tiny):
    def patch_tokens(self, images):
        from histobench.roi.encoders.patch_tokens import network_tokens
        return network_tokens(self.net, images)
"""


@pytest.fixture
def glands(tmp_path: Path) -> tuple[Path, str]:
    """A table of drawn masks, and an encoder with tokens."""
    (tmp_path / "tokens.py").write_text(TINY_VIT + ON_TOKENS)
    table = draw_mask_tiles(tmp_path / "glands", n_train=5, n_test=5, n_tiles=2, size=24)
    return table, f"tokens={tmp_path}/tokens.py:OnTokens"


def _run_masks(table: Path, own: str, results: Path, more: str) -> None:
    options = "--device cpu --tune-rates 1e-2,1e-3 --tune-batch-size 8 --head-steps 1"
    assert main(f"run --data {table} --models {own} --results {results} {options} {more}".split()) == 0


def test_on_masks_there_are_trainings_references_and_one_comparison(
    tmp_path: Path,
    glands: tuple[Path, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    results = tmp_path / "results"
    _run_masks(*glands, results, "--tasks Segmentation,Fine-tune --tune-epochs 3 --save-adapters")
    assert "2 tasks done" in capsys.readouterr().out
    runs = {run.setting: run for run in load_runs(results)}
    assert set(runs) == {"linear", "knn", "frozen-tokens", "lora-tokens"}
    info = json.loads(runs["lora-tokens"].path.read_text())["additional_info"]
    assert (info["adapted_modules"], len(info["runs"]), info["token_grid"]) == (2, 3, [4, 4])
    data = images_of(hb.load_dataset(glands[0], target="mask"))
    images, codes = data.splits["test"], data.target.codes
    for name in ("frozen-tokens", "lora-tokens"):
        run = runs[name]
        found = run.target_predictions
        n, c = found.truth.shape
        assert np.array_equal(found.truth, runs["linear"].target_predictions.truth)
        each = found.predicted.reshape(n, -1, 2, c)  # the first training, three references, two trainings
        assert each.shape[1] == 6
        assert not np.array_equal(each[:, 1], each[:, 0])  # random weights are another network
        dice = [_slow_dice(each[:, k, 0], each[:, k, 1], found.truth) for k in range(6)]
        assert run.metrics["dice"] == pytest.approx(np.mean([dice[0], dice[4], dice[5]]))
        for reference, value in zip(("random", "color", "ceiling"), dice[1:4], strict=True):
            assert run.metrics[f"{reference}_dice"] == pytest.approx(value)
        assert run.metrics["ceiling_dice"] == pytest.approx(runs["linear"].metrics["ceiling_dice"])
        last = [_slow_dice(*each[[row], 5].swapaxes(0, 1), found.truth[[row]]) for row in range(n)]
        assert run.info["examples"][0]["dice"] == pytest.approx(np.nanmin(last), abs=1e-4)
        shown = next(each for each in images if each.name == run.info["examples"][0]["image"])
        truth = read_mask(shown.mask, codes)
        drawn = Image.fromarray(PALETTE[np.where(truth == IGNORED, len(PALETTE) - 1, truth)].astype(np.uint8))
        sheet = np.asarray(Image.open(next(results.rglob(f"Fine-tune_{name}_examples.png"))))
        assert (sheet[:160, 160:320] == np.asarray(drawn.resize((160, 160), Image.Resampling.NEAREST))).all()
        intervals = json.loads(next(results.rglob(f"Fine-tune_{name}_intervals.json")).read_text())
        assert intervals["left_out"].startswith("training runs and groups")
        assert intervals["metrics"]["dice"]["ci_lower"] < run.metrics["dice"]
    same = [runs[name].target_predictions.predicted for name in ("frozen-tokens", "lora-tokens")]
    c = len(runs["lora-tokens"].target_predictions.columns)
    assert np.array_equal(*(each[:, 2 * c : 8 * c] for each in same))  # the references
    assert not np.array_equal(*(each[:, : 2 * c] for each in same))
    assert main(["compare", str(results), "--task", "Fine-tune"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "dice of the frozen and the fine-tuned networks" in said
    assert "random weights" in said
    assert select_runs(list(runs.values())) == [runs["linear"]]  # where no task is named
    (shift,) = ranking_shifts(list(runs.values()), CompareOptions())
    assert shift.shifts[0].difference == pytest.approx(
        runs["lora-tokens"].metrics["dice"] - runs["frozen-tokens"].metrics["dice"]
    )
    site = build_site(results, tmp_path / "site").parent
    pages = [(site / "data" / "run" / f"{number}.js").read_text() for number in range(4)]
    assert all('"sheet":' in page for page in pages)
    # The adapter is an encoder with tokens of its own.
    (loader, *_) = sorted(results.rglob("adapters/*/seed-*/encoder.py"))
    place = f"--results {tmp_path / 'again'} --tasks Segmentation --head-steps 1"
    assert main(f"run --data {glands[0]} --models tuned={loader}:adapted {place}".split()) == 0


def _slow_dice(both: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> float:
    """Of foreground classes in truth or prediction of an image, over classes, then over images."""
    of_images = []
    for b, p, t in zip(both, predicted, true, strict=True):
        known = [2 * b[k] / (p[k] + t[k]) for k in range(1, len(b)) if p[k] + t[k] > 0]
        of_images += [np.mean(known)] if known else []
    return float(np.mean(of_images))


def test_masks_of_test_images_change_no_prediction(
    tmp_path: Path, glands: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    table, _ = glands

    def predicted(name: str) -> np.ndarray:
        _run_masks(*glands, tmp_path / name, "--target mask --tasks Fine-tune --tune-epochs 1")
        (run,) = (run for run in load_runs(tmp_path / name) if run.setting == "lora-tokens")
        n, c = run.target_predictions.truth.shape
        return run.target_predictions.predicted.reshape(n, -1, 2, c)[:, [0, 4, 5], 1]

    first = predicted("a")
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    for path in (table.parent / mask for _, mask, _, split in rows if split == "test"):
        mask = np.array(Image.open(path))  # other truth where it counts
        Image.fromarray(np.where(mask == 255, mask, 2 - mask.clip(max=2)).astype(np.uint8)).save(path)
    assert np.array_equal(first, predicted("b"))


def test_intervals_of_several_trainings_are_over_trainings_and_images() -> None:
    """By hand: variances of the mean over images and over trainings add up, less what both contain."""
    rng = np.random.default_rng(0)
    true = np.full((30, 2), 100.0)
    dice = np.clip(
        0.5 + rng.normal(0, 0.1, (30, 1)) + np.array([-0.1, 0.0, 0.1]), 0, 1
    )  # [images, trainings]
    blocks = [np.stack([dice[:, [k, k]] * 100, true], axis=1) for k in (0, 0, 0, 0, 1, 2)]
    predicted = np.stack(blocks, axis=1).reshape(30, -1)
    names = tuple(map(str, range(30)))
    columns = tuple(map(str, range(predicted.shape[1])))
    run = TargetPredictions("mask", ("background", "gland"), true, columns, predicted, names)
    found = TargetTable.of({"a": run}).found["dice"]
    assert found.values[0] == pytest.approx(dice.mean())
    over_images = dice.mean(axis=1).var(ddof=1) / 30
    over_trainings = dice.mean(axis=0).var(ddof=1) / 3
    assert found.variance[0] == pytest.approx(over_images + over_trainings, rel=0.01)
    few = replace(run, predicted=predicted[:, : 5 * 4], predicted_columns=columns[: 5 * 4])
    assert "2 episodes or runs" in (TargetTable.of({"a": few}).intervals("dice")["a"].reason or "")
