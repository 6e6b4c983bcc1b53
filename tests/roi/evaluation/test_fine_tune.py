"""The task Fine-tune: its control, the choice of learning rates, seeds, and what it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from builders import TINY_VIT
from histobench.cli.main import main
from histobench.roi.encoders.lora import add_lora
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.evaluation import fine_tune_task
from histobench.roi.evaluation.context import TaskSkippedError
from histobench.roi.evaluation.evaluation_request import ImageRequest
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.features.settings import EncoderRecipe
from histobench.roi.options import Options, Settings
from histobench.roi.plan.plan_file import plan_from
from histobench.roi.plan.plan_run import load_datasets
from histobench.roi.protocols.head_training import Encode, Labels, Parts, Trainer, features_of, on_device
from histobench.roi.results.reader import load_runs

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
    goal = Labels(torch.from_numpy(labels), 2)
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


def test_learning_rates_are_chosen_on_patients_that_are_not_trained_on(tmp_path: Path, own: str) -> None:
    context = _context(tmp_path, _write(tmp_path), own)
    parts, info, _ = context.parts()
    groups = [image.group for image in context.images("train")]
    assert len(parts.held_out) > 0
    assert not {groups[row] for row in parts.fit} & {groups[row] for row in parts.held_out}
    assert sorted([*parts.fit, *parts.held_out]) == list(parts.train) == list(range(24))
    assert list(parts.test) == list(range(24, 40))
    assert info["chosen_by"] == "group"
    parts, info, _ = _context(tmp_path, _write(tmp_path, val=True), own).parts()
    assert list(parts.fit) == list(parts.train) == list(range(24))
    assert list(parts.held_out) == list(range(24, 28))


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


@pytest.mark.nightly
def test_two_encoders_are_fine_tuned_compared_chosen_and_reported(
    tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    results, tiles = str(tmp_path / "results"), tmp_path / "demo"
    assert main(f"data demo {tiles} --name demo --per-class 8 --test-per-class 10".split()) == 0
    command = (
        f"run --data {tiles}/demo.csv --models random-vit,{own},tiny-vl --tasks Fine-tune,KNN --device cpu"
    )
    more = f"--results {results} --size 32 --tune-epochs 3 --tune-rates 1e-3,1e-4"
    assert main(f"{command} {more}".split()) == 0
    assert "of tiny-vl: is a convolutional network" in capsys.readouterr().out
    assert main(["compare", results, "--task", "Fine-tune"]) == 0
    assert "Kendall" in capsys.readouterr().out
    assert main(["choose", results, "--task", "Fine-tune"]) == 0
    assert main(["report", results]) == 0
