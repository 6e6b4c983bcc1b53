"""Models outside the zoo, compared with the libraries that built them; the network is never used."""

from __future__ import annotations

import json
import logging
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import histobench as hb
from histobench.core.errors import HistobenchError
from histobench.roi.encoders import any_model
from histobench.roi.encoders.registry import EncoderRecipe, create_encoder, get_spec

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(any_model, "_said", set())
    any_model.find_model.cache_clear()


def _picture(width: int = 300, height: int = 260) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def _features(encoder: Any, picture: Image.Image) -> torch.Tensor:
    with torch.inference_mode():
        features: torch.Tensor = encoder(encoder.eval_transforms(picture)[None])
    return features


def _timm() -> Any:
    """Imported when a test needs it: every worker imports this file, and few run it."""
    return import_module("timm")


def _timm_checkpoint(name: str, folder: Path) -> tuple[Any, Path]:
    torch.manual_seed(0)
    model = _timm().create_model(name, pretrained=False).eval()
    path = folder / f"{name}.safetensors"
    save_file(model.state_dict(), path)
    return model, path


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_convnext"])
def test_timm_features_are_those_of_timm_with_its_own_transform(name: str, tmp_path: Path) -> None:
    model, path = _timm_checkpoint(name, tmp_path)
    encoder = create_encoder(f"timm:{name}", weights=str(path))
    data = _timm().data
    transform = data.create_transform(**data.resolve_data_config({}, model=model))
    with torch.inference_mode():
        batch = transform(_picture())[None]
        expected = model.forward_head(model.forward_features(batch), pre_logits=True)
    torch.testing.assert_close(_features(encoder, _picture()), expected)
    assert encoder.identity["weights"].startswith("sha256:")


def test_pooling_is_an_option_and_prefix_tokens_do_not_enter_the_mean(tmp_path: Path) -> None:
    model, path = _timm_checkpoint("test_vit", tmp_path)
    encoder = create_encoder("timm:test_vit@mean", weights=str(path))
    with torch.inference_mode():
        tokens = model.forward_features(encoder.eval_transforms(_picture())[None])  # type: ignore[operator]
    expected = tokens[:, model.num_prefix_tokens :].mean(dim=1)
    torch.testing.assert_close(_features(encoder, _picture()), expected)
    both = create_encoder("timm:test_vit@cls+mean", weights=str(path))
    assert both.embed_dim == 2 * encoder.embed_dim


