"""A user's own encoder: from a file, by decorator, from a plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builders import encoder_file
from histobench.core.errors import HistobenchError
from histobench.core.version import installed_entry_points
from histobench.roi.encoders import registry
from histobench.roi.encoders.any_model import state_sha256
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.registry import create_encoder, register_encoder
from histobench.roi.encoders.transform import TransformSpec

SCALED = "images.mean(dim=(2, 3)) * self.scale"
FILE = f"""
{encoder_file("MeanColour", SCALED, size=64, scale="torch.nn.Parameter(torch.ones(3))")}

class Forgetful(BasePatchEncoder):
    pass


class Free(MeanColour):
    def __init__(self):
        super().__init__()
        self.eval_transforms = lambda image: torch.zeros(3, 8, 8)


class Sized(MeanColour):
    def __init__(self, resize_size=64):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=resize_size, crop=resize_size)


class Plain(torch.nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_file.py"
    path.write_text(FILE)
    return path


@pytest.mark.slow
def test_a_class_in_a_file_is_an_encoder(file: Path) -> None:
    encoder = create_encoder(f"{file}:MeanColour")
    assert encoder(torch.ones(2, 3, 64, 64)).tolist() == [[1.0] * 3] * 2
    assert not encoder.training
    assert not encoder.scale.requires_grad
    assert encoder.identity["weights"] == f"sha256:{state_sha256(encoder)}"
    assert not encoder.supports_zero_shot
    plain = create_encoder(f"{file}:Plain")  # not a BasePatchEncoder
    assert (plain.embed_dim, plain.name) == (3, f"{file}:Plain")
    assert create_encoder(f"{file}:Plain", resize_size=32).eval_transforms.crop == 32


@pytest.mark.slow
def test_the_size_is_changed_where_it_can_be(file: Path) -> None:
    assert create_encoder(f"{file}:MeanColour", resize_size=96).eval_transforms == TransformSpec(
        resize=96, crop=96
    )
    assert create_encoder(f"{file}:Sized", resize_size=32).eval_transforms.crop == 32
    with pytest.raises(HistobenchError, match="leave out `size`"):
        create_encoder(f"{file}:Free", resize_size=32)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MeanColor", "did you mean MeanColour"),
        ("Forgetful", r"does not set self\.embed_dim"),
        ("TransformSpec", "gives a TransformSpec, not a torch.nn.Module"),
        ("number", "cannot be made: TypeError: 3 is not"),
    ],
)
def test_a_wrong_class_is_refused_with_the_reason(file: Path, name: str, message: str) -> None:
    with pytest.raises(HistobenchError, match=message):
        create_encoder(f"{file}:{name}")


def test_a_file_that_fails_or_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import nonexistent_package\nAny = 1\n")
    with pytest.raises(HistobenchError, match=r"bad\.py cannot be imported: ModuleNotFoundError"):
        create_encoder(f"{tmp_path}/bad.py:Any")
    with pytest.raises(HistobenchError, match="does not exist"):
        create_encoder(f"{tmp_path}/missing.py:Any")
    (tmp_path / "half.py").write_text("def make():\n    return open('weights.pt')\n")
    with pytest.raises(HistobenchError, match=r"half\.py:make cannot be made: FileNotFoundError: .*weights"):
        create_encoder(f"{tmp_path}/half.py:make")


class Constant(BasePatchEncoder):
    """Gives the same features for every image."""

    def __init__(self) -> None:
        super().__init__()
        self.eval_transforms = TransformSpec()
        self.embed_dim = 2

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(images), 2)


@pytest.mark.slow
def test_a_decorated_class_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    register_encoder("constant")(Constant)
    assert create_encoder("constant").name == "constant"
    with pytest.raises(HistobenchError, match="did you mean constant"):
        create_encoder("constand")
    with pytest.raises(HistobenchError, match="has an encoder 'uni_v1' already"):
        register_encoder("uni_v1")(Constant)


@pytest.mark.slow
def test_a_plug_in_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plugged_code.py").write_text(FILE)
    installed_entry_points.cache_clear()  # as in a new process
    facts = tmp_path / "plugged-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[histobench.encoders]\nplugged = plugged_code:MeanColour\n")
    assert create_encoder("plugged").embed_dim == 3


class Quantized(torch.nn.Module):
    """As layers of quantization libraries: what it holds is no tensor alone."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def get_extra_state(self) -> dict[str, object]:
        return {"scale": self.scale, "packed": (torch.eye(2).to_sparse(), torch.float16)}


def test_a_state_that_is_more_than_tensors_is_hashed() -> None:
    assert state_sha256(Quantized(1.0)) == state_sha256(Quantized(1.0)) != state_sha256(Quantized(2.0))
