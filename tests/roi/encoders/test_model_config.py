"""The configuration beside a checkpoint has to agree with the zoo in architecture and normalization."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.construct import check_config
from histobench.roi.encoders.registry import get_spec

CONFIGS: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "manifests" / "configs.yaml").read_text(encoding="utf-8")
)
MODEL, PROCESSOR, OPEN_CLIP = "config.json", "preprocessor_config.json", "open_clip_config.json"
VIT = {"architecture": "vit_small_patch16_224"}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_published_configuration_agrees_with_the_zoo(name: str, tmp_path: Path) -> None:
    for file, config in CONFIGS[name].items():
        (tmp_path / file).write_text(json.dumps(config))
    check_config(get_spec(name), tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "file", "config", "field"),
    [
        ("lunit-vits16", MODEL, {"architecture": "vit_base_patch16_224"}, "architecture"),
        (
            "lunit-vits16",
            PROCESSOR,
            {"image_mean": [0.70323, 0.53607, 0.66097], "resample": 2},
            "interpolation",
        ),
        ("kaiko-vits16", MODEL, VIT | {"pretrained_cfg": {"mean": [0.4, 0.4, 0.4]}}, "mean"),
        ("uni_v2", MODEL, {"model_args": {"num_heads": 16}}, "num_heads"),
        ("ctranspath", MODEL, {"architecture": "swin_tiny_patch4_window7_224", "std": [0.5] * 3}, "std"),
        ("conch_v1", PROCESSOR, {"image_mean": [0.485, 0.456, 0.406]}, "mean"),
        ("quiltnet-b32", OPEN_CLIP, {"model_cfg": {"quick_gelu": True}, "preprocess_cfg": {}}, "quick_gelu"),
        ("quiltnet-b32", OPEN_CLIP, {"preprocess_cfg": {"interpolation": "bilinear"}}, "interpolation"),
    ],
)
def test_a_folder_that_differs_in_one_field_is_refused_with_its_name(
    name: str, file: str, config: dict[str, Any], field: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(json.dumps(config))
    with pytest.raises(HistobenchError, match=rf"{file} does not describe {name} .*: {field} is .*; is this"):
        check_config(get_spec(name), tmp_path / "model.safetensors")


def test_a_known_trap_of_a_configuration_is_overruled(tmp_path: Path) -> None:
    spec = get_spec("lunit-vits16")
    (tmp_path / MODEL).write_text(json.dumps(VIT | {"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}))
    check_config(spec, tmp_path / "model.safetensors")
    with pytest.raises(HistobenchError, match=r"mean is \[0\.5, 0\.5, 0\.5\], the zoo says \[0\.703"):
        check_config(replace(spec, traps={}), tmp_path / "model.safetensors")


@pytest.mark.parametrize("text", ["[]", '{"image_mean": 0.5, "image_std": "a"}', '{"architecture": 3}', "["])
def test_a_malformed_configuration_is_one_line_that_names_it(text: str, tmp_path: Path) -> None:
    (tmp_path / MODEL).write_text(text)
    with pytest.raises(HistobenchError) as failure:
        check_config(replace(get_spec("lunit-vits16"), traps={}), tmp_path / "model.safetensors")
    assert str(tmp_path / MODEL) in str(failure.value)
    assert "\n" not in str(failure.value)
