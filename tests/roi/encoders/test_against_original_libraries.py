"""Checkpoints that the original libraries write load here, and give the libraries' own features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

from histobench.roi.encoders.construct import construct
from histobench.roi.encoders.encoder_spec import NORMS, EncoderSpec
from histobench.roi.encoders.families.family import family_of
from histobench.roi.encoders.registry import get_spec

pytestmark = pytest.mark.nightly

transformers = pytest.importorskip("transformers")
open_clip = pytest.importorskip("open_clip")

DEPTH = 2
WIDTH, HEADS = 96, 4
#: The configurations of the pinned releases.
CONFIGS: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "manifests" / "configs.yaml").read_text(encoding="utf-8")
)


def randomised(network: nn.Module) -> nn.Module:
    """Values that make every tensor matter; initial weights hide mistakes (zeros, tiny layer scales)."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in network.parameters():
            scale = 0.3 if parameter.ndim < 2 else 0.08
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return network.eval()


def images(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))


def saved(network: nn.Module, folder: Path, how: str) -> str:
    """The network's weights, as `torch.save` or as the library itself stores them."""
    if how == "torch":
        torch.save(network.state_dict(), folder / "weights.pth")
        return str(folder / "weights.pth")
    network.save_pretrained(folder)  # type: ignore[operator]
    # The configuration of this narrow network rightly disagrees with the zoo; it is not the subject.
    (folder / "config.json").unlink()
    return str(folder / "model.safetensors")


def narrow(name: str, **kwargs: Any) -> EncoderSpec:
    spec = get_spec(name)
    return replace(spec, kwargs={**spec.kwargs, "embed_dim": WIDTH, "num_heads": HEADS, **kwargs})


@pytest.mark.parametrize("how", ["torch", "library"])
@pytest.mark.parametrize(
    ("name", "model", "config"),
    [
        ("phikon", "ViT", {"intermediate_size": 4 * WIDTH}),
        ("vit-b-in21k", "ViT", {"intermediate_size": 4 * WIDTH}),
        ("phikon_v2", "Dinov2", {"patch_size": 16, "image_size": 224}),
        ("dinov2-l", "Dinov2", {"patch_size": 14, "image_size": 518}),
        ("midnight", "Dinov2", {"patch_size": 14, "image_size": 224, "use_swiglu_ffn": True}),
        ("midnight@cls", "Dinov2", {"patch_size": 14, "image_size": 518, "use_swiglu_ffn": True}),
        ("hibou_l", "Dinov2WithRegisters", {"patch_size": 14, "image_size": 224, "use_swiglu_ffn": True}),
    ],
)
def test_vision_transformers_of_transformers(
    name: str, model: str, config: dict[str, Any], how: str, tmp_path: Path
) -> None:
    shape = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": DEPTH}
    pinned = CONFIGS.get(name, {}).get("config.json", {})
    settings = getattr(transformers, f"{model}Config")(**{**pinned, **shape, **config})
    original = randomised(getattr(transformers, f"{model}Model")(settings))
    # 96 * 4 * 2 / 3 = 256, rounded up to a multiple of eight; timm counts both halves.
    ratio = {"mlp_ratio": 512 / WIDTH} if config.get("use_swiglu_ffn") else {}
    encoder = construct(narrow(name, **ratio), weights=saved(original, tmp_path, how), depth=DEPTH)
    with torch.inference_mode():
        tokens = original(images(224)).last_hidden_state
        expected = tokens[:, 0]
        if name == "midnight":
            expected = torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], dim=-1)
        torch.testing.assert_close(encoder(images(224)), expected, atol=1e-5, rtol=1e-4)


