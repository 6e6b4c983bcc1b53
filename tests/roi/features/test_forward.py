"""One encoder on one device: memory that runs out, padded batches, precisions, compilation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.feature_extraction import extract
from histobench.roi.features.feature_file import load
from histobench.roi.features.inference.forward import (
    Forward,
    Pending,
    fused,
    is_out_of_memory,
    resolve_precision,
)
from histobench.roi.features.inference.tuning import cpu_batch, largest_batch

PIXELS = torch.arange(11 * 28 * 28 * 3, dtype=torch.int64).remainder(251).to(torch.uint8).view(11, 28, 28, 3)


class Hungry(BasePatchEncoder):
    """Has memory for `room` images at a time."""

    def __init__(self, room: int, error: type[Exception] = torch.OutOfMemoryError) -> None:
        super().__init__()
        self.eval_transforms = TransformSpec(resize=32, crop=28)
        self.embed_dim = 3
        self.room = room
        self.error = error
        self.seen: list[int] = []
        self.name = "hungry"

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        if len(images) > self.room:
            raise self.error("CUDA out of memory. Tried to allocate 2.00 GiB")
        return images.mean(dim=(2, 3))


def test_features_of_another_length_than_promised_are_refused() -> None:
    encoder = Hungry(99)
    encoder.embed_dim = 5
    forward = Forward(encoder, device="cpu", precision="fp32", batch=8)
    with pytest.raises(HistobenchError, match=r"hungry gives features of shape \(8, 3\), but .* is 5"):
        forward.start(PIXELS, 11)


def test_an_error_in_a_users_own_network_is_the_users() -> None:
    encoder = Hungry(3, KeyError)
    encoder.name = "my_file.py:Hungry"
    forward = Forward(encoder, device="cpu", precision="fp32", batch=8)
    with pytest.raises(HistobenchError, match=r"my_file\.py:Hungry fails on a batch of .*: KeyError"):
        forward.start(PIXELS, 11)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_out_of_memory_halves_the_batch_and_loses_no_image(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    encoder = Hungry(3, error)
    forward = Forward(encoder, device="cpu", precision="fp32", batch=8)
    with caplog.at_level(logging.WARNING):
        features = forward.finish(forward.start(PIXELS, 11))
    expected = encoder.eval_transforms.normalise(PIXELS).mean(dim=(2, 3))
    torch.testing.assert_close(features, expected)
    assert encoder.seen == [8, 4, 2, 2, 2, 2, 2, 2]
    assert forward.batch == 2
    assert "out of memory" in caplog.text


def test_one_image_that_does_not_fit_is_an_error() -> None:
    forward = Forward(Hungry(0), device="cpu", precision="fp32", batch=4)
    with pytest.raises(HistobenchError, match="hungry: one image does not fit into the memory of cpu"):
        forward.start(PIXELS, 4)


def test_other_errors_are_not_mistaken_for_memory() -> None:
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)  # in the words of the installed version
    assert is_out_of_memory(caught.value)


def test_every_batch_has_the_same_size_and_padding_does_not_show() -> None:
    encoder = Hungry(100)
    forward = Forward(encoder, device="cpu", precision="fp32", batch=4)
    features = forward.finish(forward.start(PIXELS, 11))
    assert encoder.seen == [4, 4, 4]
    assert features.shape == (11, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.9999), ("bf16", 0.999)])
def test_the_fast_path_stays_close_to_the_plain_one(encoder_file: Path, precision: str, least: float) -> None:
    encoder = create_encoder(f"{encoder_file}:Tiny")
    forward = Forward(encoder, device="cpu", precision=precision, batch=4)
    fast, plain = forward.finish(forward.start(PIXELS, 11)), forward.plain(PIXELS)
    assert fast.dtype == torch.float32
    assert float(torch.nn.functional.cosine_similarity(fast, plain).min()) >= least


@pytest.mark.slow
def test_folding_keeps_the_features_and_leaves_the_encoder_alone(encoder_file: Path) -> None:
    encoder = create_encoder(f"{encoder_file}:Tiny")
    encoder.body[1].running_mean.normal_(generator=torch.Generator().manual_seed(1))
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    forward = Forward(encoder, device="cpu", precision="fp32", batch=4)
    plain = forward.finish(forward.start(PIXELS, 11))
    forward.fold()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in forward._network.modules())
    torch.testing.assert_close(forward.finish(forward.start(PIXELS, 11)), plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(forward.plain(PIXELS), plain, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


class Shared(nn.Module):
    """Uses the output of a convolution twice: before and after its normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norm.running_mean.fill_(0.7)

    def forward(self, images: Tensor) -> Tensor:
        inner = self.conv(images)
        return (inner + self.norm(inner)).mean(dim=(2, 3))