def test_making_one_warns_once_and_shows_the_transform(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, path = _timm_checkpoint("test_vit", tmp_path)
    with caplog.at_level(logging.WARNING):
        create_encoder("timm:test_vit", weights=str(path))
        create_encoder("timm:test_vit", weights=str(path))
    (told,) = [record.getMessage() for record in caplog.records if "authors" in record.getMessage()]
    assert "short side to 168 (bicubic), center crop 160, mean 0.5" in told
    assert "Output: pooled, 64 numbers" in told


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    _, path = _timm_checkpoint("test_resnet", tmp_path)
    with pytest.raises(HistobenchError, match="not this encoder's weights"):
        create_encoder("timm:test_vit", weights=str(path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:resnet18x", "has no model 'resnet18x'; did you mean resnet18"),
        ("timm:resnet18@cls", "no class token"),
        ("timm:resnet18@men", "did you mean mean"),
        ("timm:vit_tiny_patch16_224.nope", "Invalid pretrained tag"),
        ("timm:vit_tiny_patch16_224", "HF_HUB_OFFLINE=1"),
        ("hf:owner", "expected hf:OWNER/NAME"),
        ("hf:owner/name", "HF_HUB_OFFLINE=1"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(name: str, words: str) -> None:
    reason = EncoderRecipe(name).unresolved()
    assert words in reason
    # Missing weights have three lines: why, what to do with internet, what to do without.
    assert reason.count("\n") == (2 if "HF_HUB_OFFLINE" in words else 0)


# The Hugging Face hub, as folders that its libraries wrote


def _transformers_folder(kind: str, folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    if kind == "vit":
        config = transformers.ViTConfig(**small, image_size=64, patch_size=16)
        model, base = transformers.ViTForImageClassification(config).eval(), "vit"
        processor = transformers.ViTImageProcessor(size={"height": 64, "width": 64})
    elif kind == "dinov2":
        config = transformers.Dinov2Config(**small, image_size=56, patch_size=14)
        model, base = transformers.Dinov2Model(config).eval(), ""
        processor = transformers.BitImageProcessor(
            size={"shortest_edge": 64}, crop_size={"height": 56, "width": 56}
        )
    elif kind == "resnet":
        config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
        model, base = transformers.ResNetForImageClassification(config).eval(), "resnet"
        processor = transformers.ViTImageProcessor(size={"height": 64, "width": 64})
    else:
        tower = {**small, "image_size": 64, "patch_size": 16}
        config = transformers.CLIPConfig(vision_config=tower, text_config=small, projection_dim=24)
        model, base = transformers.CLIPModel(config).eval(), ""
        processor = transformers.CLIPImageProcessor(
            size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}
        )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return getattr(model, base) if base else model


@pytest.mark.parametrize(
    ("kind", "pooling", "dim"),
    [
        ("vit", "cls", 32),
        ("vit", "mean", 32),
        ("dinov2", "", 32),
        ("dinov2", "cls+mean", 64),
        ("resnet", "", 16),
        ("clip", "", 24),
    ],
)
def test_transformers_folders_give_the_library_s_own_output(
    kind: str, pooling: str, dim: int, tmp_path: Path
) -> None:
    model = _transformers_folder(kind, tmp_path / "m")
    encoder = create_encoder(f"hf:{tmp_path / 'm'}" + (f"@{pooling}" if pooling else ""))
    batch = encoder.eval_transforms(_picture())[None]  # type: ignore[operator]
    with torch.inference_mode():
        if kind == "clip":
            output = model.get_image_features(pixel_values=batch)
            expected = output if isinstance(output, torch.Tensor) else output.pooler_output
        elif not pooling:
            expected = model(pixel_values=batch).pooler_output.flatten(1)
        else:
            tokens = model(pixel_values=batch).last_hidden_state
            parts = {"cls": tokens[:, 0], "mean": tokens[:, 1:].mean(1)}
            expected = torch.cat([parts[part] for part in pooling.split("+")], dim=1)
    assert encoder.embed_dim == dim
    torch.testing.assert_close(_features(encoder, _picture()), expected)


@pytest.mark.parametrize("kind", ["vit", "clip", "dinov2"])
def test_the_processor_s_own_pixels_up_to_its_rounding(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    _transformers_folder(kind, tmp_path / "m")
    spec = get_spec(f"hf:{tmp_path / 'm'}@cls")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "m", use_fast=False)
    smooth = _picture(30, 26).resize((300, 260), Image.Resampling.BICUBIC)
    theirs = torch.as_tensor(np.asarray(processor(smooth, return_tensors="np")["pixel_values"][0]))
    ours = spec.transform(smooth)
    assert ours.shape == theirs.shape
    # The library may resize on tensors, which rounds and antialiases differently from Pillow.
    assert float((ours - theirs).abs().mean()) < 0.02


def test_a_timm_folder_of_the_hub_and_an_open_clip_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _timm().create_model("test_vit", num_classes=3).eval()
    import_module("timm.models._hub").save_for_hf(model, str(tmp_path / "t"))
    encoder = create_encoder(f"hf:{tmp_path / 't'}@cls")
    with torch.inference_mode():
        expected = model.forward_features(encoder.eval_transforms(_picture())[None])[:, 0]  # type: ignore[operator]
    torch.testing.assert_close(_features(encoder, _picture()), expected)

    open_clip = pytest.importorskip("open_clip")
    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
        "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1},
    }
    clip = open_clip.CLIP(**config).eval()
    folder = tmp_path / "c"
    folder.mkdir()
    preprocess = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bilinear"}
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": preprocess})
    )
    save_file(clip.state_dict(), folder / "open_clip_model.safetensors")
    encoder = create_encoder(f"hf:{folder}")
    assert get_spec(f"hf:{folder}").transform.std == (0.25, 0.25, 0.25)
    with torch.inference_mode():
        expected = clip.encode_image(encoder.eval_transforms(_picture())[None])  # type: ignore[operator]
    torch.testing.assert_close(_features(encoder, _picture()), expected)


def test_another_revision_with_the_same_weights_is_another_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository of the hub whose configuration changes, and not its checkpoint."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    _transformers_folder("vit", tmp_path / "m")
    changes: list[tuple[str, dict[str, Any]]] = [
        ("config.json", {}),
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"layer_norm_eps": 0.5}),
        ("config.json", {"num_attention_heads": 1}),
        ("preprocessor_config.json", {"image_mean": [0.1, 0.2, 0.3]}),
    ]
    identities, features = [], []
    repository = tmp_path / "hub" / "models--me--vit"
    (repository / "refs").mkdir(parents=True)
    for number, (file, change) in enumerate(changes):
        folder = repository / "snapshots" / (str(number) * 40)
        shutil.copytree(tmp_path / "m", folder)
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | change | {"transformers_version": str(number)}))
        (repository / "refs" / "main").write_text(folder.name)
        any_model.find_model.cache_clear()
        encoder = create_encoder("hf:me/vit@cls")
        identities.append(json.dumps([encoder.identity, repr(encoder.eval_transforms)], sort_keys=True))
        features.append(_features(encoder, _picture()))
    assert len({each.numpy().tobytes() for each in features}) == len(changes)
    assert len(set(identities)) == len(changes)
    any_model.find_model.cache_clear()
    again = create_encoder(f"hf:me/vit@{'0' * 40}@cls")
    assert again.identity["kwargs"] == json.loads(identities[0])[0]["kwargs"]