def test_another_image_size_resamples_positions_as_transformers_does(tmp_path: Path) -> None:
    shape = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": DEPTH}
    pinned = CONFIGS["phikon"]["config.json"]
    settings = transformers.ViTConfig(**{**pinned, **shape, "intermediate_size": 4 * WIDTH})
    original = randomised(transformers.ViTModel(settings))
    spec = narrow("phikon").with_size(288)
    encoder = construct(spec, weights=saved(original, tmp_path, "torch"), depth=DEPTH)
    with torch.inference_mode():
        expected = original(images(288), interpolate_pos_encoding=True).last_hidden_state[:, 0]
        torch.testing.assert_close(encoder(images(288)), expected, atol=1e-5, rtol=1e-4)


def test_dinov2_released_by_timm_is_resampled_as_timm_does(tmp_path: Path) -> None:
    narrowed = {"embed_dim": WIDTH, "num_heads": HEADS, "depth": DEPTH, "num_classes": 0}
    original = timm.create_model("vit_base_patch14_dinov2", img_size=518, dynamic_img_size=True, **narrowed)
    path = saved(randomised(original), tmp_path, "torch")
    encoder = construct(narrow("dinov2-b"), weights=path, depth=DEPTH)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(images(224)), original(images(224)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("how", ["torch", "library"])
def test_dinov3_of_transformers(how: str, tmp_path: Path) -> None:
    kwargs = {
        **get_spec("dinov3-s").kwargs,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH,
    }
    settings = transformers.DINOv3ViTConfig(**{**kwargs, "num_hidden_layers": DEPTH})
    original = randomised(transformers.DINOv3ViTModel(settings))
    spec = replace(get_spec("dinov3-s"), kwargs=kwargs)
    encoder = construct(spec, weights=saved(original, tmp_path, how), depth=DEPTH)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(images(224)), original(images(224)).pooler_output)