def test_folding_is_refused_where_it_would_change_the_features() -> None:
    assert fused(Shared().eval(), torch.rand(1, 3, 8, 8)) is None
    assert fused(nn.Conv2d(3, 4, 3).eval(), torch.rand(1, 3, 8, 8)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0"])
def test_timm_networks_are_folded_completely(name: str) -> None:
    import timm

    network = timm.create_model(name, num_classes=0).eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
    twin = fused(network, torch.randn(1, 3, 64, 64))
    assert twin is not None
    assert not any(isinstance(module, nn.BatchNorm2d) for module in twin.modules())


def test_auto_precision_is_the_authors_on_a_gpu_and_fp32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert resolve_precision("auto", torch.float16, "cuda:0") == "fp16"
    assert resolve_precision("auto", torch.bfloat16, "cuda:0") == "bf16"
    assert resolve_precision("auto", torch.bfloat16, "cpu") == "fp32"
    assert resolve_precision("bf16", torch.float32, "cpu") == "bf16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert resolve_precision("auto", torch.bfloat16, "cuda:0") == "fp16"


def test_auto_batch_on_a_cpu_is_small() -> None:
    forward = Forward(Hungry(100), device="cpu", precision="fp32", batch=1)
    assert largest_batch(forward, (28, 28, 3), torch.uint8, 100) == cpu_batch() == 8


class OnASmallDevice:
    """Stands for a network on a GPU whose memory is full with 600 images."""

    device, seconds = "cuda:0", 0.0

    def __init__(self, *, is_cnn: bool) -> None:
        self.is_cnn, self.batch, self.peak, self.tried = is_cnn, 1, 0, list[int]()

    def start(self, pixels: Tensor, count: int) -> None:
        self.tried.append(count)
        self.peak = 0
        while self.batch > 600:
            self.peak, self.batch = 600, self.batch // 2
        self.peak = max(self.peak, self.batch)

    def finish(self, pending: None) -> None:
        """Nothing is computed."""


@pytest.mark.parametrize(
    ("is_cnn", "images", "tried"), [(True, 5000, [1024, 512]), (True, 300, [512]), (False, 5000, [8, 512])]
)
def test_a_cnn_is_prepared_for_few_batch_sizes_and_as_many_images_fit(
    monkeypatch: pytest.MonkeyPatch, is_cnn: bool, images: int, tried: list[int]
) -> None:
    forward: Any = OnASmallDevice(is_cnn=is_cnn)
    memory = {"memory_allocated": 0, "memory_reserved": 0, "mem_get_info": (720, 900)}
    for name, value in (memory | {"empty_cache": None, "reset_peak_memory_stats": None}).items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: forward.peak)
    assert largest_batch(forward, (2, 2, 3), torch.uint8, images) == 512
    assert forward.tried == tried


@pytest.mark.slow
def test_a_last_batch_that_is_smaller_does_not_compile_again(encoder_file: Path) -> None:
    from torch._dynamo.utils import counters

    encoder = create_encoder(f"{encoder_file}:Tiny")
    plain = Forward(encoder, device="cpu", precision="fp32", batch=4)
    expected = plain.finish(plain.start(PIXELS, 11))
    forward = Forward(encoder, device="cpu", precision="fp32", batch=4)
    forward.compile(backend="eager")  # what is compiled, and how often, does not depend on it
    counters.clear()
    features = forward.finish(forward.start(PIXELS, 11))
    forward.finish(forward.start(PIXELS, 1))
    assert counters["stats"]["unique_graphs"] == 1
    assert forward.compiled
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_a_network_that_cannot_be_compiled_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> Callable[[Tensor], Tensor]:
        def fail(pixels: Tensor) -> Tensor:
            raise RuntimeError("no such compiler")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    forward = Forward(Hungry(100), device="cpu", precision="fp32", batch=4)
    forward.compile()
    assert len(forward.finish(forward.start(PIXELS, 11))) == 11
    assert "hungry cannot be compiled (no such compiler)" in caplog.text
    assert not forward.compiled


class Late(Pending):
    """Features of a device that takes its time: ready only when somebody waits for them."""

    @property
    def is_ready(self) -> bool:
        return False


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Pending, Late])
def test_a_device_that_is_behind_changes_nothing(
    make_dataset: Callable[..., RoiDataset],
    encoder_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Pending],
) -> None:
    whole = Forward.start
    monkeypatch.setattr(Forward, "start", lambda self, *args: kind(whole(self, *args).parts))
    dataset, tiny = make_dataset(60, 21), create_encoder(f"{encoder_file}:Tiny")
    train, _ = extract(dataset, tiny, tmp_path / "out", device="cpu", batch_size=8, num_workers=0)
    pixels = [tiny.eval_transforms(Image.open(image.path)) for image in dataset.splits["train"]]
    expected = tiny(torch.stack(pixels))
    torch.testing.assert_close(load(train.path).embeddings, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compiled_code_may_read_past_the_edges_of_its_input(encoder_file: Path) -> None:
    forward = Forward(create_encoder(f"{encoder_file}:Tiny"), device="cpu", precision="fp32", batch=11)
    expected = forward.finish(forward.start(PIXELS, 11))
    seen = []

    def compiled(pixels: torch.Tensor) -> torch.Tensor:
        one = pixels[0].numel()
        room = pixels.untyped_storage().nbytes() // pixels.element_size() - pixels.storage_offset()
        seen.append((pixels.storage_offset() >= one, room >= pixels.numel() + one))
        return forward._network(pixels)

    forward._run, forward.compiled = compiled, True
    assert torch.equal(forward.finish(forward.start(PIXELS, 11)), expected)
    assert seen == [(True, True)]
