"""The contract that every encoder of the zoo keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from measure_zoo import build_network, counting_device, measure_cost
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.checkpoint import fit_names, strip_shared_prefixes
from histobench.roi.encoders.construct import SkipRandomInit, construct
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import family_of
from histobench.roi.encoders.registry import get_spec, list_encoders

ZOO = {spec.name: spec for spec in list_encoders()}
#: Encoders whose weights come from outside.
PUBLISHED = [name for name, spec in ZOO.items() if spec.source.kind in ("hub", "url", "by_hand")]
WITH_LAYOUT = [
    name
    for name in PUBLISHED
    if (ZOO[name].family != "own" or ZOO[name].arch == "radio") and not ZOO[name].arch.startswith("resnet")
]
CONTRACT = """
    conch_v1 conch_v15 uni_v1 uni_v2 ctranspath phikon phikon_v2 virchow virchow2 gigapath hoptimus0 hoptimus1
    hibou_l musk kaiko-vits8 kaiko-vits16 kaiko-vitb8 kaiko-vitb16 kaiko-vitl14 lunit-vits8 resnet50
"""
DEPTH = 1
#: Networks of which one forward pass takes as long as the tests of ten others.
COSTLY = {"gemma4-e4b", "musk", "genbio-pathfm", "conch_v1", "conch_v15", "keep"}


def by_kind(names: Iterable[str], *, whole: bool = False) -> list[Any]:
    """One encoder of each family, architecture and pooling; the others of the kind are nightly.

    Where the network is built in its full size, sizes of one architecture are one kind.
    """
    seen: set[tuple[str, ...]] = set()
    cases = []
    for name in names:
        spec = ZOO[name]
        kind = (spec.family, spec.arch.split("_")[0] if whole else spec.arch, spec.pooling)
        later = kind in seen or name in COSTLY
        cases.append(pytest.param(name, marks=[pytest.mark.nightly] if later else []))
        seen.add(kind)
    return cases


def test_the_zoo_has_all_encoders_of_the_contract_and_many_more() -> None:
    assert set(CONTRACT.split()) <= ZOO.keys()
    assert len(PUBLISHED) - len(CONTRACT.split()) >= 25
    assert len(ZOO) >= 46


@pytest.mark.sample(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", by_kind(ZOO, whole=True))
def test_full_size_network_has_the_stored_cost(name: str, published: Callable[[str], Any]) -> None:
    spec = ZOO[name]
    cost = measure_cost(spec, full_size(name) if counting_device(spec) == "meta" else None)
    assert spec.cost == cost
    if name not in PUBLISHED:
        return
    facts = published(name).facts
    assert spec.dim == facts["dim"]
    counted = {"params": cost.params + cost.text_params, "image_params": cost.params}
    for key in counted.keys() & facts.keys():
        assert counted[key] == pytest.approx(count(facts[key]), abs=rounding(facts[key]))


@pytest.mark.sample(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", by_kind(WITH_LAYOUT, whole=True))
def test_full_size_network_has_the_published_tensors(name: str, published: Callable[[str], Any]) -> None:
    spec = ZOO[name]
    network = full_size(name)
    manifest = published(name)
    file = manifest.wrapped(manifest.state(device="meta"))
    state = upstream(spec, network, file)
    expected = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == expected


@pytest.mark.sample(10)
@pytest.mark.slow
@pytest.mark.parametrize("name", by_kind(WITH_LAYOUT))
def test_a_checkpoint_in_the_published_layout_gives_the_features_of_the_network(
    name: str, published: Callable[[str], Any], tmp_path: Path
) -> None:
    spec = narrow(ZOO[name])
    manifest = published(name).narrowed()
    state = manifest.state(depth=DEPTH)
    path = tmp_path / "weights.pth"
    torch.save(manifest.wrapped(state), path)

    encoder = construct(spec, weights=str(path), depth=DEPTH)
    with SkipRandomInit():
        direct = build_network(spec, "cpu", depth=DEPTH)
    direct.load_state_dict(upstream(spec, direct, state), strict=True)

    images = torch.randn(2, 3, spec.size, spec.size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        features = encoder(images)
        expected = family_of(spec).encode_image(spec, direct, images)
    if spec.normalised:
        expected = nn.functional.normalize(expected, dim=-1)
    torch.testing.assert_close(features, expected)
    assert features.shape == (2, spec.dim)
    assert torch.isfinite(features).all()
    assert (features[0] - features[1]).abs().max() > (1e-4 if spec.normalised else 1e-3)
    assert encoder.identity["weights"].startswith("sha256:")


@pytest.mark.sample(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", by_kind([name for name in ZOO if name not in WITH_LAYOUT or ZOO[name].variants])
)
def test_every_output_has_the_documented_dimension(name: str) -> None:
    for output in ("", *ZOO[name].variants):
        spec = narrow(get_spec(f"{name}@{output}" if output else name))
        encoder = construct(spec, allow_random=True, depth=1)
        with torch.inference_mode():
            features = encoder(torch.randn(2, 3, spec.size, spec.size))
        assert features.shape == (2, spec.dim) == (2, encoder.embed_dim)
        assert torch.isfinite(features).all()
        assert not encoder.training
        assert not any(parameter.requires_grad for parameter in encoder.parameters())
        if spec.normalised:
            torch.testing.assert_close(features.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("name", [name for name, spec in ZOO.items() if spec.sizes == "patch"])
def test_another_size_works_and_an_impossible_one_names_the_nearest(name: str) -> None:
    spec = ZOO[name]
    bigger = spec.with_size(spec.size + spec.patch)
    assert bigger.transform.crop == spec.size + spec.patch
    assert bigger.transform.interpolation == spec.transform.interpolation
    with pytest.raises(HistobenchError, match=rf"multiples of {spec.patch} \(nearest: {spec.size}, "):
        spec.with_size(spec.size + 1)


@pytest.mark.parametrize("name", [name for name, spec in ZOO.items() if spec.sizes == "fixed"])
def test_a_fixed_size_is_named(name: str) -> None:
    with pytest.raises(HistobenchError, match=f"`size` {ZOO[name].size}"):
        ZOO[name].with_size(ZOO[name].size * 2)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_entry_says_where_its_weights_come_from(name: str) -> None:
    source = ZOO[name].source
    assert source.page.startswith("https://")
    assert source.file or source.kind == "by_hand"
    assert not source.revision or re.fullmatch(r"[0-9a-f]{40}", source.revision)


def upstream(spec: EncoderSpec, network: nn.Module, file: dict[str, Any]) -> dict[str, Tensor]:
    """A published state under the network's names, without what the entry ignores."""
    only = spec.source.only
    content = file.get(spec.source.container, file)
    state = {name.removeprefix(only): tensor for name, tensor in content.items() if name.startswith(only)}
    renamed = family_of(spec).from_upstream(spec, network, strip_shared_prefixes(dict(state)))
    fitted = fit_names(renamed, network.state_dict())
    ignored = re.compile("|".join(pattern.replace(".*", r"\..*") for pattern in spec.source.ignore) or "$^")
    return {key: tensor for key, tensor in fitted.items() if not ignored.fullmatch(key)}