@pytest.mark.parametrize("how", ["torch", "library"])
def test_clip_of_transformers_with_its_text_tower(how: str, tmp_path: Path) -> None:
    tower = {"hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 192}
    spec = get_spec("plip")
    kwargs = {
        "projection_dim": 32,
        "text_config": {**spec.kwargs["text_config"], **tower},
        "vision_config": {**spec.kwargs["vision_config"], **tower},
    }
    short = {key: {**kwargs[key], "num_hidden_layers": DEPTH} for key in ("text_config", "vision_config")}
    original = randomised(transformers.CLIPModel(transformers.CLIPConfig(**{**kwargs, **short})))
    encoder = construct(
        replace(spec, kwargs=kwargs, dim=32), weights=saved(original, tmp_path, how), depth=DEPTH
    )
    prompts = ["a histology image of tumour", "a histology image of fat"]
    tokens = open_clip.get_tokenizer("ViT-B-32")(prompts)
    with torch.inference_mode():
        output = original(pixel_values=images(224), input_ids=tokens)
        features = encoder(images(224))
        normalised = features / features.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(normalised, output.image_embeds, atol=1e-5, rtol=1e-4)
        probabilities = encoder.run_zero_shot(prompts, features, "cpu")
        torch.testing.assert_close(probabilities, output.logits_per_image.softmax(-1), atol=1e-5, rtol=1e-4)


def test_clip_of_open_clip_with_its_text_tower(tmp_path: Path) -> None:
    spec = get_spec("quiltnet-b32")
    config = {
        "embed_dim": 32,
        "vision_cfg": {**spec.kwargs["vision_cfg"], "width": 64},
        "text_cfg": {**spec.kwargs["text_cfg"], "width": 64},
    }
    short = {key: {**config[key], "layers": DEPTH} for key in ("vision_cfg", "text_cfg")}
    original = randomised(open_clip.CLIP(**{**config, **short}))
    encoder = construct(
        replace(spec, kwargs=config, dim=32), weights=saved(original, tmp_path, "torch"), depth=DEPTH
    )
    prompts = ["tumour", "fat", "muscle"]
    with torch.inference_mode():
        features, text, scale = original(images(224), open_clip.get_tokenizer("ViT-B-32")(prompts))
        torch.testing.assert_close(encoder(images(224)), original.encode_image(images(224)))  # type: ignore[operator]
        expected = (scale * features @ text.T).softmax(-1)
        torch.testing.assert_close(encoder.run_zero_shot(prompts, encoder(images(224)), "cpu"), expected)


@pytest.mark.nightly
def test_open_clip_with_a_bert_text_tower(tmp_path: Path) -> None:
    from open_clip.hf_model import HFTextEncoder
    from open_clip.timm_model import TimmModel

    spec = get_spec("biomedclip")
    bert = {**spec.kwargs["bert"], "hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 96}
    config = transformers.BertConfig(**{**bert, "num_hidden_layers": DEPTH})
    text = HFTextEncoder(
        "unused", 512, config=config, pooler_type="cls_last_hidden_state_pooler", proj_type="mlp"
    )
    # open_clip leaves the pooling layer out when it knows the model's name.
    text.transformer = transformers.BertModel(config, add_pooling_layer=False)
    visual = TimmModel("vit_base_patch16_224", 512, 224, pool="", proj="linear")
    visual.trunk.blocks = visual.trunk.blocks[:DEPTH]
    original = nn.Module()
    original.visual, original.text = visual, text
    original.logit_scale = nn.Parameter(torch.tensor(0.0))
    randomised(original)
    encoder = construct(
        replace(spec, kwargs={**spec.kwargs, "bert": bert}),
        weights=saved(original, tmp_path, "torch"),
        depth=DEPTH,
    )
    tokens = torch.tensor([[2, 15, 77, 3, 0, 0], [2, 99, 3, 0, 0, 0]])
    with torch.inference_mode():
        torch.testing.assert_close(encoder(images(224)), visual(images(224)), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(encoder.network.encode_text(tokens), text(tokens), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "arch", "kwargs"),
    [
        ("uni_v1", "vit_large_patch16_224", {"init_values": 1e-5, "dynamic_img_size": True}),
        ("mstar", "vit_large_patch16_224", {"init_values": 1e-5, "dynamic_img_size": True}),
        ("gpfm", "vit_large_patch14_dinov2", {"img_size": 224, "init_values": 1e-5}),
        ("kaiko-vitl14", "vit_large_patch14_reg4_dinov2", {"img_size": 518, "dynamic_img_size": True}),
        ("lunit-vits8", "vit_small_patch8_224", {}),
        ("hoptimus0", "vit_giant_patch14_reg4_dinov2", {"img_size": 224, "init_values": 1e-5}),
        (
            "gigapath",
            "vit_giant_patch14_dinov2",
            {"img_size": 224, "patch_size": 16, "init_values": 1e-5, "mlp_ratio": 5.33334},
        ),
    ],
)
def test_class_token_encoders_of_timm(name: str, arch: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    narrowed = {**kwargs, "embed_dim": WIDTH, "num_heads": HEADS, "depth": DEPTH}
    original = randomised(timm.create_model(arch, num_classes=0, **narrowed))
    encoder = construct(narrow(name), weights=saved(original, tmp_path, "torch"), depth=DEPTH)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(images(224)), original(images(224)))


@pytest.mark.parametrize(("name", "registers"), [("virchow", 0), ("virchow2", 4), ("virchow2@cls", 4)])
def test_virchow_joins_the_class_token_and_the_mean_of_the_patches(
    name: str, registers: int, tmp_path: Path
) -> None:
    original = timm.create_model(
        "vit_huge_patch14_224",
        img_size=224,
        init_values=1e-5,
        num_classes=0,
        mlp_ratio=5.3375,
        global_pool="",
        dynamic_img_size=True,
        reg_tokens=registers,
        mlp_layer=timm.layers.SwiGLUPacked,
        act_layer=nn.SiLU,
        embed_dim=WIDTH,
        num_heads=HEADS,
        depth=DEPTH,
    )
    randomised(original)
    encoder = construct(narrow(name), weights=saved(original, tmp_path, "torch"), depth=DEPTH)
    with torch.inference_mode():
        tokens = original(images(224))
        assert tokens.shape[1] == 1 + registers + 256
        expected = tokens[:, 0]
        if "@" not in name:
            expected = torch.cat([tokens[:, 0], tokens[:, 1 + registers :].mean(dim=1)], dim=-1)
        torch.testing.assert_close(encoder(images(224)), expected)


@pytest.mark.nightly
def test_resnet50_is_the_third_stage_of_timms_feature_list(tmp_path: Path) -> None:
    original = randomised(timm.create_model("resnet50", pretrained=False))
    path = saved(original, tmp_path, "torch")
    stages = timm.create_model("resnet50", features_only=True, out_indices=[3]).eval()
    stages.load_state_dict(original.state_dict(), strict=False)
    encoder = construct(get_spec("resnet50"), weights=path)
    complete = construct(get_spec("resnet50@layer4"), weights=path)
    original.fc = nn.Identity()
    with torch.inference_mode():
        expected = stages(images(224))[0].mean(dim=(2, 3))
        torch.testing.assert_close(encoder(images(224)), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(complete(images(224)), original(images(224)), atol=1e-4, rtol=1e-4)


def test_hipt_resamples_its_positions_as_the_dino_code_does(tmp_path: Path) -> None:
    original = randomised(timm.create_model("vit_small_patch16_224", num_classes=0, depth=DEPTH))
    teacher = {f"backbone.{name}": tensor for name, tensor in original.state_dict().items()}
    teacher["head.last_layer.weight_g"] = torch.ones(4)
    path = tmp_path / "vit256.pth"
    torch.save({"student": {}, "teacher": teacher, "epoch": 1}, path)
    encoder = construct(get_spec("hipt"), weights=str(path), depth=DEPTH)

    positions = original.pos_embed.detach()
    grid = positions[:, 1:].reshape(1, 14, 14, -1).permute(0, 3, 1, 2)
    scale = (256 // 16 + 0.1) / 14
    grid = nn.functional.interpolate(grid, scale_factor=(scale, scale), mode="bicubic")
    assert grid.shape[-2:] == (16, 16)
    flat = torch.cat([positions[:, :1], grid.permute(0, 2, 3, 1).reshape(1, 256, -1)], dim=1)
    with torch.inference_mode():
        tokens = original.patch_embed.proj(images(256)).flatten(2).transpose(1, 2)
        tokens = torch.cat([original.cls_token.expand(2, -1, -1), tokens], dim=1) + flat
        expected = original.norm(original.blocks(tokens))[:, 0]
        torch.testing.assert_close(encoder(images(256)), expected, atol=1e-5, rtol=1e-4)


def test_radio_is_the_network_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import RadioConfig, RadioModel

    from histobench.roi.encoders.networks import radio

    # On the stored grid itself nothing is resampled, which the two do differently.
    monkeypatch.setattr(radio, "GRID", 4)
    ours = radio.build(width=48, heads=2, blocks=2).eval()
    config = RadioConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=2, max_img_size=64,
        num_cls_tokens=4, num_registers=4, summary_idxs=[0, 1, 2],
    )  # fmt: skip
    theirs = RadioModel(config).eval()
    state = ours.state_dict()
    renamed = {
        "embeddings.patch_projection.weight": state["patch_generator.embedder.weight"],
        "embeddings.position_embedding": state["patch_generator.pos_embed"],
        "embeddings.cls_register_token": state["patch_generator.cls_token.token"],
    }
    for name, tensor in state.items():
        if not name.startswith("blocks."):
            continue
        inner = name.replace("blocks.", "encoder.layer.").replace(".attn.proj.", ".attention.o_proj.")
        if ".attn.qkv." in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                renamed[inner.replace(".attn.qkv.", f".attention.{part}_proj.")] = piece
        else:
            renamed[inner] = tensor
    missing, unexpected = theirs.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert all(name.endswith(("lambda1", "norm_mean", "norm_std", "summary_idxs")) for name in missing)
    pixels = torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in NORMS["clip"])
    with torch.inference_mode():
        torch.testing.assert_close(ours((pixels - mean) / std), theirs(pixels).summary)


def test_gemma_sees_what_its_own_processor_gives() -> None:
    from transformers import Gemma4ImageProcessorPil

    from histobench.roi.encoders.families import transformers as family

    spec = get_spec("gemma4-e4b")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8))
    theirs = Gemma4ImageProcessorPil()(images=image, return_tensors="pt")
    seen: dict[str, torch.Tensor] = {}

    def network(**inputs: torch.Tensor) -> SimpleNamespace:
        seen.update(inputs)
        return SimpleNamespace(last_hidden_state=torch.zeros(256, 8))

    network.config = SimpleNamespace(patch_size=16)  # type: ignore[attr-defined]
    family._gemma4_mean(network, spec.transform(image)[None])
    real = (theirs["image_position_ids"][0] >= 0).all(dim=1)
    assert int(real.sum()) == 48 * 48
    torch.testing.assert_close(seen["pixel_position_ids"][0], theirs["image_position_ids"][0][real])
    torch.testing.assert_close(
        seen["pixel_values"][0], theirs["pixel_values"][0][real].float(), atol=1.01 / 255, rtol=0
    )


