"""The zoo file: checked on reading, extended by a few lines of YAML, and right about the known traps."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.encoders.encoder_spec import NORMS, EncoderSpec, parse_spec
from histobench.roi.encoders.registry import create_encoder, get_spec, list_encoders
from histobench.roi.encoders.zoo import load_zoo
from histobench.roi.registry.dataset_entry import all_datasets

ENTRY = """
my-vit:
  title: My ViT
  family: timm
  arch: vit_tiny_patch16_224
  kwargs: {init_values: 1e-5, dynamic_img_size: true}
  pooling: cls
  dim: 192
  variants:
    clsmean: {pooling: cls+mean, dim: 384}
  input: {size: 224, interpolation: bicubic, norm: imagenet}
  sizes: patch
  patch: 16
  weights: {repo: me/my-vit, file: model.safetensors}
  license: MIT
  citation: me2026
  reference: Me, My ViT, 2026
"""
INPUT = {"size": 224, "interpolation": "bicubic", "norm": "imagenet"}


def test_the_license_is_read_by_its_earlier_spelling_with_a_warning() -> None:
    entry = yaml.safe_load(ENTRY.replace("license:", "licence:"))["my-vit"]
    with pytest.warns(FutureWarning, match="is now `license`"):
        spec = parse_spec("my-vit", entry)
    with pytest.warns(FutureWarning, match=r"is now EncoderSpec\.license"):
        assert spec.licence == spec.license == "MIT"


@pytest.fixture
def own_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_zoo.yaml"
    path.write_text(ENTRY)
    monkeypatch.setenv("HISTOBENCH_ZOO", str(path))
    return path


@pytest.mark.slow
def test_an_encoder_is_added_by_yaml_alone(own_zoo: Path, tmp_path: Path) -> None:
    import timm

    original = timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, init_values=1e-5, dynamic_img_size=True
    )
    torch.save({"model": original.state_dict()}, tmp_path / "my-vit.pth")
    encoder = create_encoder("my-vit", weights=str(tmp_path / "my-vit.pth"))
    images = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(images), original.eval()(images))
    assert "my-vit" in {spec.name for spec in list_encoders()}
    assert create_encoder("my-vit@clsmean", weights=str(tmp_path)).embed_dim == 384
    assert create_encoder("my-vit", weights=str(tmp_path), resize_size=320).eval_transforms.crop == 320


def test_an_edited_file_is_read_again(own_zoo: Path) -> None:
    assert get_spec("my-vit").title == "My ViT"
    own_zoo.write_text(ENTRY.replace("My ViT", "Your ViT"))
    assert get_spec("my-vit").title == "Your ViT"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "tim"}, "family is 'tim'; did you mean timm"),
        ({"pooling": "average"}, "pooling is 'average'"),
        ({"dim": "wide"}, "dim: input should be a valid integer"),
        ({"dims": 192}, "unknown field 'dims'; did you mean dim"),
        ({"license": None}, "license: input should be a valid string, found None"),
        ({"input": {**INPUT, "norm": "image-net"}}, "did you mean imagenet"),
        ({"input": {**INPUT, "size": 220}}, "not a multiple of patch 16"),
        ({"input": {**INPUT, "norm": {"mean": [1, 2], "std": [1, 1, 1]}}}, "mean: the field 2 is missing"),
        ({"weights": {"repo": "me/my-vit"}}, "need repo and file"),
        ({"weights": {"repo": "a/b", "file": "c", "gated": "perhaps"}}, "input should be a valid boolean"),
        ({"variants": {"ms": {"pooling": "cls"}}}, "variants: ms: the field 'dim' is missing"),
        ({"kwargs": "img_size=224"}, "kwargs: input should be a valid dictionary, found 'img_size=224'"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_entry_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    entry = yaml.safe_load(ENTRY)["my-vit"] | change
    with pytest.raises(HistobenchError, match=r"my\.yaml: my-vit") as failure:
        parse_spec("my-vit", entry, where="my.yaml")
    assert message in str(failure.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("- uni_v1", "one entry per encoder"),
        (ENTRY.replace("my-vit:", "my vit:"), "is not a name"),
        (ENTRY.replace("  dim:", "  aliases: [uni_v1]\n  dim:"), "'uni_v1' of my-vit is taken"),
    ],
)
def test_a_broken_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(HistobenchError, match=message):
        load_zoo(tmp_path / "mine.yaml")


@pytest.mark.nightly
@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(
        ["title", "family", "dim", "input", "weights", "variants", "sizes", "text", "cost", "mpp"]
    ),
)
def test_any_value_in_any_field_is_read_or_refused_politely(value: Any, field: str) -> None:
    entry = yaml.safe_load(ENTRY)["my-vit"] | {field: value}
    # Anything else than these two outcomes is a crash.
    with contextlib.suppress(HistobenchError):
        assert parse_spec("my-vit", entry).name == "my-vit"


@pytest.mark.slow
def test_timms_complaint_reaches_the_user(own_zoo: Path) -> None:
    own_zoo.write_text(ENTRY.replace("vit_tiny_patch16_224", "vit_teeny"))
    with pytest.raises(HistobenchError, match="timm cannot build 'vit_teeny'"):
        create_encoder("my-vit", allow_random=True)


def test_other_names_lead_to_the_same_encoder() -> None:
    assert get_spec("conch").name == "conch_v1"
    assert get_spec("virchow2-cls").full_name == "virchow2@cls"
    assert get_spec("uni2h_clsmean").dim == 3072


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("virchow2", 2560), ("virchow2@cls", 1280), ("virchow@cls", 1280), ("midnight", 3072),
        ("midnight@cls", 1536), ("h0-mini", 768), ("h0-mini@cls", 768), ("h0-mini@clsmean", 1536),
        ("musk", 1024), ("musk@ms", 2048), ("uni_v2", 1536), ("uni_v2@clsmean", 3072), ("resnet50", 1024),
        ("resnet50@layer4", 2048),
    ],
)  # fmt: skip
def test_outputs_have_the_documented_length(name: str, dim: int) -> None:
    assert get_spec(name).dim == dim


@pytest.mark.parametrize(
    ("norm", "names"),
    [
        ("imagenet", "mstar phikon_v2 conch_v15 keep"),
        ("half", "kaiko-vitl14 musk midnight"),
        ("lunit", "lunit-vits8 lunit-vits16 lunit-bt lunit-mocov2 lunit-swav"),
        ("hoptimus", "hoptimus0"),
        ("hibou", "hibou_l"),
        ("clip", "conch_v1"),
    ],
)
def test_normalisation_is_the_authors(norm: str, names: str) -> None:
    for name in names.split():
        transform = get_spec(name).transform
        assert (transform.mean, transform.std) == NORMS[norm], name


@pytest.mark.parametrize(
    ("resize", "crop", "interpolation", "names"),
    [
        (448, 448, "bicubic", "conch_v1"),
        (448, 448, "bilinear", "conch_v15"),
        (384, 384, "bicubic", "musk"),
        (256, 256, "bilinear", "retccl"),
        (256, 224, "bicubic", "dinov2-b dinov2-l gigapath"),
        (224, 224, "bicubic", "gpfm hibou-b keep"),
        (224, 224, "bilinear", "ctranspath genbio-pathfm kaiko-vits16 midnight uni_v1 uni_v2"),
    ],
)
def test_resizing_is_that_of_the_authors_code(resize: int, crop: int, interpolation: str, names: str) -> None:
    for name in names.split():
        transform = get_spec(name).transform
        assert (transform.resize, transform.crop, transform.interpolation) == (resize, crop, interpolation), (
            name
        )


def test_known_traps_of_the_field() -> None:
    gigapath = get_spec("gigapath")
    assert gigapath.kwargs["patch_size"] == gigapath.patch == 16
    normalised = {spec.name for spec in list_encoders() if spec.normalised}
    assert normalised == {"keep", "omiclip", "phaet", "mascaret"}
    for name in ("mstar", "kaiko-vitl14", "lunit-vits16"):
        assert {"mean", "std"} <= get_spec(name).traps.keys()


def test_zero_shot_is_offered_where_there_is_a_text_tower() -> None:
    able = {spec.name for spec in list_encoders() if spec.supports_zero_shot}
    assert {"conch_v1", "musk", "keep", "plip", "quiltnet-b32", "biomedclip", "clip-b32", "tiny-vl"} <= able
    assert "conch_v15" not in able


DATE = r"20\d\d-\d\d-\d\d"


def gaps(spec: EncoderSpec) -> list[str]:
    """What an entry does not prove."""
    facts = spec.facts
    if facts is None:
        return ["facts"]
    made_here = spec.source.kind in ("seed", "project")
    held = {
        "date": re.fullmatch(DATE, facts.date),
        "license": facts.license,
        "why": facts.why or facts.commercial != "unclear",
        "two sources": len(set(facts.build)) >= 2 or spec.unconfirmed or made_here,
        "revision": re.fullmatch(r"([0-9a-f]{40})?", spec.source.revision),
    }
    return [name for name, found in held.items() if not found]


def test_every_encoder_has_sources_and_dates() -> None:
    assert {spec.name: gaps(spec) for spec in list_encoders() if gaps(spec)} == {}


def test_every_dataset_has_the_source_and_date_of_its_license() -> None:
    for entry in all_datasets().values():
        assert re.fullmatch(DATE, entry.facts.date), entry.name
        assert ("not found" in entry.facts.license) == (entry.license == "unknown"), entry.name
        assert "memory" not in " ".join(entry.unconfirmed), entry.name


def test_the_page_of_an_encoder_names_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "ctranspath"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"commercial use +restricted: its authors allow non-commercial academic use only", shown)
    assert re.search(rf"license read in +github.com/Xiyue-Wang/TransPath README .*{DATE}", shown)
    assert re.search(rf"numbers read in +.*TransPath; .*{DATE}", shown)
    assert main(["models", "show", "genbio-pathfm"]) == 0
    assert re.search(r"revision +not pinned\nsha256 +not pinned", capsys.readouterr().out)