def test_a_folder_without_transform_or_weights_is_one_clear_line(tmp_path: Path) -> None:
    _transformers_folder("vit", tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    assert "has no checkpoint" in EncoderRecipe(f"hf:{tmp_path / 'm'}").unresolved()
    (tmp_path / "m" / "preprocessor_config.json").unlink()
    any_model.find_model.cache_clear()
    assert "no preprocessor_config.json" in EncoderRecipe(f"hf:{tmp_path / 'm'}").unresolved()
    (tmp_path / "m" / "config.json").write_text("{}")
    any_model.find_model.cache_clear()
    assert "is not a model of timm" in EncoderRecipe(f"hf:{tmp_path / 'm'}").unresolved()


# Python objects


def test_a_module_and_a_callable_are_encoders(tmp_path: Path) -> None:
    model = _timm().create_model("test_vit", num_classes=0).eval()
    encoder = hb.create_encoder(model, device="cpu", label="mine")
    assert (encoder.name, encoder.dim) == ("mine", 64)
    data = _timm().data
    transform = data.create_transform(**data.resolve_data_config({}, model=model))
    with torch.inference_mode():
        expected = model(transform(_picture())[None]).numpy()
    np.testing.assert_allclose(encoder.embed(_picture()), expected, rtol=1e-5, atol=1e-6)

    def mean_color(images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3))

    plain = hb.create_encoder(mean_color, device="cpu", size=32)
    assert (plain.name, plain.dim) == ("mean_color", 3)
    assert plain.embed(_picture()).shape == (1, 3)
    with pytest.raises(HistobenchError, match="one vector per image"):
        hb.create_encoder(lambda images: images, device="cpu")


def test_a_module_whose_transform_does_not_resize_needs_images_of_one_size(tmp_path: Path) -> None:
    import histobench as hb

    class Means(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3))

    def tensor(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255

    encoder = hb.create_encoder(Means().eval(), transform=tensor, device="cpu")
    for number in range(8):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        _picture(100, 100 + number // 8).save(tmp_path / "ab"[number % 2] / f"{number}.png")
    data = hb.load_dataset(tmp_path, split="0.5/0.5")
    assert hb.extract(data, encoder).train.X.shape == (4, 3)  # not of 256 pixels, as a trial image might be
    _picture(100, 90).save(tmp_path / "a" / "other.png")
    with pytest.raises(HistobenchError, match="resize or crop to one size"):
        hb.extract(hb.load_dataset(tmp_path, split="0.5/0.5"), encoder)


def test_other_weights_of_an_object_are_another_identity() -> None:
    first = _timm().create_model("test_vit", num_classes=0)
    one, again = (hb.create_encoder(first, device="cpu").module.identity for _ in range(2))
    with torch.no_grad():
        first.cls_token.add_(1.0)
    other = hb.create_encoder(first, device="cpu").module.identity
    assert one == again
    assert one["weights"] != other["weights"]


@pytest.mark.nightly
def test_a_plan_of_the_command_line_takes_the_names_and_every_table_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from histobench.cli.main import main
    from histobench.roi.comparison.tidy_rows import read_rows

    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    for label, color in (("red", (220, 60, 60)), ("blue", (60, 60, 220))):
        for number in range(8):
            file = tmp_path / "tiles" / label / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.clip(np.array(color) + draw.integers(-40, 40, (32, 32, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(file)
    _, path = _timm_checkpoint("test_vit", tmp_path)
    table = tmp_path / "weights.json"
    table.write_text(json.dumps({"timm:test_vit": str(path), "timm:test_vit@mean": str(path)}))
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "datasets: [{source: tiles, split: 0.5/0.5}]\n"
        "encoders: [timm:test_vit, mean=timm:test_vit@mean, tiny-vl]\n"
        "combine: [[tiny-vl, timm:test_vit]]\n"
        f"tasks: [Proto]\nweights: {table}\ndevice: cpu\nnum_workers: 0\n"
    )
    assert main(["run", str(plan)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    results, both = tmp_path / "results", "tiny-vl+timm_test_vit"
    unchecked = {"timm_test_vit", "mean", both}
    warned = re.search(rf"(\S+, \S+, \S+): {re.escape(any_model.UNCHECKED)}", said)
    assert warned is not None
    assert set(warned[1].split(", ")) == unchecked
    assert set(hb.open_results(results).to_frame()["encoder"]) == {*unchecked, "tiny-vl"}
    for row in read_rows(results / "results.parquet"):
        assert (any_model.UNCHECKED in (row["provenance"] or "")) == (row["encoder"] in unchecked)
    assert main(["compare", str(results), "--task", "Proto"]) == 0
    assert any_model.UNCHECKED in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(results), "-o", str(tmp_path / "site")]) == 0
    board = (tmp_path / "site" / "data" / "board" / "0.js").read_text()
    noted = re.search(rf"(\S+, \S+, \S+): {re.escape(any_model.UNCHECKED)}", board)
    assert noted is not None
    assert all(name in noted[1] for name in unchecked)  # under the leaderboard
