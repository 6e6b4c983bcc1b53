"""Right checkpoints load in any wrapping; wrong ones give an error that says what is wrong."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.checkpoint import load_strictly, read_checkpoint


class Small(nn.Module):
    """A network whose names resemble those of the large ones."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Linear(6, 4)
        self.norm = nn.LayerNorm(4)
        self.model = nn.Linear(4, 2)  # a name that is also a wrapper's prefix


@pytest.fixture
def state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn_like(tensor) for name, tensor in Small().state_dict().items()}


def load(path: Path, **kwargs: Any) -> Small:
    network = Small()
    load_strictly(network, read_checkpoint(path), where=str(path), **kwargs)
    return network


def assert_loaded(network: nn.Module, state: dict[str, Tensor]) -> None:
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, state[name])


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "prefix", ["", "module.", "model.", "module.model.", "_orig_mod.", "teacher.backbone.", "encoder."]
)
@pytest.mark.parametrize("container", [None, "state_dict", "model", "teacher"])
def test_wrappers_are_taken_off(
    state: dict[str, Tensor], prefix: str, container: str | None, tmp_path: Path
) -> None:
    inner = prefixed(state, prefix)
    content = {container: inner, "epoch": 3, "args": argparse.Namespace(lr=0.1)} if container else inner
    torch.save(content, tmp_path / "weights.pth")
    assert_loaded(load(tmp_path / "weights.pth"), state)


def test_half_precision_weights_become_single_precision(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({name: tensor.half() for name, tensor in state.items()}, tmp_path / "half.pth")
    network = load(tmp_path / "half.pth")
    assert network.norm.weight.dtype == torch.float32
    torch.testing.assert_close(network.norm.weight, state["norm.weight"].half().float())


def test_a_sharded_checkpoint_is_put_together(state: dict[str, Tensor], tmp_path: Path) -> None:
    names = list(state)
    save_file({name: state[name] for name in names[:2]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: state[name] for name in names[2:]}, tmp_path / "model-00002-of-00002.safetensors")
    weight_map = {
        name: f"model-0000{1 + (index > 1)}-of-00002.safetensors" for index, name in enumerate(names)
    }
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert_loaded(load(index), state)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(HistobenchError, match="model-00002-of-00002"):
        load(index)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"norm.bias": None}, r"1 missing \(norm\.bias\)"),
        ({"fc.weight": torch.ones(2)}, r"1 unexpected \(fc\.weight\)"),
        ({"model.weight": torch.ones(3, 4)}, r"model\.weight \(3, 4\) instead of \(2, 4\)"),
        ({"norm.weight": torch.full((4,), torch.nan)}, r"NaN or infinity in norm\.weight"),
        ({"norm.bias": torch.ones(4).to(torch.float8_e4m3fn)}, r"1 quantized, without .* \(norm\.bias\)"),
        ({"norm.bias": torch.ones(4, dtype=torch.int8)}, r"1 quantized, without .* \(norm\.bias\)"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "backbone."])
def test_a_tensor_that_does_not_fit_is_named(
    state: dict[str, Tensor], changed: dict[str, Tensor | None], message: str, prefix: str, tmp_path: Path
) -> None:
    kept = {name: tensor for name, tensor in {**state, **changed}.items() if tensor is not None}
    torch.save(prefixed(kept, prefix), tmp_path / "weights.pth")
    with pytest.raises(HistobenchError, match=message):
        load(tmp_path / "weights.pth")


def test_another_models_checkpoint_is_refused_and_what_is_superfluous_left_out(
    state: dict[str, Tensor], tmp_path: Path
) -> None:
    torch.save({**state, "fc.weight": torch.ones(2)}, tmp_path / "weights.pth")
    assert_loaded(load(tmp_path / "weights.pth", ignore=["fc.*"]), state)
    torch.save(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).state_dict(), tmp_path / "other.pth")
    network = Small()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(HistobenchError, match="not this encoder's weights: tensors 6 missing"):
        load_strictly(network, read_checkpoint(tmp_path / "other.pth"), where="other")
    assert_loaded(network, before)


class Runs:
    """Would run a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def test_code_is_never_run_and_no_tensors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weights": Runs()}, tmp_path / "evil.pth")
    with pytest.raises(HistobenchError, match="never executed here"):
        read_checkpoint(tmp_path / "evil.pth")
    assert not (tmp_path / "executed").exists()
    torch.save({"epoch": 3}, tmp_path / "weights.pth")
    with pytest.raises(HistobenchError, match="no named tensors"):
        read_checkpoint(tmp_path / "weights.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n", "a git-lfs pointer.*git lfs pull"),
        (b"  <!DOCTYPE html><html><title>Sign in</title>", "a web page, not the weights"),
        (b"<HTML><body>404</body>", "a web page, not the weights"),
        (b'{"error": "not found"}', "a JSON text, not weights"),
        (b"\x1f\x8b" + bytes(64), "a gzip archive"),
        (b"", "is empty"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
def test_what_people_take_for_a_checkpoint_is_called_by_its_name(
    content: bytes, message: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(HistobenchError, match=message) as failure:
        read_checkpoint(path)
    assert str(failure.value).startswith(str(path))
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("suffix", [".bin", ".pth", ".pt", ".safetensors"])
def test_every_file_format_loads_and_its_content_decides(
    state: dict[str, Tensor], suffix: str, tmp_path: Path
) -> None:
    for save in (save_file, torch.save):
        save(state, tmp_path / f"weights{suffix}")
        assert_loaded(load(tmp_path / f"weights{suffix}"), state)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_a_truncated_file_is_one_short_line(
    state: dict[str, Tensor], kind: str, share: float, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pth"
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "zip")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(HistobenchError, match=r"truncated|damaged") as failure:
        read_checkpoint(path)
    said = str(failure.value).removeprefix(str(path))
    assert "\n" not in said
    assert len(said) < 240


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"weight_map": [1]}', '{"weight_map": {"a": 3}}', '{"weight_map": {}}']
)
def test_a_malformed_index_is_named(text: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(HistobenchError, match=str(index)):
        read_checkpoint(index)
