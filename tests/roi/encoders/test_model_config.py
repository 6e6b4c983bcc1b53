"""The configuration beside a checkpoint has to agree with the zoo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.construct import construct, disagreements
from histobench.roi.encoders.registry import get_spec


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


@pytest.mark.slow
def test_another_interpolation_in_the_configuration_is_a_warning(checkpoint: Path) -> None:
    (checkpoint.parent / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.70322989, 0.53606487, 0.66096631], "resample": 2})
    )
    with pytest.warns(UserWarning, match="interpolation is bilinear, the zoo says bicubic"):
        construct(get_spec("lunit-vits16"), weights=str(checkpoint), depth=1)


CROPPED = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}


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
    assert dict(disagreements(spec, config)).keys() == set(said)
    assert dict(disagreements(spec.with_size(448), config)).keys() == set(said)


def test_another_activation_in_a_clip_folder_is_a_contradiction() -> None:
    # The tensors are the same under both, so nothing else would tell.
    spec = get_spec("pathgen-clip-l")
    config = {"model_type": "clip", "vision_config": {"hidden_size": 1024, "hidden_act": "gelu"}}
    assert "hidden_act" in dict(disagreements(spec, config))
    config["vision_config"] = {"hidden_size": 1024, "hidden_act": "quick_gelu"}
    assert not dict(disagreements(spec, config))


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