def test_omiclip_is_the_image_tower_of_coca() -> None:
    from open_clip.coca_model import CoCa

    text = {"context_length": 8, "vocab_size": 99, "width": 32, "heads": 2, "layers": 1}
    vision = {"image_size": 28, "layers": 1, "width": 64, "patch_size": 14, "head_width": 32}
    pooled = {"attentional_pool": True, "attn_pooler_heads": 8, "output_tokens": True}
    coca = CoCa(
        32,
        multimodal_cfg={**text, "attn_pooler_heads": 2},
        text_cfg={**text, "embed_cls": True, "output_tokens": True},
        vision_cfg={**vision, **pooled},
    ).eval()
    spec = get_spec("omiclip")
    kwargs = {**spec.kwargs, "image_size": 28, "width": 64, "heads": 2, "layers": 1, "output_dim": 32}
    spec = replace(spec, kwargs=kwargs, dim=32)
    ours = family_of(spec).build(spec).eval()
    ours.load_state_dict(coca.visual.state_dict(), strict=True)
    pixels = images(28)
    with torch.inference_mode():
        features = family_of(spec).encode_image(spec, ours, pixels)
        torch.testing.assert_close(features, coca.encode_image(pixels, normalize=False))


def test_pathoduet_tokens_in_its_own_order_give_the_same_features() -> None:
    """[pretext][cls][patches], then the mean of the patches, then fc_norm, as the authors' code has it."""
    from histobench.roi.encoders.families.family import pathoduet

    published = timm.create_model(
        "vit_base_patch16_224", num_classes=0, reg_tokens=1, global_pool="avg",
        embed_dim=48, num_heads=2, depth=2, img_size=32,
    ).eval()  # fmt: skip
    pretext, cls, table = torch.randn(1, 1, 48), torch.randn(1, 1, 48), torch.randn(1, 6, 48)
    pixels = images(32)
    with torch.inference_mode():
        patches = published.patch_embed(pixels)
        tokens = torch.cat([pretext.expand(2, -1, -1), cls.expand(2, -1, -1), patches], dim=1) + table
        expected = published.fc_norm(published.blocks(tokens)[:, 2:].mean(dim=1))
    file = {key: tensor for key, tensor in published.state_dict().items() if key != "reg_token"}
    file |= {"pretext_token": pretext, "cls_token": cls, "pos_embed": table, "bridge_token": cls}
    published.load_state_dict(pathoduet(file), strict=True)
    with torch.inference_mode():
        torch.testing.assert_close(published(pixels), expected)