@lru_cache(maxsize=len(ZOO))
def full_size(name: str) -> nn.Module:
    """The whole network without memory for its weights, built once for all tests of it."""
    return build_network(ZOO[name], counting_device(ZOO[name]))


def narrow(spec: EncoderSpec) -> EncoderSpec:
    """The same encoder with a narrow network on few patches, where its driver can build one: quick to run."""
    kwargs, width = dict(spec.kwargs), 0
    if spec.arch.startswith("vit_"):
        width = 48
        kwargs |= {"embed_dim": width, "num_heads": 2}
    elif spec.arch in ("DINOv3ViT", "SiglipVision"):
        width = 48
        kwargs |= {"hidden_size": width, "num_attention_heads": 2, "intermediate_size": 4 * width}
    elif spec.arch == "CLIP" and spec.family == "transformers":
        tower = {"hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 192}
        towers = {key: {**kwargs[key], **tower} for key in ("text_config", "vision_config")}
        kwargs |= {"projection_dim": 32, **towers}
    elif spec.arch == "CLIP":
        towers = {key: {**kwargs[key], "width": 64} for key in ("text_cfg", "vision_cfg")}
        kwargs |= {"embed_dim": 32, **towers}
    elif spec.arch == "radio":
        width = 48
        kwargs |= {"width": width, "heads": 2}
    elif spec.arch == "VisionTransformer":
        kwargs |= {"width": 64, "heads": 2, "output_dim": 32}
    elif spec.arch == "Gemma4Vision":
        width = 48
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 24}
        kwargs |= {"hidden_size": width, "intermediate_size": 192, **heads}
        # The published size has 2,304 patches; the network takes any number that its pooling divides.
        spec = replace(spec, transform=spec.transform.with_size(96))
    dims = {
        "network": 3 * width if spec.arch == "radio" else width,
        "pooled": width,
        "cls": width,
        "mean": width,
        "cls+mean": 2 * width,
    }
    dim = (dims[spec.pooling] if width else 32) if kwargs != spec.kwargs else spec.dim
    if spec.sizes == "patch" and (spec.family != "own" or spec.arch == "radio"):
        spec = replace(spec, transform=spec.transform.with_size(spec.patch * 4))
    return replace(spec, kwargs=kwargs, dim=dim)


def count(text: str) -> float:
    """`303.4M` as a number."""
    return float(text[:-1]) * {"M": 1e6, "B": 1e9}[text[-1]]


def rounding(text: str) -> float:
    """Half of the last digit that is given, and a little more: people truncate as well as round."""
    digits = len(text[:-1].partition(".")[2])
    return count(f"1{text[-1]}") * 10.0**-digits
