"""The configuration beside a checkpoint has to agree with the zoo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.construct import SkipRandomInit, construct, disagreements
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import family_of
from histobench.roi.encoders.registry import get_spec

CONFIGS: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "manifests" / "configs.yaml").read_text(encoding="utf-8")
)


def differences(spec: EncoderSpec, config: dict[str, Any]) -> set[str]:
    with SkipRandomInit():
        return set(dict(disagreements(spec, config, family_of(spec).build(spec, depth=1))))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_published_configuration_agrees_with_the_zoo(name: str) -> None:
    spec = get_spec(name)
    for file, config in CONFIGS[name].items():
        assert file == "source" or not differences(spec, config)


PHIKON = CONFIGS["phikon"]["config.json"]
CROPPED = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}


VIT_S8 = {"architecture": "vit_small_patch8_224"}
LUNIT = {"image_mean": [0.70323, 0.53607, 0.66097]}
MODEL, PROCESSOR, OPEN_CLIP = "config.json", "preprocessor_config.json", "open_clip_config.json"


def clip(**vision: Any) -> dict[str, Any]:
    return {"model_type": "clip", "vision_config": vision}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "config", "field"),
    [
        ("phikon", MODEL, PHIKON | {"layer_norm_eps": 1e-12}, "layer_norm_eps"),
        ("phikon", MODEL, PHIKON | {"hidden_act": "relu"}, "hidden_act"),
        ("phikon", MODEL, PHIKON | {"num_attention_heads": 6}, "num_attention_heads"),
        ("lunit-vits8", MODEL, VIT_S8 | {"global_pool": "avg"}, "global_pool"),
        ("lunit-vits8", MODEL, VIT_S8 | {"input_size": [3, 96, 96]}, "image_size"),
        ("lunit-vits16", PROCESSOR, LUNIT | {"resample": 2}, "interpolation"),
        ("plip", MODEL, clip(hidden_act="gelu"), "hidden_act"),
        ("plip", MODEL, clip(layer_norm_eps=1e-6), "layer_norm_eps"),
        ("plip", MODEL, clip(image_size=336), "image_size"),
        ("quiltnet-b32", OPEN_CLIP, {"model_cfg": {"quick_gelu": True}, "preprocess_cfg": {}}, "quick_gelu"),
        ("quiltnet-b32", OPEN_CLIP, {"preprocess_cfg": {"interpolation": "bilinear"}}, "interpolation"),
        ("ctranspath", MODEL, {"architecture": "swin_tiny_patch4_window7_224", "std": [0.5] * 3}, "std"),
        ("conch_v1", PROCESSOR, {"image_mean": [0.485, 0.456, 0.406]}, "mean"),
    ],
)
def test_a_folder_that_differs_in_one_field_is_refused_with_its_name(
    name: str, file: str, config: dict[str, Any], field: str, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    (tmp_path / file).write_text(json.dumps(config))
    with pytest.raises(
        HistobenchError, match=rf"{file} does not describe {name} .*: {field} is [^;]*; is this"
    ):
        construct(get_spec(name), weights=str(tmp_path / "model.safetensors"), depth=1)


@pytest.mark.slow
def test_the_configuration_beside_a_checkpoint_has_to_agree(checkpoint: Path) -> None:
    config = {
        "architecture": "vit_small_patch16_224",
        "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3},
    }
    (checkpoint.parent / "config.json").write_text(json.dumps(config))
    spec = get_spec("lunit-vits16")
    construct(spec, weights=str(checkpoint), depth=1)  # the norm is a known trap of this encoder
    with pytest.raises(HistobenchError, match=r"mean is \[0\.5, 0\.5, 0\.5\], the zoo says \[0\.703"):
        construct(replace(spec, traps={}), weights=str(checkpoint), depth=1)
    config = {"architecture": "vit_base_patch16_224"}
    (checkpoint.parent / "config.json").write_text(json.dumps(config))
    with pytest.raises(HistobenchError, match="another model's folder"):
        construct(spec, weights=str(checkpoint), depth=1)


@pytest.mark.parametrize(
    ("name", "processor", "said"),
    [
        ("dinov2-b", CROPPED | {"size": {"shortest_edge": 256}}, {}),
        ("hibou-b", CROPPED | {"size": {"shortest_edge": 224}}, {}),
        ("phikon", {"size": {"height": 224, "width": 224}}, {}),
        ("hibou-b", CROPPED | {"size": {"shortest_edge": 256}}, {"resize per crop"}),
        ("hibou-b", {"size": {"height": 224, "width": 224}}, {"fit"}),
        ("phikon", CROPPED | {"size": {"shortest_edge": 224}}, {"fit"}),
    ],
)
def test_another_way_of_resizing_is_noticed(name: str, processor: dict[str, Any], said: set[str]) -> None:
    spec = get_spec(name)
    config = {"image_mean": list(spec.transform.mean), **processor}
    assert differences(spec, config) == set(said)
    assert differences(spec.with_size(448), config) == set(said)


MALFORMED = [
    "[]",
    '"text"',
    '{"architecture": 3, "pretrained_cfg": [1]}',
    '{"image_mean": 0.5}',
    '{"image_mean": ["a", "b", "c"]}',
    '{"architecture": "vit_small_patch16_224", "mean": [null, 1, 2]}',
    '{"image_mean": [0.5], "size": {"shortest_edge": "x"}, "do_center_crop": 1, "crop_size": {"height":2}}',
    '{"preprocess_cfg": {"mean": [{}, {}, {}]}, "model_cfg": 7}',
    "[" * 100_000,
    "\udcff",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_configuration_is_one_line_that_names_it(text: str, checkpoint: Path) -> None:
    path = checkpoint.parent / "config.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(HistobenchError) as failure:
        construct(replace(get_spec("lunit-vits16"), traps={}), weights=str(checkpoint), depth=1)
    assert str(path) in str(failure.value)
    assert "\n" not in str(failure.value)
